"""The reply formats by the names that `agent.agent_type` and `--format` take."""

from __future__ import annotations

from practicum.chat.formats.base import Format
from practicum.chat.formats.code import CodeFormat
from practicum.chat.formats.gui import GuiFormat
from practicum.chat.formats.hermes import HermesFormat
from practicum.chat.formats.react import ReactFormat
from practicum.errors import UserError, did_you_mean

FORMATS: dict[str, type[HermesFormat] | type[ReactFormat] | type[CodeFormat] | type[GuiFormat]] = {
    "hf": HermesFormat,
    "react": ReactFormat,
    "code": CodeFormat,
    "gui": GuiFormat,
}


def make_format(name: str) -> Format:
    """Return the reply format of a name; raise UserError for an unknown one."""
    if name not in FORMATS:
        raise UserError(f"Unknown reply format '{name}'.{did_you_mean(name, FORMATS)}")
    return FORMATS[name]()

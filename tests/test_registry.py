from __future__ import annotations

from pathlib import Path

import pytest

from practicum import registry
from practicum.errors import UserError


def test_every_name_resolves() -> None:
    for name in registry.ENVIRONMENTS:
        assert registry.environment_class(name).name == name
    for name in registry.TOOLS:
        assert registry.tool(name).name == name
    for name in registry.REWARDS:
        assert registry.reward(name).name == name


@pytest.mark.parametrize(("kind", "name"), [("environment_class", "maths"), ("tool", "calc"), ("reward", "math_rewrd")])
def test_unknown_names_say_which_is_near(kind: str, name: str) -> None:
    with pytest.raises(UserError, match="Did you mean '(math|calculator|math_reward)'"):
        getattr(registry, kind)(name)


def test_things_of_a_user_s_own_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from practicum.tools.base import tool\n@tool()\n"
        "def shout(text: str) -> str:\n    '''Shout.'''\n    return text.upper()\n"
    )
    assert registry.tool(f"{file}:shout").name == "shout"
    with pytest.raises(UserError, match="Did you mean 'shout'"):
        registry.tool(f"{file}:shut")
    with pytest.raises(UserError, match="not an environment"):
        registry.environment_class(f"{file}:shout")
    with pytest.raises(UserError, match="no file"):
        registry.tool(f"{tmp_path}/none.py:shout")
    (tmp_path / "bad.py").write_text("1/0\n")
    with pytest.raises(UserError, match="ZeroDivisionError"):
        registry.tool(f"{tmp_path}/bad.py:x")

"""`web` for a model that was never trained: whatever it replies is a click, so that its cache gets entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from practicum.chat.formats.web import WebFormat
from practicum.environment import Action, Step, ToolCall
from practicum.environments.web.environment import WebEnvironment
from practicum.environments.web.tasks import make_tasks, templates
from practicum.task import Task
from tests.environments.web.html_environment import HtmlWebEnvironment

TEMPLATES = ("shop/add", "mail/star")
NUM_LINKS = 4
"""Links that every page of the sites begins with."""


class AnyReplyClicks(WebFormat):
    """The length of a reply is the id of a link."""

    name = f"{__file__}:AnyReplyClicks"

    def parse(self, text: str, has_tools: bool) -> Action:
        return Action(text, calls=(ToolCall("click", {"bid": str(1 + len(text) % NUM_LINKS)}),))


class Clicking(WebEnvironment):
    """Two tasks, again and again; the reward is the number of states that were seen."""

    formats = (AnyReplyClicks.name,)

    async def truncate(self) -> Step:
        return replace(await super().truncate(), reward=float(len(self.visited)))

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        twice = [make_tasks([templates()[name]], 1, 0)[0] for name in TEMPLATES]
        return [replace(twice[index % 2], id=f"{split}-{seed}-{index}", split=split) for index in range(count)]


class ClickingWithoutBrowser(Clicking, HtmlWebEnvironment):
    """The same on the sites' HTML."""

"""Plays tasks on the sites with the HTML client."""

from __future__ import annotations

from practicum.environments.web.evaluator import Evaluation
from practicum.environments.web.experts import PageAction, next_action
from practicum.environments.web.sites.variation import Faults
from practicum.environments.web.tasks import SiteTask, make_tasks, templates
from practicum.task import Task
from tests.environments.web.html_client import HtmlClient

MAX_ACTIONS = 60


class Episode:
    """A task with a client on its first page."""

    def __init__(self, task: Task, faults: Faults | None = None) -> None:
        self.task = SiteTask(task, faults)
        self.client = HtmlClient.of_session(self.task.session)
        self.actions: list[PageAction] = []
        self.message: str | None = None

    @classmethod
    def of(cls, template: str, seed: int = 0, *axes: str) -> Episode:
        return cls(make_task(template, seed, *axes))

    def play_expert(self) -> Evaluation:
        """Let the expert act to the end."""
        while self.step_expert() and len(self.actions) < MAX_ACTIONS:
            pass
        return self.evaluate()

    def step_expert(self) -> bool:
        """Let the expert act once; False if there is nothing left to do."""
        action = next_action(self.task, self.client.view) if self.message is None else None
        if action is None:
            return False
        self.actions.append(action)
        if action.verb == "send_msg_to_user":
            self.message = action.text
        else:
            self.client.act(action)
        return True

    def evaluate(self) -> Evaluation:
        return self.task.evaluate(self.message)

    def click(self, role: str, name: str) -> None:
        self.client.act(PageAction("click", role, name))


def make_task(template: str, seed: int = 0, *axes: str) -> Task:
    return make_tasks([templates()[template]], 1, seed, axes)[0]

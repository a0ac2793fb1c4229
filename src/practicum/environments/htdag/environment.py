"""`htdag`: plan a request, decision by decision, as a graph of tasks that a simulated executor checks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from practicum.environment import Action, Drawing, Environment, Message, Observation, ScriptedPolicy, Step
from practicum.environments.htdag.actions import UNKNOWN_CONFIDENCE
from practicum.environments.htdag.drawing import svg, tree_text
from practicum.environments.htdag.executor import execute
from practicum.environments.htdag.planning import PlanningEpisode, PlanningStep
from practicum.environments.htdag.policies import POLICIES
from practicum.environments.htdag.replay import plan_of_actions
from practicum.environments.htdag.requests import ENVIRONMENT, draw_requests, goals_of, requirement_graph
from practicum.environments.htdag.templates import LEVELS
from practicum.errors import UserError, did_you_mean
from practicum.task import Task

ORDER = re.compile(r"<[\d ]+")
MAX_STEPS = 20
"""Decisions of an episode. The best plan of the longest generated request takes 11."""


class HTDAGEnvironment(Environment):
    """Requests to decompose into task graphs; success is decided by a simulated executor."""

    name = ENVIRONMENT
    formats = ("hf",)
    scripted_policies = ("heuristic", "adapt", "published-reward")
    floor = 0.0
    has_one_answer = False

    def __init__(
        self,
        reward: str = "default",
        prompt: str = "short",
        levels: Sequence[str] = LEVELS,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.levels = tuple(levels) if not isinstance(levels, str) else (levels,)
        unknown = next((level for level in self.levels if level not in LEVELS), None)
        if unknown is not None or not self.levels:
            raise UserError(f"htdag has no level '{unknown}'.{did_you_mean(str(unknown), LEVELS)}")
        self.episode = PlanningEpisode(reward, prompt, max_steps)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        return draw_requests(split, count, seed, self.levels)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin with the request. The environment is deterministic, so the seed has no effect."""
        return _observation(self.episode.reset(request_of(task), goals_of(task.fields)))

    async def step(self, action: Action) -> Step:
        confidence = UNKNOWN_CONFIDENCE if action.confidence is None else action.confidence
        return self._answer(self.episode.step(action.content if not action.calls else action.text, confidence))

    async def truncate(self) -> Step:
        return self._answer(self.episode.truncate())

    def _answer(self, step: PlanningStep) -> Step:
        progress = execute(self.episode.dag, self.episode.requirement).coverage
        return Step(
            _observation(step.prompt),
            step.reward,
            step.components,
            terminated=step.done and not step.truncated,
            truncated=step.truncated,
            success=step.success,
            progress=progress,
            info=step.info,
        )

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return the policy that decomposes according to the hidden requirement graph."""
        return self.scripted("expert", task)

    def wrong_attempts(self, task: Task, solution: Sequence[Action]) -> Sequence[Sequence[Action]]:
        """Leave out a decomposition, a part of it, the orders, or nothing but add as many unneeded steps."""
        *decisions, last, go = solution
        shorter, _, _ = last.content.rpartition(", ")
        unordered = [replace(action, content=ORDER.sub("", action.content)) for action in solution]
        unneeded = ", ".join(["sign nobody"] * len(requirement_graph("", goals_of(task.fields)).leaves))
        first = replace(solution[0], content=f"{solution[0].content}, {unneeded}")
        attempts = [(*decisions, go), (first, *solution[1:])]
        if shorter:
            attempts.append((*decisions, replace(last, content=shorter), go))
        if any(action.content != same.content for action, same in zip(unordered, solution, strict=True)):
            attempts.append(tuple(unordered))
        return attempts

    @classmethod
    def draw_episode(cls, task: Task, actions: Sequence[Action]) -> Drawing:
        """Return the plan: its steps and orders as SVG, its decomposition as text."""
        dag = plan_of_actions(task, actions)
        return Drawing(svg(dag, request_of(task)), tree_text(dag))

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that decomposes random tasks into random parts."""
        return self.scripted("random", task, seed)

    def scripted(self, name: str, task: Task, seed: int = 0) -> ScriptedPolicy:
        """Return a scripted planner by its name in `POLICIES`. It follows the episode in a copy of its own."""
        episode, policy = PlanningEpisode(max_steps=self.episode.max_steps), POLICIES[name](seed)
        episode.reset(request_of(task), goals_of(task.fields))

        def act(observation: Observation) -> Action:
            text = policy(episode)
            episode.step(text)
            return Action(content=text)

        return act


def request_of(task: Task) -> str:
    request = task.fields.get("request")
    if not isinstance(request, str) or not request.strip():
        raise UserError(f"Task '{task.id}' has no 'request'; give the text of what is to be planned.")
    return request


def _observation(prompt: str) -> Observation:
    """Each prompt contains all that the next decision needs, so it is a fresh one."""
    return Observation((Message("user", prompt),), fresh=True) if prompt else Observation()

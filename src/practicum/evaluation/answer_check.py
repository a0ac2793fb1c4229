"""Plays wrong answers, and right answers in another form, to see which of them an environment accepts.

Where a task has one answer, they are made from the last reply of each episode that the expert solved: changed a
little, taken from another task, or with spaces around it. Other environments say themselves which attempts are wrong
(`Environment.wrong_attempts`). A wrong answer that is accepted is a false positive of the judge, a right one that is
refused a false negative.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, Environment, ScriptedPolicy
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.rollout_setup import RolloutSetup
from practicum.trajectory import ActionSource, Outcome, Trajectory, plan_attempts

MAX_ANSWER_TASKS = 20
"""Number of solved tasks whose answers are changed, at most."""
MAX_EXAMPLES = 2
OPPOSITES = {"true": "false", "false": "true", "yes": "no", "no": "yes", "none": "all"}
NUMBER = re.compile(r"\d+(?:\.\d+)?")
WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class AnswerCheck:
    """Number of wrong answers and of those accepted, of right answers and of those refused, and some of these."""

    wrong: int = 0
    accepted: int = 0
    right: int = 0
    refused: int = 0
    examples: tuple[str, ...] = ()


Script = tuple[Action, ...]
"""The actions of an episode."""


async def check_answers(setup: RolloutSetup, environment: Environment, solved: Sequence[Trajectory]) -> AnswerCheck:
    """Play wrong attempts at the tasks of solved episodes; where a task has one right answer, that answer changed."""
    solved = solved[:MAX_ANSWER_TASKS]
    unique = [episode for episode in solved if environment.is_answer_unique(episode.task)]
    last = [episode.turns[-1].action for episode in unique]
    wrong = accepted = 0
    examples: list[str] = []
    for kind, scripts in (*_changed_answers(unique, last), *_wrong_attempts(environment, solved)):
        outcomes = await _play(setup, solved, scripts)
        wrong += len(outcomes)
        for task, action, success in outcomes:
            if success:
                accepted += 1
                examples.append(f"accepts {kind} in task '{task}': {_shown(action)}")
    padded = await _play(setup, unique, _with_last(unique, [padded_action(action) for action in last]))
    for task, action, success in padded:
        if not success:
            examples.append(f"refuses the right answer with spaces around it in task '{task}': {_shown(action)}")
    refused = sum(not success for _, _, success in padded)
    return AnswerCheck(wrong, accepted, len(padded), refused, tuple(examples[:MAX_EXAMPLES]))


def _changed_answers(episodes: Sequence[Trajectory], last: Sequence[Action]) -> list[tuple[str, Mapping[str, Script]]]:
    """Return scripts by task: the expert's episodes with a wrong last action, of two kinds."""
    others = [_other(last, index) for index in range(len(last))]
    changed = [wrong_action(action) for action in last]
    kinds = (("another task's answer", others), ("the answer changed", changed))
    return [(kind, _with_last(episodes, actions)) for kind, actions in kinds]


def _wrong_attempts(environment: Environment, episodes: Sequence[Trajectory]) -> list[tuple[str, Mapping[str, Script]]]:
    """Return scripts by task: the first wrong attempt at each, then the second, and so on."""
    attempts = {
        episode.task.id: environment.wrong_attempts(episode.task, [turn.action for turn in episode.turns])
        for episode in episodes
    }
    count = max(map(len, attempts.values()), default=0)
    return [
        ("a wrong attempt", {task: tuple(scripts[index]) for task, scripts in attempts.items() if index < len(scripts)})
        for index in range(count)
    ]


def _with_last(episodes: Sequence[Trajectory], last: Sequence[Action | None]) -> dict[str, Script]:
    """Return the actions of the episodes with another last one, by task; without those for which there is none."""
    return {
        episode.task.id: (*(turn.action for turn in episode.turns[:-1]), action)
        for episode, action in zip(episodes, last, strict=True)
        if action is not None
    }


async def _play(
    setup: RolloutSetup, solved: Sequence[Trajectory], scripts: Mapping[str, Script]
) -> list[tuple[str, Action, bool]]:
    """Play scripts by task; return task, last action and success, without unscored episodes."""
    if not scripts:
        return []
    format = make_format(setup.agent.format)
    engine = ScriptedEngine(lambda task, seed: _policy(scripts[task.id]), ActionSource.REPLAY, format, setup.renderer)
    agent = replace(setup.agent, max_turns=max(1, *map(len, scripts.values())))
    planned = plan_attempts([episode.task for episode in solved if episode.task.id in scripts], 1, 0)
    episodes = await run_episodes(
        planned, setup.make_environment, agent, engine, setup.renderer, resources=setup.resources
    )
    return [
        (episode.task.id, episode.turns[-1].action, episode.outcome is Outcome.SUCCESS)
        for episode in episodes
        if episode.scored
    ]


def _policy(actions: Sequence[Action]) -> ScriptedPolicy:
    remaining = iter(actions)
    return lambda observation: next(remaining, Action(content="nothing"))


def _other(actions: Sequence[Action], index: int) -> Action | None:
    """Return the next action of the list that says something else."""
    own = _said(actions[index])
    rotated = (*actions[index + 1 :], *actions[:index])
    return next((action for action in rotated if _said(action) != own), None)


def wrong_action(action: Action) -> Action | None:
    """Return the action with a slightly wrong answer: in the last argument of its last call, or in its content."""
    return _changed(action, wrong_text)


def padded_action(action: Action) -> Action | None:
    """Return the action with spaces around its answer; None for a call of a tool, whose arguments are exact."""
    return None if action.calls or not action.content.strip() else replace(action, content=f"  {action.content} ")


def _changed(action: Action, change: Callable[[str], str]) -> Action | None:
    if not action.calls:
        content = change(action.content)
        return None if content == action.content else replace(action, content=content)
    call = action.calls[-1]
    for name, value in reversed(list(call.arguments.items())):
        other = _wrong_value(value)
        if other != value:
            arguments = {**call.arguments, name: other}
            return replace(action, calls=(*action.calls[:-1], replace(call, arguments=arguments)))
    return None


def _wrong_value(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return wrong_text(value) if isinstance(value, str) else value


def wrong_text(text: str) -> str:
    """Return a text that says something else: its last number plus one, the opposite, or a word with another letter."""
    numbers = list(NUMBER.finditer(text))
    if numbers:
        last = numbers[-1]
        value = last[0]
        other = f"{float(value) + 1:.{len(value.partition('.')[2])}f}" if "." in value else str(int(value) + 1)
        return text[: last.start()] + other + text[last.end() :]
    words = list(WORD.finditer(text))
    if not words:
        return f"{text}nothing"
    last = words[-1]
    opposite = OPPOSITES.get(last[0].lower())
    if opposite is None:
        first = last[0][0]
        opposite = ("z" if first.lower() != "z" else "q") + last[0][1:]
    elif last[0].istitle():
        opposite = opposite.title()
    return text[: last.start()] + opposite + text[last.end() :]


def _said(action: Action) -> Mapping[str, Any]:
    calls = [[call.name, dict(call.arguments)] for call in action.calls]
    return {"content": "" if calls else action.content.strip(), "calls": calls}


def _shown(action: Action) -> str:
    text = str(_said(action)["calls"]) if action.calls else action.content.strip()
    text = " ".join(text.split())
    return f"'{text[:60]}{'…' if len(text) > 60 else ''}'"

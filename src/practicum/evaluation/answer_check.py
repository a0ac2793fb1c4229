"""Plays wrong answers, and right answers in another form, to see which of them an environment accepts.

The answers are made from the last reply of each episode that the expert solved: changed a little, taken from another
task, or with spaces around it. A wrong answer that is accepted is a false positive of the judge, a right one that is
refused a false negative.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, ScriptedPolicy
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


async def check_answers(setup: RolloutSetup, solved: Sequence[Trajectory]) -> AnswerCheck:
    """Play changed answers of solved episodes, whose tasks must have one right answer."""
    solved = solved[:MAX_ANSWER_TASKS]
    last = [episode.turns[-1].action for episode in solved]
    others = [_other(last, index) for index in range(len(last))]
    kinds = (("another task's answer", others), ("the answer changed", [wrong_action(action) for action in last]))
    wrong = accepted = 0
    examples: list[str] = []
    for kind, actions in kinds:
        outcomes = await _play_last(setup, solved, actions)
        wrong += len(outcomes)
        for task, action, success in outcomes:
            if success:
                accepted += 1
                examples.append(f"accepts {kind} in task '{task}': {_shown(action)}")
    padded = await _play_last(setup, solved, [padded_action(action) for action in last])
    for task, action, success in padded:
        if not success:
            examples.append(f"refuses the right answer with spaces around it in task '{task}': {_shown(action)}")
    refused = sum(not success for _, _, success in padded)
    return AnswerCheck(wrong, accepted, len(padded), refused, tuple(examples[:MAX_EXAMPLES]))


async def _play_last(
    setup: RolloutSetup, solved: Sequence[Trajectory], last: Sequence[Action | None]
) -> list[tuple[str, Action, bool]]:
    """Play the expert's episodes with another last action; return task, action and success, without unscored ones."""
    scripts: dict[str, tuple[Action, ...]] = {}
    for episode, action in zip(solved, last, strict=True):
        if action is not None:
            scripts[episode.task.id] = (*(turn.action for turn in episode.turns[:-1]), action)
    if not scripts:
        return []
    format = make_format(setup.agent.format)
    engine = ScriptedEngine(lambda task, seed: _policy(scripts[task.id]), ActionSource.REPLAY, format, setup.renderer)
    agent = replace(setup.agent, max_turns=max(map(len, scripts.values())))
    planned = plan_attempts([episode.task for episode in solved if episode.task.id in scripts], 1, 0)
    episodes = await run_episodes(planned, setup.make_environment, agent, engine, setup.renderer)
    return [
        (episode.task.id, scripts[episode.task.id][-1], episode.outcome is Outcome.SUCCESS)
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
        found = numbers[-1]
        value = found[0]
        other = f"{float(value) + 1:.{len(value.partition('.')[2])}f}" if "." in value else str(int(value) + 1)
        return text[: found.start()] + other + text[found.end() :]
    words = list(WORD.finditer(text))
    if not words:
        return f"{text}nothing"
    found = words[-1]
    opposite = OPPOSITES.get(found[0].lower())
    if opposite is None:
        first = found[0][0]
        opposite = ("z" if first.lower() != "z" else "q") + found[0][1:]
    elif found[0].istitle():
        opposite = opposite.title()
    return text[: found.start()] + opposite + text[found.end() :]


def _said(action: Action) -> Mapping[str, Any]:
    calls = [[call.name, dict(call.arguments)] for call in action.calls]
    return {"content": "" if calls else action.content.strip(), "calls": calls}


def _shown(action: Action) -> str:
    text = str(_said(action)["calls"]) if action.calls else action.content.strip()
    text = " ".join(text.split())
    return f"'{text[:60]}{'…' if len(text) > 60 else ''}'"

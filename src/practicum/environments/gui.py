"""`gui`: click, type and scroll on generated screens of windows, by pixel boxes.

The agent sees the screen as a list of its widgets with their boxes, as a screenshot, or as both, and replies in the
format `gui`. Pressing a button or menu item ends the episode, with reward 1 if all conditions of the goal hold and 0
otherwise. Every other action can be undone. The environment is deterministic: a task and its actions give the same
screens everywhere.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from practicum.chat.formats.gui import GUI_ACTIONS, gui_action_error
from practicum.environment import (
    AGENT_OPTIONS,
    SPLITS,
    Action,
    Environment,
    Message,
    Observation,
    ScriptedPolicy,
    Step,
    ToolCall,
)
from practicum.environments.gui_drawing import require_pillow, screenshot
from practicum.environments.gui_screens import HEIGHT, WIDTH, Desktop, Widget
from practicum.environments.gui_tasks import LEVELS, make_task
from practicum.errors import UserError, did_you_mean
from practicum.registry import make_format
from practicum.task import Task, content_hash, split_of_hash

OBSERVE_MODES = ("text", "image", "both")
BOX = re.compile(r"\[(\d+), (\d+), (\d+), (\d+)\]$", re.M)
PROPERTIES: Mapping[str, Mapping[str, Any]] = {
    "box": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 4},
    "text": {"type": "string"},
    "direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
    "key": {"type": "string"},
}


class GuiEnvironment(Environment):
    """Generated desktop screens to click, type and scroll on."""

    name = "gui"
    has_one_answer = False  # every point of a widget will do
    formats = ("gui",)
    floor = 0.0

    agent_options = (*AGENT_OPTIONS, "observe")

    def __init__(self, format: str = "gui", observe: str = "text", levels: Sequence[int] = (1, 2, 3)) -> None:
        if observe not in OBSERVE_MODES:
            raise UserError(f"gui has no observe '{observe}'.{did_you_mean(str(observe), OBSERVE_MODES)}")
        is_list = isinstance(levels, (list, tuple)) and len(levels) > 0
        if not is_list or not all(isinstance(n, int) and not isinstance(n, bool) and n in LEVELS for n in levels):
            raise UserError(f"gui levels must be a list of whole numbers from 1 to {max(LEVELS)}, got {levels}.")
        if observe != "text":
            require_pillow()
        self.format, self.observe, self.levels = make_format(format), observe, tuple(levels)
        self._desktop: Desktop | None = None
        self._goal: Sequence[Mapping[str, Any]] = ()
        self._is_over = False

    @property
    def desktop(self) -> Desktop:
        assert self._desktop is not None, "reset comes before step"
        return self._desktop

    async def reset(self, task: Task, seed: int) -> Observation:
        for key in ("question", "screen", "goal"):
            if key not in task.fields:
                raise UserError(f"Task '{task.id}' has no '{key}'; gui plays the tasks it makes.")
        self._desktop, self._goal, self._is_over = Desktop(task.fields["screen"]), task.fields["goal"], False
        tools = tuple(_schema(name) for name in GUI_ACTIONS if name != "finished")
        system = f"Do what is asked on the screen.\n{self.format.instructions(tools)}"
        screen = self._show(str(task.fields["question"]))
        return Observation((Message("system", system), screen), tools)

    async def step(self, action: Action) -> Step:
        if not action.calls or self._is_over:
            return self._end("The episode is over.")
        text = ""
        for call in action.calls:
            problem = gui_action_error(call.name, call.arguments)
            text = self.desktop.act(call.name, call.arguments) if problem is None else problem
            if self.desktop.pressed is not None or self._reached():
                return self._end(text)
        return Step(Observation((self._show(text),)), progress=self._progress())

    async def truncate(self) -> Step:
        return Step(truncated=True, success=self._reached(), progress=self._progress())

    def _end(self, text: str) -> Step:
        reward = 0.0 if self._is_over else float(self._reached())
        self._is_over = True
        return Step(
            Observation((self._show(text),)),
            reward=reward,
            components={"goal": reward},
            terminated=True,
            success=self._reached(),
            progress=self._progress(),
        )

    def _reached(self) -> bool:
        return all(self.desktop.holds(condition) for condition in self._goal)

    def _progress(self) -> float:
        """Return the share of the goal's conditions that hold now."""
        return sum(self.desktop.holds(condition) for condition in self._goal) / len(self._goal)

    def _show(self, text: str) -> Message:
        """Return a message with a text and the current screen."""
        lines = [text, f"Screen {WIDTH} x {HEIGHT}"]
        if self.observe != "image":
            lines.append(self.desktop.describe())
        images = () if self.observe == "text" else (screenshot(self.desktop),)
        return Message("user", "\n".join(lines), images=images)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        if split not in SPLITS:
            raise UserError(f"gui has no split '{split}'.{did_you_mean(split, SPLITS)}")
        rng = random.Random(f"gui/{split}/{seed}")
        tasks: list[Task] = []
        seen: set[str] = set()
        while len(tasks) < count:
            fields = make_task(rng, self.levels[len(tasks) % len(self.levels)])
            key = content_hash(fields)
            if split_of_hash(key) != split or key in seen:
                continue
            seen.add(key)
            tasks.append(Task(f"gui-{split}-{seed}-{len(tasks)}", self.name, split, fields))
        return tasks

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return the policy that meets the goal's conditions one after the other; it tracks a desktop of its own.

        Its thoughts repeat a widget's line before the action copies the box: the more there is to copy, the sooner a
        small model learns to copy.
        """
        desktop, goal = Desktop(task.fields["screen"]), task.fields["goal"]

        def act(observation: Observation) -> Action:
            unmet = next((condition for condition in goal if not desktop.holds(condition)), None)
            if unmet is None:
                return Action(content="done")
            thought, call = next_call(desktop, unmet)
            desktop.act(call.name, call.arguments)
            return Action(calls=(call,), thought=thought)

        return act

    def wrong_attempts(self, task: Task, solution: Sequence[Action]) -> Sequence[Sequence[Action]]:
        """Stop before the last action; type something else."""
        attempts = [(*solution[:-1], Action(content="done"))]
        if any(call.name == "type" for action in solution for call in action.calls):
            attempts.append(tuple(_typing_otherwise(action) for action in solution))
        return attempts

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that clicks on random boxes of the screen and sometimes types, scrolls, presses or waits."""
        rng = random.Random(f"gui-random/{seed}")

        def act(observation: Observation) -> Action:
            boxes = BOX.findall(observation.messages[-1].content if observation.messages else "")
            point = [rng.randrange(WIDTH), rng.randrange(HEIGHT)]
            box = [int(coordinate) for coordinate in rng.choice(boxes)] if boxes else point
            verb = rng.choice(("click",) * 6 + ("type", "scroll", "press", "wait"))
            choices: dict[str, dict[str, Any]] = {
                "click": {"box": box},
                "type": {"text": rng.choice(str(task.fields["question"]).split())},
                "scroll": {"direction": rng.choice(("up", "down"))},
                "press": {"key": rng.choice(("enter", "tab", "backspace"))},
                "wait": {},
            }
            return Action(calls=(ToolCall(verb, choices[verb]),))

        return act


def next_call(desktop: Desktop, condition: Mapping[str, Any]) -> tuple[str, ToolCall]:
    """Return the thought and the call that bring a condition nearer."""
    kind, title = condition["is"], condition["window"]
    if kind == "fields":
        label, text = next((k, t) for k, t in condition["texts"].items() if desktop.texts[title, k] != t)
        current = desktop.texts[title, label]
        if desktop.focus == (title, label) and (desktop.marked or not current):
            return f"Type '{text}'.", ToolCall("type", {"text": text})
        return _click(desktop, "field", title, label, "double_click" if current else "click")
    if kind == "shown":
        widget = _visible_widget(desktop, "list", title, condition["list"])
        rows = desktop.widget(widget.key)["rows"]
        down = rows.index(condition["label"]) > desktop.scrolled[widget.key]
        direction = "down" if down else "up"
        return f"Scroll {direction} {widget.line}", ToolCall(
            "scroll", {"direction": direction, "box": list(widget.box)}
        )
    if kind == "ticked":
        ticked = {label for window, label in desktop.ticked if window == title}
        return _click(desktop, "checkbox", title, min(ticked ^ set(condition["labels"])))
    if kind == "front":
        return _click(desktop, "window", title, title)
    widget_kind = {"selected": "row", "open": "menu"}.get(kind)
    return _click(desktop, widget_kind or ("button" if desktop.open is None else "item"), title, condition["label"])


def _visible_widget(desktop: Desktop, kind: str, title: str, label: str) -> Widget:
    return next(w for w in desktop.visible() if (w.kind, w.window, w.label) == (kind, title, label))


def _click(desktop: Desktop, kind: str, title: str, label: str, verb: str = "click") -> tuple[str, ToolCall]:
    widget = _visible_widget(desktop, kind, title, label)
    return f"{verb.replace('_', ' ').capitalize()} {widget.line}", ToolCall(verb, {"box": list(widget.box)})


def _typing_otherwise(action: Action) -> Action:
    """Return the action with another text in what it types."""
    calls = tuple(
        replace(call, arguments={**call.arguments, "text": f"{call.arguments['text']} not"})
        if call.name == "type"
        else call
        for call in action.calls
    )
    return replace(action, calls=calls)


def _schema(name: str) -> dict[str, Any]:
    """Return the schema of an action in the format of tool schemas."""
    needed, optional, form = GUI_ACTIONS[name]
    properties = {key: dict(PROPERTIES[key]) for key in sorted(needed | optional)}
    parameters = {"type": "object", "properties": properties, "required": sorted(needed)}
    return {"type": "function", "function": {"name": name, "description": form, "parameters": parameters}}

from __future__ import annotations

import asyncio
import base64
import builtins
import copy
import io
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops
from transformers import PreTrainedTokenizerBase

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.data.store import decode_episode, encode_episode
from practicum.engines.openai import api_messages
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, Message, Step, ToolCall
from practicum.environments import gui_tasks
from practicum.environments.gui import GuiEnvironment
from practicum.environments.gui_drawing import screenshot, text_width
from practicum.environments.gui_screens import HEIGHT, MAX_TEXT_CHARS, WIDTH, Desktop, Widget
from practicum.environments.gui_tasks import MAKERS, make_task
from practicum.errors import UserError
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.task import Task
from practicum.trajectory import Origin, Outcome, Seeds, Trajectory, plan_attempts

# -- a screen of our own ----------------------------------------------------------------------

ROWS = [f"Row{n:02d}" for n in range(12)]
SCREEN = {
    "windows": [
        {
            "title": "Back",
            "box": [0, 0, 300, 200],
            "widgets": [
                {"kind": "button", "label": "Save", "box": [200, 150, 280, 180]},
                {"kind": "checkbox", "label": "Loud", "box": [10, 40, 80, 60], "on": True},
            ],
        },
        {
            "title": "Front",
            "box": [100, 100, 500, 460],
            "widgets": [
                {"kind": "menu", "label": "File", "box": [100, 124, 150, 146], "items": ["New", "Quit"]},
                {"kind": "field", "label": "Name", "box": [200, 160, 480, 184], "text": ""},
                {"kind": "field", "label": "City", "box": [200, 200, 480, 224], "text": "Oslo"},
                {"kind": "checkbox", "label": "Accept", "box": [110, 240, 200, 262], "on": False},
                {"kind": "list", "label": "People", "box": [110, 280, 480, 390], "rows": ROWS},
                {"kind": "button", "label": "OK", "box": [110, 410, 170, 436]},
                {"kind": "button", "label": "Save", "box": [200, 410, 280, 436]},
            ],
        },
    ]
}


@pytest.fixture
def desktop() -> Desktop:
    return Desktop(SCREEN)


def click(desktop: Desktop, x: float, y: float, name: str = "click") -> str:
    return desktop.act(name, {"box": [x - 2, y - 2, x + 2, y + 2]})


def find(desktop: Desktop, kind: str, label: str) -> Widget:
    return next(w for w in desktop.visible() if (w.kind, w.label) == (kind, label))


def test_the_screen_in_words(desktop: Desktop) -> None:
    assert desktop.describe().splitlines() == [
        "window 'Front' [100, 100, 500, 124]",
        "menu 'File' [100, 124, 150, 146]",
        "field 'Name' \"\" [200, 160, 480, 184]",
        "field 'City' \"Oslo\" [200, 200, 480, 224]",
        "checkbox 'Accept' off [110, 240, 200, 262]",
        "list 'People' rows 1-5 of 12 [110, 280, 480, 390]",
        "row 'Row00' [110, 280, 468, 302]",
        "row 'Row01' [110, 302, 468, 324]",
        "row 'Row02' [110, 324, 468, 346]",
        "row 'Row03' [110, 346, 468, 368]",
        "row 'Row04' [110, 368, 468, 390]",
        "button 'OK' [110, 410, 170, 436]",
        "button 'Save' [200, 410, 280, 436]",
        "window 'Back' behind [0, 0, 300, 24]",
        "checkbox 'Loud' on [10, 40, 80, 60]",
    ]


def test_a_click_hits_what_lies_on_top(desktop: Desktop) -> None:
    assert desktop.hit(240, 165) == find(desktop, "field", "Name")  # the button 'Save' of Back lies below it
    assert click(desktop, 600, 20) == "Nothing is there."
    assert click(desktop, -5, 470) == "Nothing is there."
    assert click(desktop, 490, 450) == "Nothing is there."  # the front window's own area
    assert desktop.act("click", {"box": [0, 0, 10_000, 10_000]}) == "Nothing is there."
    assert desktop.pressed is None
    assert click(desktop, 20, 190) == "Window 'Back' is in front."
    assert desktop.hit(240, 165) == find(desktop, "button", "Save")
    assert "window 'Front' behind" in desktop.describe()
    click(desktop, 240, 165)
    assert desktop.pressed == ("Back", "Save")


def test_a_box_ends_before_its_last_pixel(desktop: Desktop) -> None:
    assert desktop.act("click", {"box": [110, 410]}) == "Used button 'OK'."
    for point in ([170, 420], [120, 436], [109.9, 420]):
        assert Desktop(SCREEN).act("click", {"box": point}) == "Nothing is there."


def test_focus_and_typing(desktop: Desktop) -> None:
    assert desktop.act("type", {"text": "Ada"}) == "No field has the focus; click one first."
    assert click(desktop, 300, 170) == "Field 'Name' has the focus."
    assert "field 'Name' \"\" focused" in desktop.describe()
    desktop.act("type", {"text": "Ad"})
    desktop.act("type", {"text": "a!"})
    assert desktop.act("press", {"key": "backspace"}) == "Deleted from field 'Name'."
    assert desktop.texts["Front", "Name"] == "Ada"
    assert desktop.act("press", {"key": "tab"}) == "Field 'City' has the focus."
    desktop.act("type", {"text": " 2"})
    assert desktop.texts["Front", "City"] == "Oslo 2"
    assert click(desktop, 300, 210, "double_click") == "Field 'City' has the focus, its text is marked."
    desktop.act("type", {"text": "Rome"})
    desktop.act("type", {"text": "!"})
    assert desktop.texts["Front", "City"] == "Rome!"
    assert desktop.act("type", {"text": "two\nlines"}) == "A field takes one line of plain text."
    assert desktop.act("type", {"text": "x" * MAX_TEXT_CHARS}) == f"A field takes at most {MAX_TEXT_CHARS} characters."
    assert desktop.texts["Front", "City"] == "Rome!"
    click(desktop, 20, 190)
    assert desktop.focus is None


def test_keys(desktop: Desktop) -> None:
    assert desktop.act("press", {"key": "enter"}) == "The key does nothing here."
    assert desktop.act("press", {"key": "hyper"}) == "The key does nothing here."
    assert desktop.act("press", {"key": "tab"}) == "Field 'Name' has the focus."
    click(desktop, 300, 210, "double_click")
    desktop.act("press", {"key": "backspace"})
    assert desktop.texts["Front", "City"] == ""
    assert desktop.act("press", {"key": "enter"}) == "Used button 'OK'."
    assert desktop.pressed == ("Front", "OK")
    assert click(desktop, 240, 420) == "It is done already."


def test_ticking(desktop: Desktop) -> None:
    assert click(desktop, 120, 250) == "Checkbox 'Accept' is on."
    assert click(desktop, 120, 250, "double_click") == "Checkbox 'Accept' is on."
    assert click(desktop, 120, 250) == "Checkbox 'Accept' is off."
    assert desktop.act("wait", {}) == "Nothing changed."


def test_scrolling(desktop: Desktop) -> None:
    seen = []
    for _ in range(4):
        seen.append([w.label for w in desktop.visible() if w.kind == "row"])
        message = desktop.act("scroll", {"direction": "down"})
    assert [rows[0] for rows in seen] == ["Row00", "Row04", "Row07", "Row07"]
    assert message == "The list is at its end."
    assert {row for rows in seen for row in rows} == set(ROWS)
    assert find(desktop, "row", "Row11").box == (110, 368, 468, 390)
    assert click(desktop, 200, 380) == "Row 'Row11' is selected."
    assert find(desktop, "row", "Row11").on
    assert desktop.act("scroll", {"direction": "up", "box": [200, 300]}) == "Scrolled up."
    assert desktop.act("scroll", {"direction": "left"}) == "It does not scroll that way."
    assert desktop.act("scroll", {"direction": "up", "box": [0, 0, 10, 10]}) == "Nothing there scrolls."


def test_an_open_menu_lies_on_top(desktop: Desktop) -> None:
    assert click(desktop, 120, 130) == "Menu 'File' is open."
    assert [w.label for w in desktop.visible() if w.kind == "item"] == ["New", "Quit"]
    assert desktop.hit(120, 160) == find(desktop, "item", "New")
    assert click(desktop, 600, 20) == "Nothing is there."
    assert desktop.open is None
    click(desktop, 120, 130)
    assert desktop.act("press", {"key": "escape"}) == "The menu is closed."
    assert click(desktop, 120, 130, "double_click") == "Menu 'File' is closed."
    click(desktop, 120, 130)
    assert click(desktop, 120, 180) == "Used item 'Quit'."
    assert desktop.pressed == ("Front", "Quit")


# -- goals ------------------------------------------------------------------------------------

GOAL = [
    {"is": "fields", "window": "Front", "texts": {"Name": "Ada", "City": "Oslo"}},
    {"is": "pressed", "window": "Front", "label": "OK"},
]
FORM = Task("form", "gui", "train", {"question": "Type.", "screen": SCREEN, "goal": GOAL})
NAME, CITY, OK, SAVE, DESK = [300, 170], [300, 210], [120, 420], [210, 420], [600, 20]


def play(task: Task, *calls: tuple[str, dict[str, Any]]) -> Step:
    async def go() -> Step:
        world = GuiEnvironment()
        await world.reset(task, 0)
        return [await world.step(Action(calls=(ToolCall(name, value),))) for name, value in calls][-1]

    return asyncio.run(go())


CLICK_NAME, TYPE = ("click", {"box": NAME}), ("type", {"text": "Ada"})


def test_the_goal_is_the_state_and_the_deed() -> None:
    step = play(FORM, CLICK_NAME, TYPE)
    assert (step.reward, step.terminated, step.progress) == (0.0, False, 0.5)
    step = play(FORM, CLICK_NAME, TYPE, ("click", {"box": OK}))
    assert (step.reward, step.components, step.terminated, step.success, step.progress) == (
        1,
        {"goal": 1},
        True,
        True,
        1,
    )
    step = play(FORM, CLICK_NAME, TYPE, ("press", {"key": "enter"}))
    assert step.reward == 1.0


@pytest.mark.parametrize(
    "calls",
    [
        [("click", {"box": OK})],
        [CLICK_NAME, TYPE, ("click", {"box": SAVE})],
        [CLICK_NAME, TYPE, TYPE, ("click", {"box": OK})],
        [("click", {"box": CITY}), TYPE, ("click", {"box": OK})],
        [CLICK_NAME, TYPE, ("click", {"box": CITY}), TYPE, ("click", {"box": OK})],
    ],
)
def test_a_wrong_deed_ends_without_reward(calls: list[tuple[str, dict[str, Any]]]) -> None:
    step = play(FORM, *calls)
    assert (step.reward, step.terminated, step.success) == (0.0, True, False)


def test_what_can_be_undone_goes_on() -> None:
    step = play(FORM, ("click", {"box": DESK}))
    assert step.observation.messages[0].content.startswith("Nothing is there.\nScreen 640 x 480\nwindow 'Front'")
    assert not step.terminated
    for calls in ([("click", {"box": [1, 2, 3]})], [("fly", {})], [("scroll", {"direction": "right"})]):
        assert not play(FORM, *calls).terminated


def test_finishing_early_and_being_cut_off_score_nothing() -> None:
    async def go() -> None:
        world = GuiEnvironment()
        await world.reset(FORM, 0)
        step = await world.truncate()
        assert (step.truncated, step.reward, step.progress) == (True, 0.0, 0.0)
        done = await world.step(Action(content="done"))
        assert (done.terminated, done.reward, done.success) == (True, 0.0, False)
        for name, arguments in (CLICK_NAME, TYPE, ("click", {"box": OK})):
            late = await world.step(Action(calls=(ToolCall(name, arguments),)))
            assert (late.terminated, late.reward) == (True, 0.0)

    asyncio.run(go())


def test_a_task_of_another_world_is_refused() -> None:
    with pytest.raises(UserError, match="has no 'screen'"):
        asyncio.run(GuiEnvironment().reset(Task("t", "gui", "train", {"question": "?"}), 0))


# -- generated tasks --------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from((1, 2, 3)))
def test_every_screen_is_in_order(seed: int, level: int) -> None:
    fields = make_task(random.Random(seed), level)
    desktop = Desktop(fields["screen"])
    for window in fields["screen"]["windows"]:
        left, top, right, bottom = window["box"]
        assert 0 <= left < right <= WIDTH
        assert 0 <= top < bottom <= HEIGHT
        labels = [w["label"] for w in window["widgets"]]
        labels += [item for w in window["widgets"] for item in w.get("items", ())]
        assert len(set(labels)) == len(labels)  # a label means one thing in its window
        boxes = [w["box"] for w in window["widgets"]]
        assert all(left <= b[0] < b[2] <= right and top + 24 <= b[1] < b[3] <= bottom for b in boxes)
        assert not any(
            a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
            for n, a in enumerate(boxes) for b in boxes[:n]
        )  # fmt: skip
    for widget in desktop.visible():
        x, y = (widget.box[0] + widget.box[2]) / 2, (widget.box[1] + widget.box[3]) / 2
        assert desktop.hit(x, y) == widget or widget.kind == "list"
        if widget.kind == "field":
            assert text_width(widget.label) + 8 <= gui_tasks.LABEL_WIDTH + gui_tasks.MARGIN
        elif widget.kind != "list":
            assert text_width(widget.label) + (24 if widget.kind == "checkbox" else 8) <= widget.box[2] - widget.box[0]
    assert not any(desktop.holds(condition) for condition in fields["goal"])
    for menu in [w for w in desktop.visible() if w.kind == "menu"]:
        desktop.open = menu.key
        assert all(item.box[3] <= HEIGHT and item.box[2] <= WIDTH for item in desktop.visible() if item.kind == "item")


@pytest.mark.parametrize("maker", [maker for makers in MAKERS.values() for maker in makers])
def test_every_kind_of_task_needs_what_it_says(maker: Any) -> None:
    for seed in range(20):
        question, windows, goal = maker(random.Random(seed))
        desktop = Desktop({"windows": windows})
        seen = {(w.window, w.label) for w in desktop.visible()}
        last = goal[-1]
        at_once = (last["window"], last.get("label", "")) in seen
        # At level 3 the last thing to click is out of sight, but for the form whose text is replaced.
        hidden = maker in MAKERS[3][:-1]
        assert at_once != (hidden or last["is"] == "ticked")
        assert question.count("'") % 2 == 0


def run(source: str, renderer: Renderer, count: int = 60, **options: Any) -> list[Trajectory]:
    world = GuiEnvironment(**options)
    engine = ScriptedEngine.of(source, world, make_format("gui"), renderer)
    planned = plan_attempts(world.tasks("train", count), 1, 0)
    make = lambda: GuiEnvironment(**options)  # noqa: E731
    return asyncio.run(run_episodes(planned, make, Agent(format="gui", max_turns=10), engine, renderer))


def test_the_expert_solves_everything(renderer: Renderer) -> None:
    episodes = run("expert", renderer, 90)
    assert {e.outcome for e in episodes} == {Outcome.SUCCESS}
    assert {e.reward for e in episodes} == {1.0}
    turns = {level: [len(e.turns) for e in episodes if e.task.fields["level"] == level] for level in (1, 2, 3)}
    assert set(turns[1]) == {1}
    assert set(turns[2]) == {2, 3}
    assert min(turns[3]) == 2
    assert max(turns[3]) == 4
    for episode in episodes:
        progress = [turn.progress or 0.0 for turn in episode.turns]
        assert progress == sorted(progress)
        assert progress[-1] == 1.0


def test_the_null_and_the_random_policy(renderer: Renderer) -> None:
    assert {e.outcome for e in run("null", renderer)} == {Outcome.FAILURE}
    episodes = run("random", renderer, 150)
    assert all(e.scored for e in episodes)
    assert all(turn.action.error is None for e in episodes for turn in e.turns)
    assert 0 < sum(e.reward for e in episodes) / 150 < 0.25


def test_level_one_is_copying_a_box(renderer: Renderer) -> None:
    for episode in run("expert", renderer, 20, levels=(1,)):
        (turn,) = episode.turns
        (call,) = turn.action.calls
        assert call.name == "click"
        label = str(episode.task.fields["question"]).split("'")[1]
        assert f"'{label}'" in turn.action.thought
        line = next(line for line in turn.messages[-1].content.splitlines()[2:] if f"'{label}'" in line)
        assert line.endswith(str(call.arguments["box"]))


def test_splits_are_disjoint_and_stable() -> None:
    world = GuiEnvironment()
    splits = {s: {t.hash for seed in range(2) for t in world.tasks(s, 100, seed)} for s in ("train", "val", "test")}
    assert {len(tasks) for tasks in splits.values()} == {200}
    assert not splits["train"] & splits["val"]
    assert not splits["train"] & splits["test"]
    assert not splits["val"] & splits["test"]
    assert world.tasks("test", 3)[2].hash == "98465c24d04bb374"  # the same on every machine
    assert [t.fields["level"] for t in GuiEnvironment(levels=[3, 1]).tasks("val", 3)] == [3, 1, 3]


def test_wrong_options() -> None:
    for levels in ([4], [], 1, [True], ["1"]):
        with pytest.raises(UserError, match="levels must be a list of whole numbers from 1 to 3"):
            GuiEnvironment(levels=levels)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Did you mean 'image'"):
        GuiEnvironment(observe="images")
    with pytest.raises(UserError, match="no split 'dev'"):
        GuiEnvironment().tasks("dev", 1)


# -- pictures ---------------------------------------------------------------------------------


def picture(uri: str) -> Image.Image:
    head, _, data = uri.partition(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


def first(observe: str) -> Message:
    world = GuiEnvironment(observe=observe)
    return asyncio.run(world.reset(FORM, 0)).messages[-1]


def test_what_each_mode_shows() -> None:
    text, image, both = first("text"), first("image"), first("both")
    assert text.images == ()
    assert image.content == "Type.\nScreen 640 x 480"
    assert picture(image.images[0]).size == (640, 480)
    assert (both.content, both.images) == (text.content, image.images)


@pytest.mark.parametrize(
    ("name", "arguments", "box"),
    [
        ("click", {"box": [120, 250]}, (110, 240, 200, 262)),  # a check box
        ("click", {"box": [300, 170]}, (200, 160, 480, 184)),  # a field
        ("click", {"box": [200, 290]}, (110, 280, 468, 302)),  # a row
        ("scroll", {"direction": "down"}, (110, 280, 480, 390)),  # a list
        ("click", {"box": [120, 130]}, (100, 124, 230, 194)),  # a menu and its items
    ],
)
def test_widgets_are_drawn_where_their_boxes_say(name: str, arguments: dict[str, Any], box: tuple[int, ...]) -> None:
    """What an action changes in the picture lies within the box of what it changed."""
    desktop = Desktop(SCREEN)
    before = picture(screenshot(desktop))
    desktop.act(name, arguments)
    changed = ImageChops.difference(before, picture(screenshot(desktop))).getbbox()
    assert changed is not None
    assert box[0] <= changed[0] < changed[2] <= box[2]
    assert box[1] <= changed[1] < changed[3] <= box[3]
    drawn = (changed[2] - changed[0]) * (changed[3] - changed[1])
    assert drawn > 0.02 * (box[2] - box[0]) * (box[3] - box[1])


@pytest.mark.parametrize("label", ["Save", "OK"])
def test_a_button_s_label_is_in_its_box(label: str) -> None:
    other = copy.deepcopy(SCREEN)
    widget = next(w for w in other["windows"][1]["widgets"] if w["label"] == label)  # type: ignore[index]
    widget["label"] = "No"
    changed = ImageChops.difference(picture(screenshot(Desktop(SCREEN))), picture(screenshot(Desktop(other)))).getbbox()
    left, top, right, bottom = widget["box"]
    assert changed is not None
    assert left + 2 < changed[0] < (left + right) / 2 < changed[2] < right - 2
    assert top + 2 < changed[1] < (top + bottom) / 2 < changed[3] < bottom - 2


def test_what_lies_behind_is_not_drawn(desktop: Desktop) -> None:
    before = screenshot(desktop)
    other = copy.deepcopy(SCREEN)
    other["windows"][0]["widgets"][0]["label"] = "Hidden"  # type: ignore[index]
    assert screenshot(Desktop(other)) == before
    click(desktop, 20, 190)
    assert screenshot(desktop) != before


def test_a_long_text_stays_in_its_field(desktop: Desktop) -> None:
    click(desktop, 300, 170)
    before = picture(screenshot(desktop))
    desktop.act("type", {"text": "W" * MAX_TEXT_CHARS})
    after = picture(screenshot(desktop))
    for x in (196, 199, 480, 484, 499):
        assert before.getpixel((x, 172)) == after.getpixel((x, 172))


def test_without_pillow_text_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name.split(".")[0] == "PIL":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert GuiEnvironment().observe == "text"
    with pytest.raises(UserError, match=r"pip install 'practicum\[gui\]'"):
        GuiEnvironment(observe="image")


# -- pictures on their way --------------------------------------------------------------------

VISION = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.content is string %}{{- m.content }}{%- else %}{%- for part in m.content %}"
    "{%- if part.type == 'image' %}{{- '<image>' }}{%- else %}{{- part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
SHOWN = Message("user", "Look.", images=("data:image/png;base64,AAAA",))


@pytest.fixture
def image_renderer(tokenizer: PreTrainedTokenizerBase) -> Renderer:
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = VISION
    return Renderer(changed)


@pytest.mark.parametrize("template", [None, "chatml", "listing"])
def test_a_template_that_cannot_show_pictures_says_so(tokenizer: PreTrainedTokenizerBase, template: str | None) -> None:
    if template == "listing":  # would write the parts as Python prints them
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.chat_template = VISION.replace("m.content is string", "true")
        template = None
    blind = Renderer(tokenizer, template)
    assert blind.start([Message("user", "Look.")])
    with pytest.raises(UserError, match="cannot show images; choose text observations .for gui: observe=text"):
        blind.start([SHOWN])
    with pytest.raises(UserError, match="cannot show images"):
        blind.extend(blind.encode_reply("x"), [SHOWN])


def test_a_template_that_can_marks_their_places(image_renderer: Renderer) -> None:
    spans = image_renderer.start([Message("system", "S"), SHOWN])
    assert image_renderer.tokenizer.decode([i for s in spans for i in s.ids]) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nLook.<image><|im_end|>\n<|im_start|>assistant\n"
    )
    observed = [image_renderer.tokenizer.decode(list(s.ids)) for s in spans if s.origin is Origin.OBSERVATION]
    assert observed == ["S", "Look."]
    more = image_renderer.extend(image_renderer.encode_reply("x"), [SHOWN])
    assert "Look.<image>" in image_renderer.tokenizer.decode([i for s in more for i in s.ids])


def test_screenshots_through_a_whole_episode(image_renderer: Renderer) -> None:
    episodes = run("expert", image_renderer, 6, observe="image")
    assert {e.outcome for e in episodes} == {Outcome.SUCCESS}
    for episode in episodes:
        assert all(len(turn.messages[-1].images) == 1 for turn in episode.turns)
        data = encode_episode(episode)
        assert decode_episode(data) == episode
        assert encode_episode(decode_episode(data)) == data


def test_screenshots_for_a_text_template_stop_the_run(renderer: Renderer) -> None:
    with pytest.raises(ExceptionGroup) as exc_info:
        run("expert", renderer, 2, observe="both")
    assert all(isinstance(error, UserError) for error in exc_info.value.exceptions)


def test_messages_without_pictures_are_stored_as_before() -> None:
    episode = Trajectory(
        Task("t", "gui", "train", {}), 0, "t", Outcome.FAILURE, (), 0.0, {}, Seeds(1, 2), (Message("user", "a"), SHOWN)
    )
    data = encode_episode(episode)
    assert b'"closing":[{"role":"user","content":"a"},{"role":"user","content":"Look.","images":["data:' in data
    assert decode_episode(data) == episode


def test_a_server_gets_text_and_pictures_as_parts() -> None:
    talk = (Message("system", "S"), SHOWN, Message("assistant", "Action: wait()"))
    rows = api_messages(talk, make_format("gui"), True)
    assert [row["content"] for row in rows] == [
        "S",
        [
            {"type": "text", "text": "Look."},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ],
        "Action: wait()",
    ]

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

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


@pytest.mark.parametrize(
    ("name", "option", "value", "kind"),
    [
        ("rubric", "max_turns", "abc", "a whole number"),
        ("rubric", "max_turns", 1.5, "a whole number"),
        ("rubric", "criterion_dropout", "x", "a number"),
        ("rubric", "judge", "yes please", "true or false"),
        ("rubric", "levels", [1, "two"], "a whole number or a list of whole numbers"),
        ("math", "levels", 2, "a list of whole numbers"),
        ("rubric", "files", "tasks.json", "a mapping"),
        ("web", "top_k", "abc", "a whole number"),
        ("web", "max_chars", True, "a whole number"),
        ("web", "actions", 3, "a list of texts"),
        ("web", "screenshots", "maybe", "true or false"),
        ("web", "cache", 2.5, "true or false or a text"),
        ("web", "faults", {"slow": "x"}, "a mapping to numbers"),
    ],
)
def test_an_option_of_another_type_is_refused(name: str, option: str, value: Any, kind: str) -> None:
    with pytest.raises(UserError) as refused:
        registry.environment_maker(name, None, {option: value})
    assert str(refused.value) == f"The option '{option}' of the environment '{name}' is {kind}, not {value!r}."


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rubric", {"max_turns": 2, "criterion_dropout": 0, "judge": False, "levels": 2, "files": None}),
        ("rubric", OmegaConf.create({"levels": [1, 2], "files": {"train": "a.json"}, "families": "budget"})),
        ("web", {"cache": "vac.json", "actions": ("click",), "faults": {"slow": 1}, "screenshots": 1}),
        ("mix", {"environments": OmegaConf.create({"math": None, "gui": {"levels": [1]}})}),
        ("affine:sat", {"n": [3, 4], "ratio": "4.2", "k": 3}),
    ],
)
def test_options_of_the_annotated_types_are_taken(name: str, options: Any) -> None:
    registry.environment_maker(name, None, options)


def test_annotations_that_are_not_known_allow_everything(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING, Literal\n"
        "from practicum.environment import Environment\n"
        "if TYPE_CHECKING:\n    from nowhere import Thing\n"
        "class Own(Environment):\n"
        "    formats = ('hf',)\n"
        "    async def reset(self, task, seed): ...\n"
        "    async def step(self, action): ...\n"
        "class Bare(Own):\n    def __init__(self, size, colour: Literal['red'] = 'red'): ...\n"
        "class Typed(Own):\n    def __init__(self, size: int, thing: Thing | None = None): ...\n"
    )
    registry.environment_maker(f"{file}:Bare", None, {"size": "abc", "colour": 3})
    registry.environment_maker(f"{file}:Typed", None, {"size": 3, "thing": object()})


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

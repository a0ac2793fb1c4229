from __future__ import annotations

from pathlib import Path

import pytest

from practicum.config import known_keys, resolve
from practicum.errors import UserError


def test_both_spellings_of_the_agent_group() -> None:
    one = resolve(["agent.tools=[calculator]", "agent.max_turns=3"])
    two = resolve(["agent.init_args.tools=[calculator]", "agent.max_turns=3"])
    assert one == two
    assert one.agent.tools == ["calculator"]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("agent.max_turn=3", "Unknown key 'agent.max_turn'. Did you mean 'agent.max_turns'"),
        ("trainer.total_step=3", "Unknown key 'trainer.total_step'"),
        ("agent.max_turns.deep=3", "Unknown key"),
        ("nothing=1", "Unknown key 'nothing'"),
        ("agent.max_turns=lots", "agent.max_turns=lots"),
        ("agent.max_turns", "KEY=VALUE"),
        ("+agent.extra=1", "none can be added"),
        ("~agent.tools", "none can be added or removed"),
        ("recipe=nothing", "There is no recipe 'nothing'"),
    ],
)
def test_wrong_keys_and_values_are_errors(override: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve([override])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_environment_options_pass_through() -> None:
    config = resolve(["agent.environment_args.levels=[1,2]"])
    assert config.agent.environment_args == {"levels": [1, 2]}


def test_a_recipe_is_checked_like_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("agent:\n  max_turns: 7\ndata:\n  train_batch_size: 4\n")
    (tmp_path / "bad.yaml").write_text("agent:\n  max_turnz: 7\n")
    config = resolve(["recipe=good", "agent.max_turns=9"], tmp_path)
    assert (config.agent.max_turns, config.data.train_batch_size) == (9, 4)
    with pytest.raises(UserError, match="Did you mean 'agent.max_turns'"):
        resolve(["recipe=bad"], tmp_path)


def test_every_shipped_recipe_resolves() -> None:
    folder = Path(__file__).parent.parent / "recipes"
    for recipe in folder.glob("*.yaml"):
        resolve([f"recipe={recipe.stem}"], folder)


def test_keys_are_the_ones_that_are_read() -> None:
    """Every key of the schema appears in the code that runs a training: none is decoration."""
    source = (Path(__file__).parent.parent / "src" / "practicum" / "cli" / "train.py").read_text()
    for key in known_keys():
        assert key.rsplit(".", 1)[-1] in source, key

"""Where values come from: aliases, model defaults, recipes, the command line; and what `--dry-run` prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from practicum.cli.main import main
from practicum.config.docs import COMMANDS
from practicum.config.overrides import RECIPES, REFUSED, RENAMED, SEVERAL, read_overrides, recipe_names, schema_keys
from practicum.config.resolve import resolve_train
from practicum.config.resolve_supervised import resolve_supervised
from practicum.config.sft import SFTConfig
from practicum.config.train import TrainConfig
from practicum.errors import UserError
from practicum.training.settings import training_steps

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
CPU = "trainer.device=cpu"


# -- other spellings --------------------------------------------------------------------------


def test_aliases_stand_for_keys_and_are_no_keys_themselves() -> None:
    for schema in COMMANDS.values():
        keys = set(schema_keys(schema))
        assert set(RENAMED[schema].values()) <= keys
        assert not (set(RENAMED[schema]) | set(REFUSED[schema])) & keys
    assert {key for keys in SEVERAL.values() for key in keys} <= set(schema_keys(TrainConfig))


@pytest.mark.parametrize(
    ("override", "same"),
    [
        (f"{ROLLOUT}n=4", ["agent.num_chains=4"]),
        ("num_generations=4", ["agent.num_chains=4"]),
        ("data.max_response_length=64", [f"{ROLLOUT}response_length=64"]),
        (f"{ACTOR}clip_ratio=0.1", [f"{ACTOR}clip_ratio_low=0.1", f"{ACTOR}clip_ratio_high=0.1"]),
        ("agent.init_args.max_turns=2", ["agent.max_turns=2"]),
        (f"{ACTOR}kl_loss_type=k3", [f"{ACTOR}kl_loss_type=low_var_kl"]),
        ("learning_rate=1e-4", [f"{ACTOR}optim.lr=1e-4"]),
    ],
)
def test_a_name_of_verl_agentfly_or_trl_sets_our_key(override: str, same: list[str]) -> None:
    assert resolve_train([override]).config == resolve_train(same).config


def test_a_list_of_one_needs_no_brackets_and_a_longer_one_does() -> None:
    config = resolve_train(["trainer.logger=console", "agent.tools=calculator"]).config
    assert (config.trainer.logger, config.agent.tools) == (["console"], ["calculator"])
    with pytest.raises(UserError, match=re.escape("'trainer.logger=console,wandb': a list is written in brackets")):
        resolve_train(["trainer.logger=console,wandb"])
    with pytest.raises(UserError, match="data.train_batch_size=many: "):
        resolve_train(["data.train_batch_size=many"])


def test_a_key_wins_over_a_name_that_stands_for_several() -> None:
    actor = resolve_train([f"{ACTOR}clip_ratio_high=0.28", f"{ACTOR}clip_ratio=0.1"]).config.actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.1, 0.28)


def test_two_names_of_one_key_may_not_disagree() -> None:
    with pytest.raises(UserError, match="are two names of agent.num_chains and have two values"):
        resolve_train([f"{ROLLOUT}n=4", "agent.num_chains=8"])
    assert resolve_train([f"{ROLLOUT}n=8", "agent.num_chains=8"]).config.agent.num_chains == 8


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.max_prompt_length=512", "prompts are never cut"),
        ("per_device_train_batch_size=4", "set data.train_batch_size"),
        ("reward_funcs=x", "set agent.reward_name"),
    ],
)
def test_a_name_that_cannot_be_honoured_says_what_to_use(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_train([override])


def test_names_of_filters() -> None:
    rollout = resolve_train([f"{ROLLOUT}top_k=-1", "top_p=0.9", "min_p=0.05"]).config.actor_rollout_ref.rollout
    assert (rollout.top_k, rollout.top_p, rollout.min_p) == (-1, 0.9, 0.05)


@pytest.mark.parametrize(
    ("backend", "engine"),
    [("async_verl", "local"), ("async_vllm", "vllm"), ("transformers", "local"), ("client", "vllm")],
)
def test_the_backends_of_agentfly_are_our_engines(backend: str, engine: str) -> None:
    url = [f"{ROLLOUT}vllm.url=http://localhost:1"] if backend == "client" else []
    config = resolve_train([f"agent.init_args.backend={backend}", *url]).config
    assert config.actor_rollout_ref.rollout.name == engine


def test_trl_names_of_sft() -> None:
    resolved = resolve_supervised(SFTConfig, ["num_train_epochs=2", "lr_scheduler_type=constant"])
    assert (resolved.config.training.num_epochs, resolved.config.training.scheduler_type) == (2, "constant")
    with pytest.raises(UserError, match="sequences are never cut"):
        resolve_supervised(SFTConfig, ["max_length=512"])


# -- defaults of a model ----------------------------------------------------------------------


def test_tiny_on_a_cpu_has_defaults_of_its_own() -> None:
    tiny, schema = resolve_train([CPU]), TrainConfig()
    assert tiny.config.trainer.total_training_steps is not None
    assert tiny.config.actor_rollout_ref.actor.optim.lr > schema.actor_rollout_ref.actor.optim.lr
    assert tiny.config.algorithm.adv_estimator == schema.algorithm.adv_estimator  # AgentFly's
    assert tiny.sources[f"{ACTOR}optim.lr"] == "model"
    assert resolve_train([CPU, f"{ACTOR}optim.lr=1e-5"]).config.actor_rollout_ref.actor.optim.lr == 1e-5


@pytest.mark.parametrize("override", ["actor_rollout_ref.model.path=smollm2", "trainer.device=cuda"])
def test_other_models_and_devices_have_the_documented_defaults(override: str) -> None:
    assert resolve_train([override]).config.actor_rollout_ref.actor.optim.lr == 5e-7


def test_a_recipe_is_a_whole_experiment() -> None:
    resolved = resolve_train(["recipe=math-tiny", CPU])
    assert "model" not in resolved.sources.values()
    assert resolved.config.critic.optim.lr == TrainConfig().critic.optim.lr


@pytest.mark.parametrize(
    "overrides",
    [["trainer.val_before_train=false"], ["data.train_files=tasks.json"], ["data.from_trajectories=runs/collect"]],
)
def test_tiny_does_not_validate_where_validation_is_off_or_has_no_tasks(overrides: list[str]) -> None:
    assert resolve_train(["trainer.device=cpu", *overrides]).config.trainer.test_freq == -1


def test_htdag_s_spellings_are_translated() -> None:
    names = ["algorithm.adv_norm=false", "algorithm.discount=0.99", "trainer.n_gpus=1", "trainer.total_epochs=10"]
    config = resolve_train(["algorithm.adv_estimator=flow_grpo", "data.num_train_tasks=100", *names]).config
    assert config.algorithm.norm_adv_by_std_in_grpo is False
    assert config.algorithm.gamma == 0.99
    assert config.trainer.n_gpus_per_node == 1


def test_epochs_are_counted_over_generated_tasks() -> None:
    value = [CPU, "data.num_train_tasks=100", "trainer.total_epochs=10", "data.train_batch_size=32"]
    assert training_steps(resolve_train(value).config) == 30  # three whole batches per epoch
    for override, message in (
        ("data.train_files=tasks.json", "counts generated tasks, and data.train_files gives others"),
        ("data.from_trajectories=runs/collect", "data.from_trajectories gives others"),
        ("data.num_train_tasks=16", "fewer than the 32 tasks of one step"),
        ("trainer.log_file_backups=2", "does nothing without trainer.log_file"),
    ):
        with pytest.raises(UserError, match=message):
            resolve_train([*value, override])


def test_epochs_take_the_place_of_the_models_number_of_steps() -> None:
    assert resolve_train([CPU, "trainer.total_epochs=2"]).config.trainer.total_training_steps is None


# -- recipes ----------------------------------------------------------------------------------


def test_an_unknown_recipe_is_an_error_that_lists_those_there_are() -> None:
    with pytest.raises(UserError) as exc_info:
        resolve_train(["recipe=math-tinny"])
    assert "Did you mean 'math-tiny'" in str(exc_info.value)
    assert all(name in str(exc_info.value) for name in recipe_names())
    with pytest.raises(UserError) as exc_info:
        resolve_train(["recipe=nothing-like-it"])
    assert str(exc_info.value).count("textcraft-smollm2-gpu") == 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.n=4", "Did you mean 'actor_rollout_ref.rollout.n'?"),
        ("clip_ratio=0.1", "Did you mean 'actor_rollout_ref.actor.clip_ratio'?"),
        ("grad_clip=1", "Which one: actor_rollout_ref.actor.grad_clip, critic.grad_clip?"),
        ("trainer.toal_epochs=1", "Did you mean 'trainer.total_epochs'?"),
        ("trainer.foo_bar=3", "`--dry-run` prints every key, and docs/config.md says what they mean."),
        ("actor_rollout_ref.rolout.name=vllm", "Did you mean 'actor_rollout_ref.rollout.name'?"),
        ("actor_rollout_ref.actor.optim.wieght_decay=0", "Did you mean 'actor_rollout_ref.actor.optim.weight_decay'?"),
        ("trainr.total_epochs=1", "Did you mean 'trainer.total_epochs'?"),
        ("rollout.max_num_sqs=4", "Did you mean 'actor_rollout_ref.rollout.max_num_seqs'?"),
        ("qqq=1", "docs/config.md says what they mean."),
    ],
)
def test_the_end_of_a_key_gets_the_whole_key_and_no_hint_lists_them_all(override: str, message: str) -> None:
    with pytest.raises(UserError) as exc_info:
        resolve_train([override])
    assert str(exc_info.value).endswith(message)
    assert len(str(exc_info.value)) < 150


def test_recipes_are_found_from_any_folder(tmp_path: Path) -> None:
    code = "from practicum.config.resolve import resolve_train; print(resolve_train(['recipe=gsm8k']).config.trainer)"
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "test_gsm8k" in shown.stdout


def test_a_response_format_in_a_recipe_is_a_mapping_that_the_command_line_replaces(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text(
        "agent:\n  response_format:\n    type: regex\n    regex: 'a [0-9]{1,2}'\n"
        "  roles:\n    judge:\n      response_format: {type: choice, choice: [good, bad]}\n"
    )
    config = read_overrides(TrainConfig, [f"recipe={recipe}"]).config
    assert config.agent.response_format == {"type": "regex", "regex": "a [0-9]{1,2}"}
    assert config.agent.roles["judge"].response_format == {"type": "choice", "choice": ["good", "bad"]}
    config = read_overrides(TrainConfig, [f"recipe={recipe}", "agent.response_format={type: json_object}"]).config
    assert config.agent.response_format == {"type": "json_object"}
    assert (
        read_overrides(TrainConfig, [f"recipe={recipe}", "agent.response_format=null"]).config.agent.response_format
        is None
    )


def test_recipes_are_package_data() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "recipes/*.yaml" in project["tool"]["setuptools"]["package-data"]["practicum"]
    assert RECIPES.parent.name == "practicum"


# -- what a dry run prints --------------------------------------------------------------------


def lines_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Source by the last name of a key, and the text itself under ''."""
    assert main([*arguments, "--dry-run"]) == 0
    text = capsys.readouterr().out
    sources = {line.split(":")[0].strip(): line.partition("  # ")[2] for line in text.splitlines() if "  # " in line}
    return {**sources, "": text}


def test_a_dry_run_says_where_every_value_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    shown = lines_of(["train", "recipe=math-tiny", "agent.environment_args.levels=[1]", f"{ROLLOUT}n=4", CPU], capsys)
    assert shown["num_chains"] == "command line"
    assert shown["max_turns"] == "recipe math-tiny"
    assert shown["levels"] == "command line"
    assert shown["critic_warmup"] == "default"
    assert lines_of(["train", CPU], capsys)["total_training_steps"] == "model"
    config = resolve_train(["recipe=math-tiny", "agent.environment_args.levels=[1]", f"{ROLLOUT}n=4", CPU]).config
    tree = yaml.safe_load(shown[""])
    assert tree["agent"]["num_chains"] == config.agent.num_chains == 4
    assert tree["agent"]["environment_args"] == {"levels": [1]}
    assert tree["actor_rollout_ref"]["actor"]["optim"]["lr"] == config.actor_rollout_ref.actor.optim.lr


@pytest.mark.parametrize(
    "arguments",
    [["train", CPU], ["sft", "--lr", "1e-4"], ["dpo", "model.path=smollm2"], ["pipeline", "recipe=affine-tiny"]],
)
def test_a_dry_run_fits_a_terminal_and_is_yaml(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shown = lines_of(arguments, capsys)
    configuration = shown[""].partition("# derived")[0]
    assert set(shown.values()) & {"default", "model", "command line", "recipe affine-tiny"}
    assert yaml.safe_load(configuration)
    long = [line for line in configuration.splitlines() if len(line) > 80 and "[" not in line and "{" not in line]
    assert long == []

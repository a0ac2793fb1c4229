"""What a newcomer meets: folders of runs, task files, warnings, help texts."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from practicum.cli import quickstart
from practicum.cli.main import main
from practicum.config.overrides import quote, to_yaml
from practicum.config.resolve import resolve_train
from practicum.config.train import TrainConfig
from practicum.errors import UserError
from practicum.models import loader, lora
from practicum.training import build
from practicum.training.checkpoint import check_continuation, keep_stored_defaults
from practicum.training.settings import run_folder
from practicum.utils.terminal import Progress

CPU = "trainer.device=cpu"


class NotedProgress(Progress):
    """A progress line that keeps all notes that it had."""

    notes: ClassVar[list[str]] = []

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "note":
            self.notes.append(str(value))


def test_files_of_tasks_may_be_lists_and_parquet_and_shared_tasks_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the progress line says what is being done: a validation comes before the first episode."""
    import pyarrow
    from pyarrow import parquet

    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(6)]
    parquet.write_table(pyarrow.Table.from_pylist(rows[:3]), tmp_path / "one.parquet")
    (tmp_path / "two.json").write_text(json.dumps(rows[3:]))
    (tmp_path / "val.json").write_text(json.dumps([{**rows[0], "id": "v0"}, {**rows[4], "id": "v1"},
                                                   {"question": "What is 9 + 9?", "answer": "18"}]))  # fmt: skip
    command = ["train", f"data.train_files=[{tmp_path}/one.parquet,{tmp_path}/two.json]", "agent.environment=math",
               f"data.val_files={tmp_path}/val.json", "data.train_batch_size=2", "agent.num_chains=2",
               "agent.max_turns=1", "actor_rollout_ref.rollout.response_length=4", "data.val_batch_size=3",
               "trainer.total_epochs=1", "trainer.total_training_steps=1", CPU, "algorithm.adv_estimator=grpo",
               f"trainer.default_local_dir={tmp_path}", "trainer.experiment_name=run"]  # fmt: skip
    monkeypatch.setattr(build, "Progress", NotedProgress)
    NotedProgress.notes.clear()
    assert main(command) == 0, capsys.readouterr().err
    notes = list(dict.fromkeys(filter(None, NotedProgress.notes)))
    assert notes[0].startswith("validation: ")
    assert notes[0].endswith("/3 tasks")
    assert {"rolling out", "updating the policy"} <= set(notes)
    assert "Warning: 2 of 3 validation tasks are training tasks too" in capsys.readouterr().out
    run = tmp_path / "practicum" / "run"
    assert len((run / "train_tasks.txt").read_text().split()) == 6
    evaluate = ["eval", "--env", "math", "--data", str(tmp_path / "two.json"), "--policy", str(run), "--split", "test",
                "--max-tokens", "4", "--max-turns", "1"]  # fmt: skip
    assert main(evaluate) == 0
    assert "3 of 3 tasks of the panel are training tasks of" in capsys.readouterr().err


def test_task_files_that_are_no_paths_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "--dry-run", "data.train_files={a: 1}", "trainer.val_before_train=false",
               "agent.reward_name=math_reward"]  # fmt: skip
    assert main(command) == 2
    assert "the path of a file or a list of paths" in capsys.readouterr().err


def test_other_trainings_have_other_folders_and_the_same_one_its_own() -> None:
    def folder(*overrides: str) -> Path:
        return run_folder(resolve_train([CPU, *overrides]).config)

    assert folder() == folder() == folder("trainer.total_training_steps=99")  # it goes on
    assert folder("actor_rollout_ref.model.path=tiny") == folder()
    others = [folder("trainer.seed=1"), folder("algorithm.adv_estimator=grpo"), folder("recipe=math-tiny")]
    assert len({folder(), *others}) == 4
    assert folder().name.startswith("math-gae-tiny-")


def test_a_run_goes_on_whether_tiny_is_named_or_not_and_with_keys_that_are_new(tmp_path: Path) -> None:
    config = resolve_train([CPU, "trainer.experiment_name=run"]).config
    text = to_yaml(config).replace("  vf_coef: 0.5\n", "")  # a key from after that run began
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    for same in ([], ["actor_rollout_ref.model.path=tiny"], ["agent.model_name_or_path=tiny"]):
        check_continuation(resolve_train([CPU, "trainer.experiment_name=run", *same]).config, tmp_path)
    with pytest.raises(UserError, match="holds a run with actor_rollout_ref.model.path=tiny, not smollm2"):
        check_continuation(
            resolve_train([CPU, "trainer.experiment_name=run", "actor_rollout_ref.model.path=smollm2"]).config, tmp_path
        )


def test_a_run_from_before_tiny_had_defaults_goes_on_with_those_it_has(tmp_path: Path) -> None:
    old = TrainConfig()
    old.trainer.experiment_name, old.trainer.device, old.trainer.total_training_steps = "run", "cpu", 5
    (tmp_path / "config.yaml").write_text(to_yaml(old))
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    resolved = resolve_train([CPU, "trainer.experiment_name=run"])
    assert resolved.config.agent.num_chains != old.agent.num_chains
    keep_stored_defaults(resolved, tmp_path)
    check_continuation(resolved.config, tmp_path)
    assert resolved.config.agent.num_chains == old.agent.num_chains


def test_the_second_quickstart_has_a_folder_of_its_own(tmp_path: Path) -> None:
    first = tmp_path / "quickstart-0"
    assert quickstart.free_folder(first) == first
    first.mkdir()
    assert quickstart.free_folder(first) == first  # not finished: it begins again
    (first / "summary.json").write_text("{}")
    assert quickstart.free_folder(first) == tmp_path / "quickstart-0-2"


def test_the_rate_of_a_resumed_job_counts_what_this_process_did() -> None:
    line = Progress("train", 1000, stream=io.StringIO(), shown=False)
    line.done = 900
    with line:
        assert "left" not in line.status()
        line.advance(1)
        line.started -= 10
        assert "0.1/s  16:3" in line.status()


def test_without_peft_an_adapter_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"pip install 'practicum\[lora\]', or train all weights"):
        lora.add_adapter(loader.load("tiny"), lora.LoRASettings(4))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", ["example:", "math-tiny", "--dry-run` prints every key"]),
        ("sft", ["example:", "(training.learning_rate, default: 2e-05)", "docs/config.md"]),
        ("dpo", ["(training.beta, default: 0.1)"]),
        ("pipeline", ["example:", "affine-tiny"]),
        ("collect", ["example:", "(default: expert)", "(default: runs)", "--deadline"]),
        ("eval", ["example:", "(default: 256)"]),
        ("show", ["--color"]),
    ],
)
def test_help_has_defaults_keys_recipes_and_an_example(
    command: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for word in words:
        assert " ".join(word.split()) in shown


def test_show_lists_the_episodes_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["collect", "--env", "math", "--tasks", "3", "--out", str(tmp_path), "--deadline", "step=30"]
    assert main(command) == 0
    capsys.readouterr()
    assert main(["show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("__attempt_0.jsonl") == 4  # three episodes, and the command that prints one
    assert "success" in shown
    assert main(["show", str(tmp_path / "collect" / "nothing")]) == 2
    assert main(["collect", "--env", "math", "--deadline", "steps=30"]) == 2
    assert "Did you mean 'step'" in capsys.readouterr().err


@pytest.mark.parametrize("text", [r"a\b", r"a\\b", "it's", r"end\ ".strip(), "a,b=[c]"])
def test_a_flags_value_reaches_its_key_unchanged(text: str) -> None:
    assert resolve_train([f"data.from_trajectories={quote(text)}"]).config.data.from_trajectories == text

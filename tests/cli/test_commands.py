"""Commands as a person types them, with right and wrong input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.data.episode_times import TIMING_FILE
from practicum.data.store import read_episode
from practicum.registry import ENVIRONMENTS


def episodes(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*__attempt_*.jsonl"))


STEPS = "trainer.total_training_steps=2"
PLAINLY = ["--full", "--epochs", "1", "training.gradient_accumulation_steps=1", "training.bf16=false", "--lr", "1e-3"]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    code = main(
        [
            "collect",
            "--env",
            "math",
            "--policy",
            "expert",
            "--tasks",
            "12",
            "--rollouts-per-task",
            "2",
            "--out",
            str(out),
        ]
    )
    assert code == 0
    return out


def test_collect_writes_one_file_an_episode(collected: Path) -> None:
    files = episodes(collected)
    assert len(files) == 24
    assert files[0].parent == collected / "collect" / "math-expert-train-seed0"
    episode = read_episode(files[0])
    assert episode.outcome.value == "success"
    assert episode.provenance["policy"] == "expert"


def test_show_colours_what_is_trained(collected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(episodes(collected)[0]), "--colour", "always"]) == 0
    shown = capsys.readouterr().out
    assert '\x1b[1;32m<tool_call>{"name": "calculator"' in shown
    assert main(["show", str(episodes(collected)[0])]) == 0
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    assert '⟦<tool_call>{"name": "calculator"' in plain


def test_show_disarms_control_characters(collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = episodes(collected)[0]
    hostile = tmp_path / path.name
    hostile.write_bytes(path.read_bytes().replace(b'"error":null}\n', b'"error":"\\u001b[2Jboo"}\n', 99))
    assert main(["show", str(hostile)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\\x1b[2Jboo" in shown


def test_sft_then_eval_then_train(collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sft"
    assert main(["sft", "--episodes", str(collected), "--out", str(out), "--batch-size", "4", *PLAINLY]) == 0
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 6
    model = str(out / "model")
    result = tmp_path / "eval.json"
    arguments = ["eval", "--env", "math", "--policy", model, "--tasks", "8", "--max-tokens", "16", "--out", str(result)]
    assert main(arguments) == 0
    assert "success 0.0 % [0.0, " in capsys.readouterr().out
    record = json.loads(result.read_text())
    assert record["n"] == 8
    assert len(record["panel"]) == 16
    code = main(["train", f"actor_rollout_ref.model.path={model}", "agent.max_tokens_per_turn=12", "agent.num_chains=2",
                 "data.train_batch_size=2", "data.val_batch_size=4", "trainer.total_training_steps=2",
                 f"trainer.default_local_dir={tmp_path}", "trainer.experiment_name=run",
                 "trainer.test_freq=1", "trainer.save_freq=1"])  # fmt: skip
    assert code == 0
    lines = (tmp_path / "practicum" / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]
    assert "val/success/mean" in json.loads(lines[0])
    assert (tmp_path / "practicum" / "run" / "model" / "model.safetensors").exists()
    assert (tmp_path / "practicum" / "run" / "global_step_1" / "actor" / "config.json").exists()


def test_nothing_is_overwritten(collected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "--env", "math", "--tasks", "2", "--out", str(collected)]) == 2
    assert "already holds episodes" in capsys.readouterr().err


def test_tokens_of_another_model_are_refused(
    collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for path in episodes(collected)[:2]:
        text = path.read_text().replace('"tokenizer":"', '"tokenizer":"x')
        (foreign / path.name).write_text(text)
    assert main(["sft", "--episodes", str(foreign), "--out", str(tmp_path / "out")]) == 2
    assert "holds tokens of" in capsys.readouterr().err


def test_dry_run_prints_the_derived_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--dry-run", "agent.num_chains=4", "data.train_batch_size=3"]) == 0
    shown = capsys.readouterr().out
    assert "episodes per step: 12 (3 tasks × 4 chains)" in shown
    assert "num_chains: 4" in shown


def test_envs_lists_every_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ENVIRONMENTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["colect"], "Unknown command 'colect'. Did you mean 'collect'?"),
        (["collect", "--env", "maths"], "Unknown environment 'maths'. Did you mean 'math'?"),
        (["collect", "--env", "math", "--policy", "./none"], "There is no folder './none'"),
        (
            ["collect", "--env", "math", "--tools", "calculater"],
            "Unknown tool 'calculater'. Did you mean 'calculator'?",
        ),
        (
            ["collect", "--env", "math", "--reward", "math_rewrd"],
            "Unknown reward 'math_rewrd'. Did you mean 'math_reward'?",
        ),
        (["collect", "--env", "math", "--format", "reakt"], "has the formats hf, react, not 'reakt'"),
        (["collect", "--env", "math", "--env-arg", "levls=[1]"], "has no option 'levls'"),
        (["collect", "--env", "math", "--env-arg", "levels"], "write KEY=VALUE"),
        (["collect", "--env", "agentgym:textcraft", "--tools", "calculator"], "has no option 'tools'"),
        (["collect", "--env", "math", "--temperature", "-1", "--policy", "tiny"], "--temperature must be 0 or more"),
        (["collect", "--env", "math", "--temperature", "nan"], "--temperature must be 0 or more, and finite"),
        (["eval", "--env", "math", "--temperature", "inf"], "--temperature must be 0 or more, and finite"),
        (["eval", "--env", "math", "--top-p", "nan"], "--top-p must be above 0"),
        (["envs", "serve", "agentgym:textcraft", "--port", "99999"], "--port 99999: a port lies between 0 and 65535"),
        (["envs", "serve", "agentgym:textcraft", "--port", "-1"], "--port -1: a port lies between"),
        (["sft", "--episodes", ".", "--lr", "nan"], "training.learning_rate=nan is not a finite number"),
        (["sft", "--episodes", ".", "--lr", "-1", "--dry-run"], "training.learning_rate=-1.0: it must be above 0"),
        (["sft", "--episodes", ".", "--warmup", "-3"], "training.warmup_steps=-3: it must be at least 0"),
        (["dpo", "--episodes", ".", "training.max_grad_norm=-1"], "training.max_grad_norm=-1.0: it must be at least 0"),
        (["pipeline"], "recipe=affine-tiny"),
        (["pipeline", "training.max_grad_norm=-1", "--dry-run"], "training.max_grad_norm=-1.0: it must be at least 0"),
        (["pipeline", "evaluation.temperature=nan", "--dry-run"], "evaluation.temperature=nan is not a finite number"),
        (["collect", "--env", "math", "--data", "none.json"], "There is no file 'none.json'"),
        (["eval", "--env", "math", "--policy", "tiny", "--template", "chatm"], "Unknown chat template 'chatm'"),
        (["train", "agent.tool=[calculator]"], "Unknown key 'agent.tool'. Did you mean 'agent.tools'?"),
        (["train", STEPS, "algorithm.adv_estimator=grop"], "Unknown advantage estimator 'grop'"),
        (["train", STEPS, "algorithm.adv_estimator=grpo", "agent.num_chains=1"], "agent.num_chains must be at least 2"),
        (["train", "actor_rollout_ref.rollout.name=vlm"], "Did you mean 'vllm'"),
        (["sft", "training.lora_rank=4"], "Unknown key 'training.lora_rank'"),
        (["sft"], "either data.episodes"),
        (["dpo"], "either data.episodes"),
        (["dpo", "--episodes", "none", "--loss", "dop"], "There is no folder 'none'"),
        (["train", STEPS, "actor_rollout_ref.rollout.temperature=0"], "temperature above 0"),
        (
            ["train", STEPS, "agent.environment=math", "data.train_files=none.json"],
            "There is no file 'none.json'",
        ),
        (["train", STEPS, "actor_rollout_ref.rollout.max_num_seqs=0"], "max_num_seqs=0: it must be at least 1"),
        (["train", "data.train_batch_size=0"], "must be at least 1"),
        (["train", STEPS, "actor_rollout_ref.actor.optim.warmup_style=cosin"], "Did you mean 'cosine'"),
        (["train", STEPS, "actor_rollout_ref.actor.loss_agg_mode=token-men"], "Did you mean 'token-mean'"),
        (["show", "none.jsonl"], "There is no episode at 'none.jsonl'"),
        (["sft", "--episodes", "none", "--out", "x"], "There is no folder 'none'"),
    ],
)
def test_wrong_input_gets_one_sentence_and_leaves_nothing(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("practicum: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [("nonsense", "is not JSON"), ("[]", "is empty"), ('[{"answer": 1}]', "lacks 'question'")],
)
def test_bad_datasets(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data.json"
    data.write_text(text)
    assert main(["train", STEPS, "agent.environment=math", f"data.train_files={data}", f"data.val_files={data}"]) == 2
    assert message in capsys.readouterr().err
    assert main(["collect", "--env", "math", "--data", str(data)]) == 2
    assert list(tmp_path.iterdir()) == [data]


def test_a_corrupt_episode_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x__attempt_0.jsonl"
    path.write_text('{"type":"episode_start"')
    assert main(["show", str(path)]) == 2
    assert "is not a whole episode file" in capsys.readouterr().err


def test_a_really_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Episodes are kept as they come; the one that does not fit says so, and no half of it stays."""
    import errno

    real, count = os.fsync, iter(range(100))

    def fsync(handle: int) -> None:
        if next(count) >= 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    assert main(["collect", "--env", "math", "--tasks", "8", "--out", str(tmp_path)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    left = episodes(tmp_path)
    assert len(left) == 3
    assert {p for p in tmp_path.rglob("*") if p.is_file()} == {*left, left[0].parent / TIMING_FILE}
    for path in left:
        read_episode(path)


RAISING_TOOL = '''
from practicum.tools.base import tool


@tool("calculator")
def calculate(expression: str) -> str:
    """Work it out."""
    return {}["rate"]
'''


def test_the_record_says_where_an_own_tool_raised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(RAISING_TOOL)
    tools = ["--tools", f"{tmp_path / 'mine.py'}:calculate"]
    assert main(["collect", "--env", "math", *tools, "--tasks", "1", "--out", str(tmp_path / "out")]) == 0
    (path,) = episodes(tmp_path / "out")
    first = read_episode(path).turns[0]
    location = f"{tmp_path / 'mine.py'}:8 in calculate"
    assert first.info["tools"] == [{"name": "calculator", "exception": f"KeyError: 'rate' ({location})"}]
    capsys.readouterr()
    assert main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert f"calculator raised KeyError: 'rate' ({location})" in shown
    assert shown.count("mine.py") == len(read_episode(path).turns) - 1  # the agent is not shown it


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "practicum.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("practicum 0.")


def test_help_is_quick_and_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    for command in ("quickstart", "envs", "collect", "sft", "train", "eval", "show"):
        assert command in shown


def test_ctrl_c_stops_cleanly_and_keeps_what_is_finished(tmp_path: Path) -> None:
    command = ["collect", "--env", "math", "--policy", "tiny", "--tasks", "4000", "--max-tokens", "8", "--max-turns",
               "2", "--concurrency", "4"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "practicum.cli", *command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 120
        while len(episodes(tmp_path)) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "practicum: stopped; finished episodes" in errors
    assert "are saved; the same command goes on from there." in errors
    assert "Traceback" not in errors
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert 3 <= len(kept) < 4000
    for path in kept:
        assert read_episode(path).scored

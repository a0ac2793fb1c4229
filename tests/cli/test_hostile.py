"""Data sets that mean harm, or were made by mistake: every command names the line and the field, writes nothing half,
and nothing outside its own folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from practicum.cli.main import main

HUGE = 100 * 10**6
PLAINLY = ["--full", "--epochs", "1", "training.bf16=false", "training.gradient_accumulation_steps=4"]
OFFLINE = ["actor_rollout_ref.actor.kl_loss_coef=0.1", "trainer.total_training_steps=1", "data.train_batch_size=2",
           "trainer.val_before_train=false", "trainer.logger=[]"]  # fmt: skip


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four tasks, solved by the expert and missed by chance."""
    out = tmp_path_factory.mktemp("collected")
    for policy in ("expert", "random"):
        arguments = ["collect", "--env", "math", "--env-arg", "levels=[1]", "--policy", policy, "--tasks", "4",
                     "--out", str(out), "--run-id", policy]  # fmt: skip
        assert main(arguments) == 0
    return out


def file_sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def commands(episodes: Path, out: Path) -> dict[str, list[str]]:
    """What reads episodes, and where each writes."""
    return {
        "sft": ["sft", "--episodes", str(episodes), "--out", str(out), *PLAINLY],
        "dpo": ["dpo", "--episodes", str(episodes), "--out", str(out), *PLAINLY],
        "export": ["export", "--input_dir", str(episodes), "--output_dir", str(out)],
        "train": ["train", "--from-trajectories", str(episodes), f"trainer.default_local_dir={out}", *OFFLINE],
    }


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new, 1)


HARM: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a missing field": (replaced(b'"reply":', b'"replay":'), "line 2 lacks 'reply'"),
    "a missing step": (replaced(b'{"type":"step","index":0', b'{"type":"step","index":5'), "not a whole episode"),
    "not UTF-8": (replaced(b'"reply":"', b'"reply":"\xff\xfe'), "line 2 is not UTF-8 text (byte "),
    "half a file": (lambda data: data[: len(data) // 2], "the file is cut short"),
    "ids that are none": (replaced(b'"ids":[', b'"ids":[-1,'), "line 2: 'spans' is not what an episode has there"),
    "a reward that is none": (replaced(b'"reward":', b'"reward":NaN,"was":'), "'reward' is not what an episode has"),
    "another task": (replaced(b'"question":"', b'"question":"!'), "does not match its hash"),
}


@pytest.mark.parametrize("command", ["sft", "dpo", "export", "train"])
@pytest.mark.parametrize("harm", list(HARM))
def test_a_bad_episode(
    harm: str, command: str, collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(collected, folder)
    path = sorted(folder.rglob("expert/*__attempt_*.jsonl"))[-1]
    change, message = HARM[harm]
    path.write_bytes(change(path.read_bytes()))
    before = file_sizes(tmp_path)
    assert main(commands(folder, out)[command]) == 2
    (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("practicum: ")]
    assert f"'{path}'" in line
    assert message in line
    assert file_sizes(tmp_path) == before


@pytest.mark.parametrize("command", ["sft", "dpo", "train"])
def test_held_out_tasks_are_not_trained_on(
    command: str, collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    shutil.copytree(collected, folder)
    for path in folder.rglob("*__attempt_*.jsonl"):
        if "-2__" in path.name or "-3__" in path.name:
            path.write_bytes(path.read_bytes().replace(b'"split":"train"', b'"split":"test"'))
    assert main(commands(folder, tmp_path / "out")[command]) == 0
    message, key = "4 episodes of held-out tasks (test) are left out", "data.include_held_out=true"
    assert (message if command == "train" else f"{message}; {key} takes them") in capsys.readouterr().out
    if command != "train":
        assert main([*commands(folder, tmp_path / "all")[command], key]) == 0
        assert "left out" not in capsys.readouterr().out
    for path in folder.rglob("*__attempt_*.jsonl"):
        path.write_bytes(path.read_bytes().replace(b'"split":"train"', b'"split":"val"'))
    assert main(commands(folder, tmp_path / "none")[command]) == 2
    assert "there are only 8 episodes of held-out tasks (test, val)" in capsys.readouterr().err


def test_one_empty_reply_does_not_block_sft_on_a_folder(
    collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(collected, folder)
    path = sorted(folder.rglob("expert/*__attempt_*.jsonl"))[-1]
    path.write_bytes(path.read_bytes().replace(b'"reply":"', b'"reply":" ","was":"', 1))
    assert main(commands(folder, out)["sft"]) == 0
    assert "1 episodes with an empty reply are left out" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["sft", "dpo"])
def test_token_ids_beyond_the_vocabulary_are_one_sentence(
    command: str, collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(collected, folder)
    for path in folder.rglob("*__attempt_*.jsonl"):
        path.write_bytes(path.read_bytes().replace(b'"ids":[', b'"ids":[999999,', 1))
    assert main(commands(folder, out)[command]) == 2
    assert "holds tokens of" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["export"])
def test_an_action_that_is_empty(
    command: str, collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(collected, folder)
    path = sorted(folder.rglob("expert/*__attempt_*.jsonl"))[-1]
    path.write_bytes(path.read_bytes().replace(b'"reply":"', b'"reply":" ","was":"', 1))
    assert main(commands(folder, out)[command]) == 2
    assert f"'{path}', line 2: 'reply' is empty" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("command", ["sft", "dpo", "export", "train"])
def test_a_line_of_a_hundred_megabytes(
    command: str, collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(collected, folder)
    path = sorted(folder.rglob("expert/*__attempt_*.jsonl"))[-1]
    data = path.read_bytes()
    middle = data.index(b'"reply":"') + len(b'"reply":"')
    with path.open("wb") as file:
        file.write(data[:middle])
        for _ in range(100):
            file.write(b"x" * (HUGE // 100))
        file.write(data[middle:])
    assert main(commands(folder, out)[command]) == 2
    assert f"'{path}', line 2 has more than 64 MiB" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("command", ["sft", "dpo", "export", "train"])
def test_a_path_as_task_id(command: str, collected: Path, tmp_path: Path) -> None:
    """The whole way, from a registry to a trained model: all that is written lies where it was asked for."""
    registry, folder, out = tmp_path / "tasks.json", tmp_path / "deep" / "er" / "in", tmp_path / "deep" / "out"
    stories = [f"Ann has {n} apples. She buys 2 apples. How many apples does Ann have now?" for n in (3, 4)]
    tasks = [
        {"id": name, "fields": {"question": text, "answer": str(n + 2), "steps": [f"{n}+2"]}}
        for n, (name, text) in enumerate(zip(("../../x", "/etc/cron.d/x"), stories, strict=True), 3)
    ]
    registry.write_text(json.dumps(tasks))
    for policy in ("expert", "random"):
        arguments = ["collect", "--env", "math", "--task_registry", str(registry), "--policy", policy,
                     "--out", str(folder), "--run-id", policy]  # fmt: skip
        assert main(arguments) == 0
    before = file_sizes(tmp_path)
    assert all(name.startswith(("tasks.json", "deep/er/in/collect/")) for name in before)
    assert main(commands(folder, out)[command]) == 0
    result = set(file_sizes(tmp_path)) - set(before)
    assert result
    assert all(name.startswith("deep/out/") for name in result)
    assert not Path("/etc/cron.d/x").exists()


ROW = {"prompt": "2+2?", "chosen": "4", "rejected": "5", "task_id": "../../x", "site_id": "s", "state_key": "/etc/k"}


def row(**changed: Any) -> bytes:
    return json.dumps({k: v for k, v in {**ROW, **changed}.items() if v is not None}).encode() + b"\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (row(chosen="  "), "line 2: 'chosen' must be a text that is not empty"),
        (row(rejected=7), "line 2: 'rejected' must be a text that is not empty"),
        (row(rejected=None), "line 2 lacks 'rejected' (it has: prompt, chosen, task_id"),
        (row(chosen="5"), "row 2: 'chosen' and 'rejected' are the same text"),
        (row().replace(b"2+2?", b"\xff"), "line 2 is not UTF-8 text (byte 12)"),
        (b"[" * 100_000 + b"\n", "line 2 is not JSON"),
        (b'["a list"]\n', "line 2: expected an object, found list"),
        (row(prompt="x" * HUGE), "line 2 has more than 64 MiB"),
    ],
)
def test_bad_rows_of_pairs(line: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "dpo.jsonl", tmp_path / "out"
    path.write_bytes(row() + line)
    assert main(["dpo", "--dataset_path", str(path), "--out", str(out), *PLAINLY]) == 2
    assert f"'{path}', {message}" in capsys.readouterr().err
    assert not out.exists()


def test_rows_whose_names_are_paths_train_and_write_in_their_folder(tmp_path: Path) -> None:
    path, out = tmp_path / "dpo.jsonl", tmp_path / "deep" / "out"
    path.write_bytes(row() + row(chosen="four"))
    assert main(["dpo", "--dataset_path", str(path), "--out", str(out), *PLAINLY]) == 0
    assert all(name.startswith("deep/out/") or name == "dpo.jsonl" for name in file_sizes(tmp_path))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'[{"id": "a", "question": "\xff"}]', "is not UTF-8 text (byte 26)"),
        (b'[{"question": "What is 2 + 2?", "answer": 4}]', "task 0 lacks 'id' (it has: question, answer)"),
        (b'[{"id": "", "question": "?"}]', "task 0 lacks 'id'"),
        (b"[" * 100_000, "is not JSON"),
        (b'\n[{"id": "a", "question": "' + b"x" * HUGE + b'"}]', "line 2 has more than 64 MiB"),
    ],
    ids=["not UTF-8", "no id", "an empty id", "too deep", "a hundred megabytes"],
)
def test_bad_task_registries(data: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "tasks.json", tmp_path / "out"
    path.write_bytes(data)
    assert main(["collect", "--env", "math", "--task_registry", str(path), "--out", str(out)]) == 2
    output = capsys.readouterr().err
    assert str(path) in output
    assert message in output
    assert not out.exists()

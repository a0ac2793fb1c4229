"""`practicum export` as a person types it, with right and wrong input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from practicum.chat.renderer import Renderer
from practicum.cli.main import main
from practicum.data import jsonl
from practicum.data.export import BC_FIELDS, DPO_FIELDS
from practicum.data.state_index import prompt_ids
from practicum.data.store import read_episodes
from practicum.models import loader
from practicum.training.preference_pairs import pairs_from_rows


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four tasks of a crafting world, solved once by the expert and missed three times by chance."""
    out = tmp_path_factory.mktemp("runs")
    for policy, each in (("expert", "1"), ("random", "3")):
        arguments = ["collect", "--env", "agentgym:textcraft", "--policy", policy, "--tasks", "4", "--max-turns", "12",
                     "--rollouts_per_task", each, "--out", str(out)]  # fmt: skip
        assert main(arguments) == 0
    return out


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_papers_command(collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(collected)
    out = tmp_path / "data" / "datasets"
    assert main(["export", "--input_dir", str(collected), "--output_dir", str(out), "--format", "all"]) == 0
    assert sorted(tree(tmp_path)) == ["data/datasets/bc.jsonl", "data/datasets/dpo.jsonl", "data/datasets/sft.jsonl"]
    bc, dpo, sft = (read(out / f"{name}.jsonl") for name in ("bc", "dpo", "sft"))
    assert f"16 episodes: {len(bc)} rows in bc.jsonl, {len(dpo)} rows in dpo.jsonl, 4 rows" in capsys.readouterr().out
    assert {tuple(row) for row in bc} == {BC_FIELDS}
    assert {tuple(row) for row in dpo} == {DPO_FIELDS}
    assert dpo
    assert {row["action_source"] for row in bc} == {"expert"}  # nothing else succeeded
    episodes = [e for e in read_episodes(collected) if e.outcome.value == "success"]
    assert len(bc) == sum(len(episode.turns) for episode in episodes)
    assert [m["train"] for m in sft[0]["messages"]] == [m["role"] == "assistant" for m in sft[0]["messages"]]
    renderer = Renderer(loader.load_tokenizer("tiny"))
    requests = {(e.task.id, number + 1): prompt_ids(e, number) for e in episodes for number in range(len(e.turns))}
    for row in bc[::3]:  # what is trained from rows is what was served
        ids = tuple(renderer.tokenizer(row["prompt"], add_special_tokens=False)["input_ids"])
        assert ids == requests[row["task_id"], row["step_idx"]]
    assert len(pairs_from_rows(jsonl.read_rows(out / "dpo.jsonl", DPO_FIELDS[:3]), renderer)) == len(dpo)
    assert tree(collected) == before


def test_strategies_shares_and_dry_runs(collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["export", "--input_dir", str(collected), "--output_dir", str(tmp_path), "--prompt", "plain"]
    assert main([*base, "--pairing_strategy", "progress_ranked", "--top_percent", "0.2", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "pairs compare replies given in different states" in shown
    assert "nothing written" in shown
    assert list(tmp_path.iterdir()) == []
    counts = {}
    for strategy in ("default", "same_state", "progress_ranked"):
        assert main([*base, "--pairing_strategy", strategy, "--format", "dpo"]) == 0
        pairs = read(tmp_path / "dpo.jsonl")
        assert all(row["state_key"].startswith(f"{strategy}_textcraft-") for row in pairs)
        assert all(row["chosen"] != row["rejected"] for row in pairs)
        counts[strategy] = len(pairs)
    assert counts["progress_ranked"] > counts["same_state"] > 0
    assert [p.name for p in tmp_path.iterdir()] == ["dpo.jsonl"]
    assert main([*base, "--format", "bc", "--include-failed"]) == 0
    assert {row["action_source"] for row in read(tmp_path / "bc.jsonl")} == {"expert", "random"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top_percent", "0"], "--top_percent is a share"),
        (["--input_dir", "none"], "There is no folder 'none'"),
        (["--tokenizer", "tinny"], "Unknown model 'tinny'. Did you mean 'tiny'?"),
    ],
)
def test_wrong_input(
    arguments: list[str], message: str, collected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["export", "--input_dir", str(collected), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"reply":"', b'"reply":"","was":"', "line 2: 'reply' is empty, so there is no action"),
        (b'"reply":', b'"replay":', "line 2 lacks 'reply'"),
        (b'"reply":"', b'"reply":"\xff', "line 2 is not UTF-8 text"),
        (b'"reply":"', b'"reply":"' + b"x" * 3_000_000, "line 2 has more than 2 MiB"),
        (b'{"type":"step"', b'{"type":', "line 2 is not JSON"),
    ],
)
def test_a_bad_episode_is_named_and_nothing_is_written(
    old: bytes, new: bytes, message: str, collected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 2 * 2**20)
    broken = tmp_path / "in"
    shutil.copytree(collected, broken)
    path = sorted(broken.rglob("*__attempt_*.jsonl"))[-1]
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    out = tmp_path / "out"
    assert main(["export", "--input_dir", str(broken), "--output_dir", str(out)]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("practicum: ")]
    assert len(lines) == 1
    assert f"'{path}'" in lines[0]
    assert message in lines[0]
    assert not out.exists()


def test_empty_actions_can_be_passed_over(collected: Path, tmp_path: Path) -> None:
    broken = tmp_path / "in"
    shutil.copytree(collected, broken)
    path = sorted(broken.rglob("*expert*/*__attempt_0.jsonl"))[0]
    path.write_bytes(path.read_bytes().replace(b'"reply":"', b'"reply":"","was":"', 1))
    base = ["export", "--output_dir", str(tmp_path), "--prompt", "plain"]
    assert main([*base, "--input_dir", str(broken), "--skip-empty"]) == 0
    assert len(read(tmp_path / "sft.jsonl")) == 3
    less = len(read(tmp_path / "bc.jsonl"))
    assert main([*base, "--input_dir", str(collected)]) == 0
    assert len(read(tmp_path / "bc.jsonl")) == less + 1
    assert all(row["action"] for row in read(tmp_path / "bc.jsonl"))


def test_a_folder_without_anything_to_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--input_dir", str(tmp_path), "--output_dir", str(tmp_path / "out")]) == 2
    assert "There is no episode below" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_task_ids_that_are_paths_write_nothing_elsewhere(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps([{"id": "../../evil", "question": "What is 2 + 2?", "answer": 4}]))
    runs, out = tmp_path / "runs", tmp_path / "out"
    assert main(["collect", "--env", "math", "--data", str(tasks), "--policy", "null", "--out", str(runs)]) == 0
    before = set(tree(tmp_path))
    assert main(["export", "--input_dir", str(runs), "--output_dir", str(out), "--include-failed"]) == 0
    assert set(tree(tmp_path)) - before == {"out/bc.jsonl", "out/dpo.jsonl", "out/sft.jsonl"}
    assert read(out / "bc.jsonl")[0]["task_id"] == "../../evil"


def test_held_out_tasks_are_left_out(collected: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    shutil.copytree(collected, runs)
    examined = ["collect", "--env", "agentgym:textcraft", "--tasks", "2", "--max-turns", "12", "--split", "test"]
    assert main([*examined, "--out", str(runs), "--run-id", "examined"]) == 0
    base = ["export", "--input_dir", str(runs), "--output_dir", str(out), "--prompt", "plain", "--format", "sft"]
    capsys.readouterr()
    assert main(base) == 0
    shown = capsys.readouterr().out
    assert "2 episodes of held-out tasks (test) are left out; --include-held-out takes them" in shown
    assert "16 episodes: 4 rows in sft.jsonl" in shown
    assert main([*base, "--include_held_out"]) == 0
    assert "18 episodes: 6 rows in sft.jsonl" in capsys.readouterr().out
    base[2] = str(runs / "collect" / "examined")
    assert main(base) == 2
    assert "there are only 2 episodes of held-out tasks (test)" in capsys.readouterr().err

"""What models and strangers wrote, on a terminal: shown as escapes, cut where it is long, refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from practicum.cli.main import main
from practicum.data import store
from practicum.utils.terminal import INVISIBLE
from tests.report.report_files import HOSTILE_TEXTS, make_episode, write_damaged_episodes, write_hostile_episodes


def harmless(text: str) -> None:
    results = INVISIBLE.search(text)
    assert results is None, f"{results!a} in what was printed"
    text.encode()  # no half characters either


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    (line,) = [line for line in shown.err.splitlines() if line.startswith("practicum: ")]
    return line


def test_show(tmp_path: Path, tokenizer: PreTrainedTokenizerBase, capsys: pytest.CaptureFixture[str]) -> None:
    for name, path in write_hostile_episodes(tmp_path, tokenizer).items():
        assert main(["show", str(path), "--logprobs"]) == 0, name
        shown = capsys.readouterr().out
        harmless(shown)
        assert len(shown) < 200_000, name
    for name, path in write_damaged_episodes(tmp_path, tokenizer).items():
        assert main(["show", str(path)]) == 2, name
        assert "is not a whole episode file" in sentence(capsys)


def test_show_of_a_long_turn_with_tokens(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store.write_episode(tmp_path, make_episode("long", 0, 1.0, tokenizer, "seven \x1b[2J " * 80_000))
    assert path.stat().st_size > 1_000_000
    assert main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "characters not shown" in shown
    assert len(shown) < 400_000
    harmless(shown)


def test_show_fetches_nothing_because_a_file_says_so(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, capsys: pytest.CaptureFixture[str]
) -> None:
    named = make_episode("x", 0, 1.0, tokenizer, provenance={"model": "strangers/model\x1b[31m"})
    assert main(["show", str(store.write_episode(tmp_path, named))]) == 2
    line = sentence(capsys)
    assert "is not on this machine; name one with --model" in line
    harmless(line)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("results") / "null.json"
    assert main(["eval", "--env", "math", "--tasks", "8", "--policy", "null", "--out", str(out)]) == 0
    results: dict[str, Any] = json.loads(out.read_bytes())
    return results


def changed(result: dict[str, Any], policy: str, text: str, reward: float) -> dict[str, Any]:
    rows = [
        {**row, "task_id": f"{row['task_id']}{text}", "parts": {text: reward}, "figures": {text: 1.0}, "reward": reward}
        for row in result["individual_results"]
    ]
    rows[0] |= {"outcome": "env_error", "error": text}
    return {**result, "policy": policy + text, "environment": f"math{text}", "individual_results": rows}


@pytest.mark.parametrize("kind", list(HOSTILE_TEXTS))
def test_results(
    kind: str, result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """compare, matrix and report of results whose every text means harm."""
    monkeypatch.chdir(tmp_path)
    for name, reward in (("a", 0.0), ("b", 0.5)):
        Path(f"{name}.json").write_text(json.dumps(changed(result, name, HOSTILE_TEXTS[kind], reward)))
    capsys.readouterr()
    for command in (["compare"], ["compare", "--json", "c.json"], ["compare", "--json", "-"], ["matrix", "--out", "m"]):
        assert main([command[0], "a.json", "b.json", *command[1:]]) == 0
        shown = capsys.readouterr().out
        harmless(shown)
        if "-" not in command:
            assert max(map(len, shown.splitlines())) <= 100
    for path in (Path("c.json"), *Path("m").iterdir()):
        harmless(path.read_text())
    assert main(["report", "a.json", "b.json"]) == 0
    harmless(capsys.readouterr().out)
    Path("c.json").write_text(json.dumps({**changed(result, "c", HOSTILE_TEXTS[kind], 0.0), "panel": "other"}))
    assert main(["compare", "a.json", "c.json"]) == 2
    line = sentence(capsys)
    assert "only results on one panel can be compared" in line
    harmless(line)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"reward": 0.0', '"reward": NaN', "is no number"),
        ('"reward": 0.0', '"reward": 1e999', "is not finite"),
        ('"reward": 0.0', '"reward": ' + "9" * 400, "is damaged"),
        ('"parts": {}', '"parts": {"x": 1e999}', "is not finite"),
        ('"outcome": "failure"', '"outcome": "\\u001b[2J"', "is damaged"),
        ('"attempt": 0', '"attempt": "zero"', "is damaged"),
        ("{", "[" * 100_000, "is not JSON"),
        ("null", "\udcff", "is not JSON"),
    ],
)
def test_damaged_results(
    old: str, new: str, message: str, result: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(result)
    assert old in text
    sound, damaged = tmp_path / "a.json", tmp_path / "b.json"
    sound.write_text(text)
    damaged.write_bytes(text.replace(old, new, 1).encode("utf-8", "surrogateescape"))
    capsys.readouterr()
    for command in ("compare", "matrix"):
        assert main([command, str(sound), str(damaged)]) == 2
        line = sentence(capsys)
        assert message in line
        harmless(line)
    assert main(["report", str(sound), str(damaged), "-o", str(tmp_path / "r.html")]) == 0
    shown = capsys.readouterr().out
    assert "not readable" in shown
    harmless(shown)

"""`eval`, `compare` and `matrix` as a person types them, with right and wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.evaluation.result import read_result

TASKS = ["--env", "math", "--tasks", "12"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """expert.json, random.json and null.json on one panel; other.json on another."""
    out = tmp_path_factory.mktemp("results")
    for policy in ("expert", "random", "null"):
        assert main(["eval", *TASKS, "--policy", policy, "--out", str(out / f"{policy}.json")]) == 0
    assert main(["eval", *TASKS, "--policy", "null", "--seed", "5", "--out", str(out / "other.json")]) == 0
    return out


def fits(text: str) -> None:
    assert max(map(len, text.splitlines())) <= 100


def test_a_result_names_its_panel_and_all_attempts(results: Path) -> None:
    expert, null = read_result(results / "expert.json"), read_result(results / "null.json")
    assert expert.panel == null.panel != read_result(results / "other.json").panel
    assert (expert.success_rate, null.success_rate) == (1.0, 0.0)
    assert len(expert.attempts) == 12
    assert all(attempt.seconds is not None for attempt in expert.attempts)
    record = json.loads((results / "expert.json").read_bytes())
    assert record["aggregated_metrics"]["success_rate"] == 1.0
    assert (results / "expert.run" / "panel.json").is_file()
    assert len(list((results / "expert.run" / "episodes").glob("*__attempt_0.jsonl"))) == 12


def test_eval_goes_on_where_it_stopped(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    command = ["eval", *TASKS, "--policy", "expert", "--out", str(out)]
    assert main(command) == 0
    full = json.loads(out.read_bytes())
    out.unlink()
    gone = sorted((tmp_path / "r.run" / "episodes").glob("*__attempt_*"))[:3]
    for path in gone:
        path.unlink()
    (tmp_path / "r.run" / "episodes" / "collect.json").unlink()
    capsys.readouterr()
    assert main(command) == 0
    assert "0/3 episodes" in capsys.readouterr().err  # only what was missing
    again = json.loads(out.read_bytes())
    clock = ("seconds", "mean_seconds", "median_seconds")
    for record in (full, again):
        for row in (record["aggregated_metrics"], *record["individual_results"]):
            for name in clock:
                row.pop(name, None)
    assert again == full
    assert main([*command, "--max-tokens", "9"]) == 2
    assert "other settings" in capsys.readouterr().err


def test_attempts_can_be_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "--env", "math", "--tasks", "4", "--policy", "random", "--temperature", "1", "--out"]
    assert main([*command, str(tmp_path / "r.json")]) == 0
    capsys.readouterr()
    assert main([*command, str(tmp_path / "r.json"), "-k", "3"]) == 0
    shown = capsys.readouterr()
    assert "0/8 episodes" in shown.err
    assert "4 test tasks × 3 attempts" in shown.out
    assert "pass@3" in shown.out
    assert len(read_result(tmp_path / "r.json").attempts) == 12


def test_a_frozen_panel_is_played_again(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    panel, out = str(results / "other.run" / "panel.json"), Path("r.json")
    assert main(["eval", "--env", "math", "--policy", "expert", "--panel", panel, "--out", str(out)]) == 0
    assert read_result(out).panel == read_result(results / "other.json").panel
    fits(capsys.readouterr().out)
    assert main(["compare", str(results / "other.json"), str(out)]) == 0
    wrong = [
        (["--env", "math", "--tasks", "3"], "leave --tasks out"),
        (["--env", "math", "--max-turns", "3"], "give --max-turns"),
        (["--env", "search"], "is of math"),
    ]
    for extra, message in wrong:
        assert main(["eval", *extra, "--policy", "expert", "--panel", panel]) == 2
        assert message in capsys.readouterr().err


def test_compare_prints_the_papers_table(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "c.json"
    command = ["compare", str(results / "random.json"), str(results / "expert.json"), "--json", str(out)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    fits(shown)
    assert "Metric" in shown
    assert "Baseline  Trained  Improvement" in shown
    assert "=" * 60 in shown
    assert "t-statistic: -inf, p-value: 0.0000 (both samples are constant)" in shown
    assert "'expert' is better than 'random' by 100.0 points" in shown
    assert "Gate: none: 'expert' is a script of the environment" in shown
    record = json.loads(out.read_bytes())
    assert record["comparisons"][0]["gate"] == "withheld"
    assert [cause["question"] for cause in record["comparisons"][0]["causes"]] == [
        "Is the reward misspecified?",
        "Is data short?",
        "Is the baseline near the oracle?",
    ]
    assert main([*command[:-2], "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == record


def test_compare_many_with_an_oracle_and_pictures(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    files = [str(results / f"{name}.json") for name in ("null", "random", "expert")]
    command = ["compare", *files, "--oracle", files[2], "--plots", str(tmp_path / "plots")]
    assert main(command) == 0
    shown = capsys.readouterr().out
    fits(shown)
    assert "No difference shown between 'null' and 'random'" in shown
    assert "The oracle is +100.0 points" in shown
    assert "p (Holm)" in shown
    assert (tmp_path / "plots" / "scores.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "plots" / "differences.png").read_bytes().startswith(b"\x89PNG")


def test_folders_are_policies_over_environments(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for policy in ("null", "expert"):
        folder = tmp_path / policy
        folder.mkdir()
        (folder / "math.json").write_bytes((results / f"{policy}.json").read_bytes())
        gui = ["eval", "--env", "gui", "--tasks", "6", "--policy", policy, "--out", str(folder / "gui.json")]
        assert main(gui) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "null"), str(tmp_path / "expert")]) == 0
    shown = capsys.readouterr().out
    fits(shown)
    assert "Frontier" in shown
    assert "dominated by 1" in shown
    assert main(["compare", str(tmp_path / "null"), str(results / "expert.json")]) == 2
    assert "not evaluated on the same panels (gui)" in capsys.readouterr().err


def test_matrix(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(results / f"{name}.json") for name in ("null", "random", "expert")]
    assert main(["matrix", *files, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    fits(shown)
    assert "Useful" in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["errors.jsonl", "matrix.csv", "matrix.md"]
    assert main(["matrix", *files, "--baseline", "nul"]) == 2
    assert "Did you mean 'null'?" in capsys.readouterr().err


def test_several_environments_are_one_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of results, on panels that the next policy can be held to."""
    monkeypatch.chdir(tmp_path)
    worlds = ["--env", "math", "--env=affine:sat", "--env", "math"]
    first, second = Path("null"), Path("expert")
    assert main(["eval", *worlds, "--tasks", "5", "--policy", "null", "--out", str(first)]) == 0
    shown = capsys.readouterr().out
    fits(shown)
    assert sorted(path.name for path in first.glob("*.json")) == ["affine-sat.json", "math.json"]
    assert "overall: success 0.0 % [0.0, 36.9] (mean of environments)" in shown
    assert main(["eval", *worlds, "--policy", "expert", "--panel", str(first), "--out", str(second)]) == 0
    assert "overall: success 100.0 %" in capsys.readouterr().out
    for name in ("math", "affine-sat"):
        assert read_result(first / f"{name}.json").panel == read_result(second / f"{name}.json").panel
    assert main(["compare", str(first), str(second)]) == 0
    shown = capsys.readouterr().out
    fits(shown)
    assert "Frontier" in shown
    for arguments, message in [
        (["--out", "r.json"], "name a folder"),
        (["--panel", str(first / "math.run" / "panel.json")], "name the folder of another --out"),
        (["--env", "nowhere"], "nowhere"),
    ]:
        assert main(["eval", *worlds, *arguments]) == 2
        assert message in capsys.readouterr().err


def test_matrix_evaluates_modes_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out = Path("m")
    command = ["matrix", "--mode", "null", "--mode", "top=expert", *TASKS, "--out", str(out)]
    assert main(command) == 0
    shown = capsys.readouterr()
    fits(shown.out)
    assert "\ntop   12/12 " in shown.out
    assert read_result(out / "top.json").panel == read_result(out / "null.json").panel
    assert main(command) == 0
    again = capsys.readouterr()
    assert "episodes" not in again.err  # nothing was left to play
    assert again.out == shown.out


def test_nothing_is_played_where_one_of_several_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command, message in [
        (["eval", "--env", "math", "--env", "maths", "--tasks", "3"], "Did you mean 'math'"),
        (["matrix", "--mode", "a=expert", "--mode", "b=nope", "--env", "math", "--tasks", "3"], "'nope'"),
    ]:
        assert main([*command, "--out", "r"]) == 2
        shown = capsys.readouterr()
        assert message in shown.err
        assert shown.out == ""
        assert list(tmp_path.iterdir()) == []


def test_matrix_from_a_file_of_experiments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "experiments.yaml"
    file.write_text(
        "defaults: {env: math, tasks: 50, max_turns: 4}\n"
        "experiments:\n"
        "- {name: idle, policy: 'null', description: does nothing}\n"
        "- {name: able, policy: expert}\n"
        "- {name: other, policy: random}\n"
    )
    command = ["matrix", "--config", str(file), "--experiment", "idle", "--experiment", "able", "--tasks", "6"]
    assert main([*command, "--out", str(tmp_path / "m")]) == 0
    assert "\nidle    6/6 " in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "m").glob("*.json")) == ["able.json", "idle.json"]
    assert read_result(tmp_path / "m" / "able.json").settings["rules"] == {"max_turns": 4}
    for arguments, message in [
        ([*command, "--experiment", "abel", "--out", "m"], "has no experiment 'abel'. Did you mean 'able'?"),
        (["matrix", "--experiment", "able"], "has no experiment 'able'"),
        (["matrix", "--experiment", "able", "--mode", "expert"], "not with both"),
        (["matrix", "--mode", "x=", "--out", "m"], "write NAME=POLICY"),
        (["matrix", "--mode", "runs/x", "--out", "m"], "write NAME=POLICY"),
        (["matrix", "--mode", "a=null", "--mode", "a=expert", "--out", "m"], "Two modes are called 'a'"),
        (["matrix"], "Nothing to compare"),
    ]:
        assert main(arguments) == 2, arguments
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("]", "is not YAML"),
        ("[]", "has no list 'experiments'"),
        ("experiments: [{policy: x}]", "each have a 'name'"),
        ("experiments: [{name: x}]", "has no 'policy' and no 'worker_model'"),
        ("experiments: [{name: x, policy: y, tasks: {a: 1}}]", "'tasks' must be a text, a number"),
        ("{experiments: [{name: x, policy: y}], defaults: 3}", "'defaults' must be a mapping"),
        ("experiments: [{name: x, policy: y}, {name: x, policy: z}]", "two experiments are called 'x'"),
        ("experiments: [{name: x, policy: y, worker_model: z}]", "a 'policy' and a 'worker_model'"),
        ("experiments: [{name: x, policy: y, use_cache: 1}]", "'use_cache' is true or false"),
        ("experiments: [{name: x, mode: z, policy: y}]", "the mode 'z', which is no experiment"),
        ("experiments: [{name: x, worker_model: y, qwen_backend: vlm}]", "Did you mean 'vllm'?"),
        ("experiments: [{name: x, policy: y, headless: false}]", "'headless' is true"),
        ("experiments: [{name: x, policy: y, viewport: [800, 600]}]", "the viewport is 1280 × 720"),
        ("experiments: [{name: x, policy: y, env_args: 3}]", "'env_args' must map"),
        ("{experiments: [{name: x, policy: y}], task_subsets: {a: 3}}", "the subset 'a' is a list"),
        ("{experiments: [{name: x, policy: y}], experiment: 3}", "'experiment' is not 'defaults'"),
    ],
)
def test_a_wrong_file_of_experiments(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "e.yaml").write_text(text)
    assert main(["matrix", "--config", str(tmp_path / "e.yaml"), "--out", str(tmp_path / "m")]) == 2
    assert message in capsys.readouterr().err


def test_wrong_input_gets_one_sentence(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    good, other = str(results / "null.json"), str(results / "other.json")
    corrupt = tmp_path / "corrupt.json"
    corrupt.write_bytes((results / "null.json").read_bytes()[:-40])
    cases = [
        (["compare", good], "at least two results"),
        (["compare", good, good], "is given twice"),
        (["compare", good, other], "only results on one panel can be compared; evaluate again with --panel"),
        (["compare", good, "none.json"], "There is no result 'none.json'"),
        (["compare", good, str(corrupt)], "is not JSON"),
        (["compare", good, str(results / "null.run" / "panel.json")], "is not a result"),
        (["compare", good, str(results / "expert.json"), "--alpha", "5"], "must lie between 0 and 1"),
        (["compare", good, str(results / "expert.json"), "--oracle", other], "only results on one panel"),
        (["matrix", good], "at least two results"),
        (["eval", *TASKS, "--level", "80"], "a level lies between 0 and 1"),
        (["eval", *TASKS, "--out", "result"], "ends in .json"),
        (["eval", *TASKS, "--policy", "."], "holds no model"),
        (["eval", *TASKS, "--panel", "none.json"], "leave --tasks out"),
        (["eval", "--env", "math", "--panel", "none.json"], "Cannot read the panel"),
        (
            ["eval", "--env", "math", "--policy", "tinny", "--out", "x.json"],
            "'tinny'. Did you mean 'tiny'?",
        ),
    ]
    for arguments, message in cases:
        assert main(arguments) == 2, arguments
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("practicum: ")]
        assert len(lines) == 1
        assert message in lines[0]
    assert [path.name for path in tmp_path.iterdir()] == ["corrupt.json"]


def test_an_adapter_is_evaluated_on_its_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft")
    from practicum.models import loader, lora

    loaded = lora.add_adapter(loader.load("tiny"), lora.LoRASettings(4, 8.0))
    loader.save(loaded, tmp_path / "run" / "sft_final")
    command = ["eval", "--env", "math", "--tasks", "2", "--policy", str(tmp_path / "run"), "--max-tokens", "8"]
    assert main([*command, "--out", str(tmp_path / "r.json")]) == 0
    assert "(found sft: " in capsys.readouterr().out
    settings = read_result(tmp_path / "r.json").settings
    assert settings["stage"] == "sft"
    assert settings["policy"].startswith(f"{tmp_path / 'run' / 'sft_final'}@")
    assert settings["base"].endswith(loader.model_folder("tiny").rsplit("/", 1)[-1])

"""Files of experiments in `collect`, `eval` and `matrix`: HALO's own commands, typed as HALO writes them."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.config.experiments import SERVER_BACKENDS, read_experiments
from practicum.errors import UserError
from practicum.evaluation.result import read_result

MODES = (
    "baseline_worker", "worker_gpt4o", "hierarchy_mgr_gate", "hierarchy_vac", "hierarchy_vac_macros", "manager_only",
    "cache_only", "no_recovery", "expert_rollout", "qwen_worker_zero", "qwen_worker_bc", "qwen_worker_dpo",
    "qwen_worker_grpo", "qwen_pure_zero", "qwen_pure_grpo",
)  # fmt: skip
FILE = """
defaults: {env: math, max_steps: 4, use_manager: false, headless: true, viewport: {width: 1280, height: 720}}
experiments:
- {name: idle, policy: 'null', env_args: {levels: [1]}, expected_success: 0-1%, expected_steps: 1-2, notes: nothing}
- {name: able, mode: idle, policy: expert, expected_success: 90-100%}
- {name: managed, policy: expert, use_manager: true}
task_subsets: {easy: [level=1], full: all}
metrics: [success_rate]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("HALO_WORKER_BACKEND", "HALO_VLLM_URL", "HALO_WORKER_MODEL"):
        monkeypatch.delenv(name, raising=False)
    Path("configs").mkdir()
    Path("configs/experiments.yaml").write_text(FILE)
    return tmp_path


def flags(name: str, environ: dict[str, str]) -> dict[str, str]:
    (experiment,) = read_experiments(None).choose([name], environ)
    return dict(zip(experiment.flags[::2], experiment.flags[1::2], strict=True))


def test_the_file_of_the_package_has_the_modes_of_halo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = read_experiments(None)
    assert tuple(file.entries) == MODES
    assert len(file.choose([], {})) == len(MODES)
    assert flags("qwen_worker_bc", {})["--policy"] == "qwen_bc"
    assert flags("qwen_worker_bc", {})["--url"] == "http://localhost:8000/v1"
    assert flags("qwen_worker_bc", {})["--max-turns"] == "70"
    assert flags("baseline_worker", {"HALO_WORKER_MODEL": "x"})["--policy"] == "gpt-4o-mini"
    assert file.subset("shopping") == "omnizon"
    assert file.subset("full") is None
    assert file.subset("v2.gomail-1") == "v2.gomail-1"


def hierarchy(name: str) -> dict[str, object]:
    """The options of the hierarchy and the manager's model of a mode."""
    (experiment,) = read_experiments(None).choose([name], {})
    pairs = list(zip(experiment.flags[::2], experiment.flags[1::2], strict=True))
    options = dict(value.split("=", 1) for flag, value in pairs if flag == "--env-arg")
    parts = ("manager", "manager_calls", "cache", "macros", "recovery")
    results = {part: json.loads(options[part]) for part in parts if part in options}
    return {**results, **{flag: value for flag, value in pairs if flag in ("--role", "--round")}}


def test_modes_are_the_parts_of_the_hierarchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    remote = {"--role": "manager=gpt-4o@https://api.openai.com/v1"}
    assert hierarchy("baseline_worker") == hierarchy("qwen_pure_grpo") == hierarchy("worker_gpt4o") == {}
    assert hierarchy("manager_only") == {"manager": "model", "manager_calls": "warm", **remote}
    assert hierarchy("cache_only") == {"cache": True, "--round": "1"}, "no manager, and so no key for one"
    gate = {"manager": "model", "manager_calls": "gate", "recovery": True, **remote}
    assert hierarchy("hierarchy_mgr_gate") == gate
    full = {**gate, "manager_calls": "warm", "cache": True, "macros": True, "--round": "1"}
    assert hierarchy("hierarchy_vac_macros") == hierarchy("qwen_worker_dpo") == hierarchy("qwen_worker_grpo") == full
    assert hierarchy("no_recovery") == {key: value for key, value in full.items() if key != "recovery"}
    assert hierarchy("expert_rollout") == {**gate, "manager_calls": "always"}
    Path("mine.yaml").write_text(
        "experiments: [{name: a, policy: x, use_manager: true, manager_model: scripted},"
        " {name: b, policy: x, use_manager: true, manager_model: runs/m, manager_backend: local},"
        " {name: c, policy: x, use_manager: true, manager_backend: vlm}]"
    )
    flags_of = {name: read_experiments(Path("mine.yaml")).choose([name], {})[0].flags for name in "ab"}
    assert "--role" not in flags_of["a"]
    assert flags_of["b"][flags_of["b"].index("--role") + 1] == "manager=runs/m"
    with pytest.raises(UserError, match="Did you mean 'vllm'"):
        read_experiments(Path("mine.yaml")).choose(["c"], {})


def test_the_worker_may_be_chosen_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    served = {"HALO_WORKER_BACKEND": "vllm", "HALO_VLLM_URL": "http://localhost:8001/v1", "HALO_WORKER_MODEL": "mine"}
    assert flags("qwen_worker_zero", served)["--url"] == "http://localhost:8001/v1"
    assert flags("qwen_worker_zero", served)["--policy"] == "mine"
    local = flags("qwen_worker_dpo", {"HALO_WORKER_BACKEND": "local"})
    assert local["--policy"] == "checkpoints/qwen_dpo_lora"
    assert "--url" not in local
    assert flags("qwen_worker_zero", {"HALO_WORKER_BACKEND": "local"})["--policy"] == "Qwen/Qwen2.5-3B-Instruct"


def test_matrix_of_experiments_with_what_was_expected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["matrix", "--experiment", "idle", "able", "--subset", "easy", "--sample_size", "6", "--seed", "42"]
    assert main(command) == 0
    assert "matrix.csv, matrix.md and errors.jsonl in results" in capsys.readouterr().out
    assert read_result(Path("results/able.json")).settings["rules"] == {"max_turns": 4, "options": {"levels": [1]}}
    text = Path("results/matrix.md").read_text()
    assert "| idle | 0-1% | 0.0 % | 1-2 | 1 | nothing |" in text
    assert "| able | 90-100% | 100.0 % | 1-2 |" in text
    # The same modes by --mode: the results are there already.
    assert main(["matrix", "--mode", "idle", "able", *command[4:]]) == 0
    assert "episodes" not in capsys.readouterr().err


def test_eval_of_one_mode(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--mode", "able", "--sample_size", "5", "--seed", "42"]) == 0
    result = read_result(Path("results/able.json"))
    assert (result.policy, result.num_tasks, result.success_rate) == ("able", 5, 1.0)
    assert main(["eval", "--experiment", "idle", "--tasks", "3", "--out", "x.json"]) == 0
    assert read_result(Path("x.json")).success_rate == 0.0
    assert main(["eval", "--mode", "lazy=null", "--env", "math", "--tasks", "3"]) == 0
    assert read_result(Path("results/lazy.json")).policy == "lazy"
    capsys.readouterr()
    for arguments, message in [
        (["--experiment", "abel"], "Did you mean 'able'?"),
        (["--mode", "managed"], "Environment 'math' has no option 'manager'"),
        (["--mode", "able", "--experiment", "idle"], "give one"),
        (["--config", "configs/experiments.yaml", "--env", "math"], "name one with --experiment"),
    ]:
        assert main(["eval", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_collect_of_an_experiment(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["collect", "--config", "configs/experiments.yaml", "--subset", "full", "--sample_size", "4",
               "--rollouts_per_task", "2", "--seed", "42", "--task_seed", "123", "--temperature", "0.7"]  # fmt: skip
    assert main([*command, "--experiment", "able", "--run_id", "one"]) == 0
    files = sorted(Path("data/trajectories/able/one").glob("*__attempt_*.jsonl"))
    assert len(files) == 8
    start = json.loads(files[0].read_text().splitlines()[0])
    assert start["task"]["fields"]["level"] == 1
    assert start["provenance"]["temperature"] == 0.7
    assert main(["collect", "--mode", "able", "--experiment", "mine", "--out", "runs", "--tasks", "2"]) == 0
    assert len(list(Path("runs/mine").glob("*/*__attempt_*.jsonl"))) == 2
    assert main(["collect", "--experiment", "plain", "--env", "math", "--tasks", "2"]) == 0  # no experiment: a folder
    assert len(list(Path("runs/plain").glob("*/*__attempt_*.jsonl"))) == 2
    capsys.readouterr()
    assert main([*command, "--experiment", "plain"]) == 2
    assert "has no experiment 'plain'" in capsys.readouterr().err


def test_one_model_from_outside_is_not_several_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HALO_WORKER_MODEL", "qwen_bc")
    assert main(["matrix", "--mode", "qwen_worker_zero", "qwen_worker_bc"]) == 2
    assert "HALO_WORKER_MODEL names one model" in capsys.readouterr().err


def test_an_unreachable_server_says_where_its_address_came_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    Path("mine.yaml").write_text(
        "defaults: {env: math, tasks: 2}\n"
        f"experiments: [{{name: a, worker_model: m, qwen_backend: vllm}}, {{name: b, policy: m, url: '{url}'}}]"
    )
    monkeypatch.setitem(SERVER_BACKENDS, "vllm", url)
    remedy = (
        "start one there, set HALO_VLLM_URL to another address, or load the model here with HALO_WORKER_BACKEND=local "
        "and HALO_WORKER_MODEL=FOLDER."
    )

    def error_line(command: list[str]) -> str:
        assert main([*command, "--config", "mine.yaml"]) == 2
        return capsys.readouterr().err

    for command in (["collect", "--experiment", "a"], ["eval", "--mode", "a"], ["matrix", "--experiment", "a"]):
        error = error_line(command)
        assert f"No server answers at {url} (the default of HALO_VLLM_URL; " in error
        assert remedy in error
    monkeypatch.setitem(SERVER_BACKENDS, "vllm", "http://localhost:1/v1")
    assert f"No server answers at {url} (in the file of experiments; " in error_line(["eval", "--mode", "b"])
    monkeypatch.setenv("HALO_VLLM_URL", url)
    assert f"No server answers at {url} (the value of HALO_VLLM_URL; " in error_line(["eval", "--mode", "a"])
    error = error_line(["eval", "--mode", "a", "--url", url])
    assert "HALO_VLLM_URL" not in error
    assert "start it, or check --url" in error

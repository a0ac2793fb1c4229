"""`practicum collect`: which tasks under which seeds, what a run that stopped keeps, and what temperature does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from practicum.cli.main import main
from practicum.data.store import episode_path, read_episode, read_episodes
from practicum.data.tasks import read_registry, registry_hash, select
from practicum.environment import Action, Message
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.evaluation.temperature_check import ExplorationStatus, compare_replies
from practicum.task import Task
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn

SHOP = '''
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.task import Task

class Shop(Environment):
    """A world of twelve tasks on two sites; those of site `down` cannot be begun."""
    name = "shop"

    def tasks(self, split, count, seed=0):
        sites = ("up", "down")
        return [Task(f"v2.{sites[n % 2]}-{n}", "shop", split, {"price": n, "level": n // 4}) for n in range(12)][:count]

    async def reset(self, task, seed):
        if task.id.startswith("v2.down"):
            raise OSError("the site is down")
        return Observation((Message("user", f"seed {seed}"),))

    async def step(self, action):
        return Step(reward=1.0, terminated=True)

    def expert(self, task):
        return lambda observation: Action(content="buy")
'''


@pytest.fixture
def shop(tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(SHOP)
    return f"{tmp_path / 'shop.py'}:Shop"


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rollout_summary.jsonl").read_text().splitlines()]


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir() if "__attempt_" in p.name}


def test_seeds_count_up_and_crashed_episodes_do_not_stop_the_run(shop: str, tmp_path: Path) -> None:
    arguments = ["collect", "--env", shop, "--tasks", "4", "--rollouts_per_task", "2", "--task_seed", "123",
                 "--seed", "42", "--temperature", "0.7", "--out", str(tmp_path), "--run_id", "r"]  # fmt: skip
    assert main(arguments) == 1  # half of them are unscored
    folder = tmp_path / "collect" / "r"
    result = rows(folder)
    assert [(row["task_id"], row["attempt_idx"], row["task_seed"]) for row in result] == [
        (f"v2.{site}-{n}", k, 123 + 1000 * n + k) for n, site in enumerate(("up", "down") * 2) for k in range(2)
    ]
    assert (folder / "tasks.txt").read_text() == "v2.up-0\nv2.down-1\nv2.up-2\nv2.down-3\n"
    up, down = result[0], result[2]
    assert {key: up[key] for key in up if key != "timestamp"} == {
        "task_id": "v2.up-0", "attempt_idx": 0, "run_id": "r", "experiment": "collect", "mode": "expert",
        "policy": "expert", "subset": None, "max_turns": 10, "task_seed": 123, "temperature": 0.7, "success": True,
        "reward": 1.0, "n_steps": 1, "outcome": "success"}  # fmt: skip
    assert down["outcome"] == "env_error"
    assert down["error"].startswith("reset: OSError: the site is down")
    episode = read_episode(episode_path(folder, "v2.up-2", 1))
    assert episode.seeds.environment == 123 + 2000 + 1
    assert episode.turns[0].messages[0].content == "seed 2124"
    assert len({e.seeds.sampling for e in read_episodes(folder)}) == 8


def test_a_run_that_was_stopped_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def arguments(tasks: int = 6) -> list[str]:
        return ["collect", "--env", "math", "--tasks", str(tasks), "--rollouts-per-task", "2", "--out", str(tmp_path)]

    assert main(arguments()) == 0
    folder = tmp_path / "collect" / "math-expert-train-seed0"
    full = files(folder)
    assert main(arguments()) == 0
    assert "12 episodes" in (shown := capsys.readouterr().out)
    assert "(12 of them from before)" in shown
    assert files(folder) == full
    for finished in (True, False):  # as a run that ended, and as one that was killed half-way
        removed = sorted(full)[3:6]
        for name in (*removed, *(() if finished else ("collect.json", "tasks.txt", "rollout_summary.jsonl"))):
            (folder / name).unlink()
        (folder / ".writing-abc").write_text("half")
        assert main(arguments(5)) == 2
        assert "already holds episodes made under other settings" in capsys.readouterr().err
        assert main(arguments()) == 0
        assert "(9 of them from before)" in capsys.readouterr().out
        again = files(folder)
        assert {name: data for name, (data, _) in again.items()} == {name: data for name, (data, _) in full.items()}
        assert all(again[name] == full[name] for name in full if name not in removed)
        assert len(rows(folder)) == 12
        assert not (folder / ".writing-abc").exists()
        full = again


def test_what_differs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["collect", "--env", "math", "--tasks", "1", "--out", str(tmp_path), "--run-id", "r"]
    assert main(base) == 0
    assert main([*base, "--temperature", "0.5", "--task-seed", "1"]) == 2
    assert "made under other settings (task_seed, temperature)" in capsys.readouterr().err
    assert main([*base, "--concurrency", "1"]) == 0
    (tmp_path / "collect" / "other").mkdir()
    (tmp_path / "collect" / "other" / "mine.txt").write_text("")
    assert main(["collect", "--env", "math", "--tasks", "1", "--out", str(tmp_path), "--run-id", "other"]) == 2
    assert "already holds episodes of another run" in capsys.readouterr().err
    assert main([*base, "--run-id", "r" * 300]) == 2
    assert (
        "cannot be used (File name too long); choose another --out (or, for `collect`, another"
        in capsys.readouterr().err
    )


def test_episodes_that_crashed_are_tried_again(shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["collect", "--env", shop, "--tasks", "2", "--out", str(tmp_path), "--run-id", "r"]
    assert main(arguments) == 1
    assert "1 of 2 episodes are unscored" in capsys.readouterr().err
    before = files(tmp_path / "collect" / "r")
    (tmp_path / "shop.py").write_text(SHOP.replace('startswith("v2.down")', 'startswith("v2.gone")'))
    mended = ["collect", "--env", f"{tmp_path}/../{tmp_path.name}/shop.py:Shop", *arguments[3:]]
    assert main(mended) == 2  # another environment by name
    capsys.readouterr()
    import sys

    for name in [name for name in sys.modules if "user_files.shop" in name]:
        del sys.modules[name]
    assert main(arguments) == 0
    assert "(1 of them from before): 2 success" in capsys.readouterr().out
    after = files(tmp_path / "collect" / "r")
    assert after["v2.up-0__attempt_0.jsonl"] == before["v2.up-0__attempt_0.jsonl"]
    assert after["v2.down-1__attempt_0.jsonl"][0] != before["v2.down-1__attempt_0.jsonl"][0]


def test_why_nothing_was_scored_is_said(shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["collect", "--env", shop, "--subset", "v2.down-1,v2.down-3", "--out", str(tmp_path)]
    assert main(arguments) == 1
    text = "2 env_error; none scored; first: reset: OSError: the site is down"
    assert text in capsys.readouterr().out.splitlines()[-1]


# -- which tasks --------------------------------------------------------------------------------


def ids(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def snapshot(tasks: list[Task]) -> dict[str, Any]:
    listed = [{"id": t.id, "environment": t.environment, "split": t.split, "fields": json.loads(json.dumps(
        t.fields, default=dict))} for t in tasks]  # fmt: skip
    return {"tasks": listed, "hash": registry_hash(tasks)}


def test_registries_of_every_form(tmp_path: Path) -> None:
    world = MathEnvironment()
    tasks = list(world.tasks("train", 6))
    forms: list[Any] = [
        snapshot(tasks[2:5]),
        [task.id for task in tasks[2:5]],
        [{"id": task.id} for task in tasks[2:5]],
        {"tasks": [{"task_id": 1, "task_name": task.id, "task_type": "math"} for task in tasks[2:5]]},
        [{"id": task.id, "question": task.fields["question"], **json.loads(json.dumps(task.fields, default=dict))}
         for task in tasks[2:5]],
    ]  # fmt: skip
    for form in forms:
        registry = read_registry(write(tmp_path / "tasks.json", form), "math", "train")
        result = select(world, split="train", seed=42, registry=registry)
        assert result == tasks[2:5]
        assert [task.hash for task in result] == [task.hash for task in tasks[2:5]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["math-train-0-1", "math-train-0-x"], "environment 'math' has no 'train' task 'math-train-0-x' (1 of 2)"),
        ([{"name": "a"}], "task 0 lacks 'id' (it has: name)"),
        ([3], "task 0: expected an object or an id, found int"),
        ([], "needs a list of tasks"),
        ({"task": []}, "needs a list of tasks"),
        (["a", "a"], "task 1: the id 'a' is used twice"),
        ([{"id": "a", "fields": 3}], "task 0: 'fields' must be an object"),
        ([{"id": "a", "fields": {"question": "?"}, "hash": "x"}], "'a' does not match its hash"),
        ({"tasks": [{"id": "a", "fields": {"question": "?"}}], "hash": "x"}, "it was changed"),
        ([{"id": "a", "split": "dev"}], "'split' must be one of train, val, test"),
        ([{"id": "a", "environment": "web", "fields": {}}], "belongs to environment 'web', not to 'math'"),
        ([{"id": "a\nb", "fields": {"question": "?"}}], "cannot be printed"),
    ],
)
def test_bad_registries_are_named(value: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "tasks.json", value)
    out = tmp_path / "out"
    assert main(["collect", "--env", "math", "--task_registry", str(path), "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_registry_files_that_cannot_be_read(tmp_path: Path) -> None:
    for data, message in ((b"{", "is not JSON"), (b'["\xff"]', "is not UTF-8")):
        (tmp_path / "tasks.json").write_bytes(data)
        with pytest.raises(UserError, match=message):
            read_registry(tmp_path / "tasks.json", "math", "train")
    with pytest.raises(UserError, match="Cannot read the task registry"):
        read_registry(tmp_path / "none.json", "math", "train")


def test_a_path_as_task_id_stays_in_the_folder(shop: str, tmp_path: Path) -> None:
    path = write(tmp_path / "tasks.json", [{"id": "../../evil", "fields": {"price": 1}}])
    out = tmp_path / "out"
    assert main(["collect", "--env", shop, "--task-registry", str(path), "--out", str(out), "--run-id", "r"]) == 0
    assert {p.parent for p in tmp_path.rglob("*evil*")} == {out / "collect" / "r"}
    assert (out / "collect" / "r" / "tasks.txt").read_text() == "../../evil\n"


def test_subsets_and_samples(shop: str, tmp_path: Path) -> None:
    from practicum.registry import environment_class

    world = environment_class(shop)()
    every = ids(list(world.tasks("train", 99)))

    def chosen(**options: Any) -> list[str]:
        return ids(select(world, split="train", **{"seed": 0, **options}))

    assert chosen() == every
    assert chosen(count=3) == every[:3]
    assert chosen(subset="down") == every[1::2]
    assert chosen(subset="down", count=2) == every[1:4:2]
    assert chosen(subset="2") == every[8:]  # a level
    assert chosen(subset="price=3") == [every[3]]
    assert chosen(subset=f"{every[5]},{every[1]}") == [every[1], every[5]]
    samples = [chosen(sample_size=5, seed=seed) for seed in range(6)]
    assert all(len(set(sample)) == 5 and sample == [i for i in every if i in sample] for sample in samples)
    assert len(set(map(tuple, samples))) > 3
    assert chosen(sample_size=5, seed=2) == samples[2]
    assert set(chosen(sample_size=2, count=3)) < set(every[:3])
    assert chosen(sample_size=50, subset="up") == every[::2]
    for wrong in ("sideways", f"{every[0]},v2.up-99"):
        with pytest.raises(UserError, match="no task of this run is named by"):
            chosen(subset=wrong)
    listed = write(tmp_path / "r.json", {"tasks": every, "subsets": {"shopping": ["down"], "quick": [every[0]]}})
    registry = read_registry(listed, "shop", "train")
    assert chosen(registry=registry, subset="shopping") == every[1::2]
    assert chosen(registry=registry, subset="quick") == every[:1]
    assert len(chosen(registry=registry, sample_size=4, seed=7)) == 4


# -- exploration --------------------------------------------------------------------------------


def test_temperature_changes_what_a_model_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["collect", "--verify-exploration", "--env", "math", "--task", "math-train-0-3", "--out", str(tmp_path),
            "--max-turns", "3", "--max-tokens", "6", "--task_seed", "123", "--temperature_a", "0.0",
            "--compare_steps", "10"]  # fmt: skip
    assert main([*base, "--policy", "tiny", "--temperature_b", "0.7"]) == ExplorationStatus.DIVERGED == 0
    assert "the replies differ from step 1 on" in capsys.readouterr().out
    first, second = read_episodes(tmp_path)
    assert (first.provenance["temperature"], second.provenance["temperature"]) == (0.0, 0.7)
    assert first.seeds == second.seeds
    assert first.seeds.environment == 123
    assert main([*base, "--policy", "expert"]) == ExplorationStatus.SAME == 2
    assert main([*base, "--policy", "tiny", "--temperature_b", "0.0"]) == 2


def test_runs_that_fail_are_1(shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["collect", "--verify-exploration", "--env", shop, "--out", str(tmp_path)]
    assert main([*base, "--task", "v2.down-1"]) == ExplorationStatus.RUN_FAILED == 1
    assert "ended in env_error: reset: OSError: the site is down" in capsys.readouterr().out
    for wrong, message in (
        (["--task", "v2.up-77"], "has no 'train' task 'v2.up-77'"),
        ([], "Say which task to run"),
        (["--task", "v2.up-0", "--temperature", "1"], "takes --temperature-a and --temperature-b"),
        (["--task", "v2.up-0", "--temperature-a", "-1"], "must be 0 or more"),
    ):
        assert main([*base, *wrong]) == 1
        assert message in capsys.readouterr().err
    assert main(["collect", "--env", "math", "--task", "x"]) == 2
    assert "--task goes with --verify-exploration" in capsys.readouterr().err


def spoken(replies: list[str], **provenance: Any) -> Trajectory:
    turns = tuple(
        Turn((Span(Origin.SAMPLED, (1,)),), False, (Message("user", ""),), reply, Action(reply), ActionSource.POLICY, 0,
             StopReason.END, 0)
        for reply in replies
    )  # fmt: skip
    return Trajectory(
        Task("t", "w", "train"), 0, "t", Outcome.FAILURE, turns, 0.0, {}, Seeds(0, 0), provenance=provenance
    )


@pytest.mark.parametrize(
    ("first", "second", "window", "finding"),
    [
        (["a", "b"], ["a", "c"], 10, ExplorationStatus.DIVERGED),
        (["a", "b"], ["a", "c"], 1, ExplorationStatus.SAME),
        (["a"], ["a", "c"], 10, ExplorationStatus.DIVERGED),  # one went on
        (["a"], ["a", "c"], 1, ExplorationStatus.SAME),
        (["a", "b"], ["a", "b"], 10, ExplorationStatus.SAME),
    ],
)
def test_divergence_within_a_window(
    first: list[str], second: list[str], window: int, finding: ExplorationStatus
) -> None:
    episodes = [spoken(first, temperature=0.0), spoken(second, temperature=0.7)]
    assert compare_replies(episodes, (0.0, 0.7), window).status is finding


def test_the_record_must_have_the_temperature() -> None:
    good = spoken(["a"], temperature=0.0)
    for other in (spoken(["b"]), spoken(["b"], temperature=0.0)):
        assert compare_replies([good, other], (0.0, 0.7), 10).status is ExplorationStatus.TEMPERATURE_NOT_RECORDED == 3
    crashed = replace(spoken(["b"]), outcome=Outcome.ENGINE_ERROR)
    assert compare_replies([good, crashed], (0.0, 0.7), 10).status is ExplorationStatus.RUN_FAILED

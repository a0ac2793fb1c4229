"""What all episodes of a run share: opened once, restarted, closed on every way out; state that is frozen in a step."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from practicum import resources as resources_module
from practicum.agent import Agent, Deadlines
from practicum.chat.renderer import Renderer
from practicum.cli.main import main
from practicum.data.store import read_episode
from practicum.engines.base import Sampling
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.environments.mix import MixEnvironment
from practicum.errors import UserError
from practicum.evaluation.panel import Panel
from practicum.models import loader
from practicum.registry import environment_class, make_format
from practicum.resources import Resource, RunResources
from practicum.rollout import run_episode, run_episodes
from practicum.task import Task
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import ActionSource, Outcome, Trajectory, plan_attempts

from .environments.note_environment import Board, Notes

NOTES = f"{Path(__file__).parent}/environments/note_environment.py:Notes"


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    loaded = loader.load("tiny")
    return Renderer(loaded.tokenizer, None, loaded.end_ids)


def speaker(renderer: Renderer, say: Callable[[Task, int], str] = lambda task, seed: "yes") -> ScriptedEngine:
    """An engine that says one thing per episode."""
    return ScriptedEngine(
        lambda task, seed: lambda observation: Action(content=say(task, seed)),
        ActionSource.EXPERT,
        make_format("hf"),
        renderer,
    )


async def play(
    make: Callable[[], Environment],
    renderer: Renderer,
    *,
    count: int = 6,
    chains: int = 1,
    agent: Agent | None = None,
    say: Callable[[Task, int], str] = lambda task, seed: "yes",
    **more: Any,
) -> list[Trajectory]:
    planned = plan_attempts(Notes().tasks("train", count), chains, 0)
    return await run_episodes(planned, make, agent or Agent(), speaker(renderer, say), renderer, **more)


class Browser(Resource):
    """Counts what happens to it; `kill` ends it from outside."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.alive = False

    def open(self) -> None:  # type: ignore[override]
        self.events.append("open")
        self.alive = True

    async def healthy(self) -> bool:
        return self.alive

    async def close(self) -> None:
        self.events.append("close")
        self.alive = False


class Browsing(Environment):
    """Uses a browser that all episodes share; the answer `crash` ends it, and the page does not tell."""

    name = "notes"
    formats = ("hf",)
    browser: Browser

    def make_resources(self) -> Mapping[str, Resource]:
        return {"browser": self.browser}

    async def reset(self, task: Task, seed: int) -> Observation:
        assert self.resources["browser"].alive
        return Observation((Message("user", "go"),))

    async def step(self, action: Action) -> Step:
        if action.content == "crash":
            self.browser.alive = False
            return Step(reward=0.0, terminated=True)
        await asyncio.sleep(0.005)
        return Step(reward=1.0, terminated=True)


def browsing() -> type[Browsing]:
    """The environment with a browser of its own."""
    return type("Own", (Browsing,), {"browser": Browser()})


# -- life -----------------------------------------------------------------------------------


def test_a_resource_is_opened_once_for_many_episodes_and_closed_after_them(renderer: Renderer) -> None:
    make = browsing()
    episodes = asyncio.run(play(make, renderer, count=20, concurrency=8))
    assert [episode.outcome for episode in episodes] == [Outcome.SUCCESS] * 20
    assert make.browser.events == ["open", "close"]


def test_the_resources_of_a_run_outlive_a_step_and_are_closed_once(renderer: Renderer) -> None:
    make = browsing()

    async def run() -> None:
        shared = RunResources(make().make_resources())
        assert make.browser.events == []
        for _ in range(3):
            await play(make, renderer, resources=shared)
        assert make.browser.events == ["open"]
        await shared.close()
        await shared.close()

    asyncio.run(run())
    assert make.browser.events == ["open", "close"]


@pytest.mark.parametrize("retries", [0, 1])
def test_an_episode_whose_resource_dies_is_not_scored_and_the_next_one_has_a_new_resource(
    renderer: Renderer, retries: int
) -> None:
    make, crashed = browsing(), []

    def say(task: Task, seed: int) -> str:
        if task.fields["number"] == 2 and not crashed:
            crashed.append(task.id)
            return "crash"
        return "yes"

    episodes = asyncio.run(play(make, renderer, say=say, retries=retries, concurrency=1))
    assert make.browser.events == ["open", "close", "open", "close"]
    expected = Outcome.SUCCESS if retries else Outcome.ENV_ERROR
    assert [episode.outcome for episode in episodes] == [Outcome.SUCCESS] * 2 + [expected] + [Outcome.SUCCESS] * 3
    assert retries or "the resource 'browser' died during the episode" in str(episodes[2].error)


def test_all_episodes_that_used_a_dead_resource_are_played_again(renderer: Renderer) -> None:
    make, crashed = browsing(), []

    def say(task: Task, seed: int) -> str:
        if task.fields["number"] == 0 and not crashed:
            crashed.append(task.id)
            return "crash"
        return "yes"

    episodes = asyncio.run(play(make, renderer, say=say, retries=1, concurrency=8))
    assert {episode.outcome for episode in episodes} == {Outcome.SUCCESS}
    assert make.browser.events == ["open", "close", "open", "close"]


class Refusing(Browser):
    """Cannot be opened for some time."""

    def __init__(self, num_failures: int, error: Exception) -> None:
        super().__init__()
        self.num_failures, self.error = num_failures, error

    def open(self) -> None:  # type: ignore[override]
        super().open()
        if self.events.count("open") <= self.num_failures:
            raise self.error


def test_a_resource_that_opens_at_the_second_try_costs_one_episode(renderer: Renderer) -> None:
    make = browsing()
    make.browser = Refusing(1, OSError("no display"))
    episodes = asyncio.run(play(make, renderer, concurrency=1))
    assert [episode.outcome for episode in episodes] == [Outcome.ENV_ERROR] + [Outcome.SUCCESS] * 5
    assert "resources: " in str(episodes[0].error)
    assert "the resource 'browser' could not be opened: OSError: no display" in str(episodes[0].error)
    assert make.browser.events == ["open", "close", "open", "close"]


def test_a_resource_that_never_opens_stops_the_run_with_one_sentence(renderer: Renderer) -> None:
    make = browsing()
    make.browser = Refusing(99, OSError("no display"))
    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(play(make, renderer, concurrency=8))
    (error,) = {str(error) for error in raised.value.exceptions if isinstance(error, UserError)}
    assert error.startswith("The resource 'browser' could not be opened: OSError: no display")
    assert error.endswith("(3 times in a row).")
    assert make.browser.events == ["open", "close"] * 3


def test_opening_has_a_deadline_of_its_own_that_is_not_the_episodes(renderer: Renderer) -> None:
    class Slow(Browser):
        async def open(self) -> None:  # type: ignore[override]
            await asyncio.sleep(0.2)
            super().open()

    make = browsing()
    make.browser = Slow()
    agent = Agent(deadlines=Deadlines(open=0.05))
    episodes = asyncio.run(play(make, renderer, count=1, agent=agent))
    assert episodes[0].outcome is Outcome.ENV_ERROR
    assert "it was not open after 0.05 s" in str(episodes[0].error)
    make.browser = Slow()
    agent = Agent(deadlines=Deadlines(reset=0.1, step=0.1, episode=0.1))
    episodes = asyncio.run(play(make, renderer, count=4, agent=agent))
    assert {episode.outcome for episode in episodes} == {Outcome.SUCCESS}


def test_a_health_check_that_hangs_or_fails_counts_as_dead(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources_module, "HEALTH_SECONDS", 0.05)

    class Silent(Browser):
        async def healthy(self) -> bool:
            if self.events.count("open") == 1:
                await asyncio.sleep(10)
            if self.events.count("open") == 2:
                raise ConnectionError
            return True

    make = browsing()
    make.browser = Silent()
    episodes = asyncio.run(play(make, renderer, count=3, concurrency=1))
    assert [episode.outcome for episode in episodes] == [Outcome.ENV_ERROR] * 2 + [Outcome.SUCCESS]
    assert make.browser.events.count("open") == 3


@pytest.mark.parametrize("way", ["exception", "cancelled", "nobody closes it"])
def test_a_resource_is_closed_on_every_way_out(renderer: Renderer, way: str) -> None:
    make = browsing()

    def say(task: Task, seed: int) -> str:
        if way == "exception":
            raise UserError("wrong setting")
        return "yes"

    async def run() -> None:
        if way == "nobody closes it":
            await play(make, renderer, resources=RunResources(make().make_resources()))
            assert make.browser.events == ["open"]
            return
        work = asyncio.create_task(play(make, renderer, say=say))
        if way == "cancelled":
            await asyncio.sleep(0.003)
            work.cancel()
        await work

    if way == "nobody closes it":
        asyncio.run(run())
    else:
        with pytest.raises((ExceptionGroup, asyncio.CancelledError)):
            asyncio.run(run())
    assert make.browser.events == ["open", "close"]


def test_equal_resources_of_two_environments_are_opened_once() -> None:
    class Shared(Browser):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Shared)

        __hash__ = None  # type: ignore[assignment]

    first, second = Shared(), Shared()

    async def run() -> None:
        shared = RunResources({"a/browser": first, "b/browser": second, "c/browser": Browser()})
        await shared.open()
        assert shared.bind()["b/browser"] is first
        await shared.close()

    asyncio.run(run())
    assert first.events == ["open", "close"]
    assert second.events == []


# -- state ----------------------------------------------------------------------------------


def shown(episodes: Sequence[Trajectory]) -> list[str]:
    return [episode.turns[0].messages[-1].content for episode in episodes]


def test_episodes_never_read_what_others_of_the_same_step_wrote(renderer: Renderer) -> None:
    async def run(concurrency: int) -> tuple[list[list[str]], str]:
        shared = RunResources(Notes().make_resources())
        observed = []
        for _ in range(3):
            episodes = await play(
                Notes, renderer, count=3, chains=4, concurrency=concurrency, resources=shared,
                say=lambda task, seed: f"{task.id} {seed}",
            )  # fmt: skip
            observed.append(shown(episodes))
            shared.commit()
        await shared.close()
        return observed, json.dumps(shared.state_dict())

    observed, state = asyncio.run(run(8))
    assert set(observed[0]) == {"0 []"}
    assert all(len(set(step)) == 1 for step in observed)
    assert [step[0].split()[0] for step in observed] == ["0", "12", "24"]
    assert (observed, state) == asyncio.run(run(1))


def test_writes_are_committed_in_the_order_of_tasks_and_attempts(renderer: Renderer) -> None:
    async def run() -> list[str]:
        shared = RunResources(Notes().make_resources())
        planned = plan_attempts(Notes().tasks("train", 4), 3, 0)
        for attempt in planned[::-1]:  # the last one ends first
            await run_episode(attempt, Notes, Agent(), speaker(renderer), renderer, resources=shared)
        shared.queue_in_order(planned)
        order: list[str] = []
        board = shared.bind()["board"]
        board.commit = lambda writes: order.extend(write["task"] for write in writes)
        shared.commit()
        await shared.close()
        return order

    assert asyncio.run(run()) == [f"train 0 {number}" for number in range(4) for _ in range(3)]


def test_an_unscored_episode_and_a_step_that_is_cut_short_write_nothing(renderer: Renderer) -> None:
    class Failing(Notes):
        async def step(self, action: Action) -> Step:
            await super().step(action)
            if self.task.fields["number"] == 1:
                raise ConnectionError
            if self.task.fields["number"] == 5:
                raise UserError("stop")
            return Step(reward=1.0, terminated=True)

    async def run() -> RunResources:
        shared = RunResources(Failing().make_resources())
        await play(Failing, renderer, count=3, resources=shared)
        shared.commit()
        with pytest.raises(ExceptionGroup):
            await play(Failing, renderer, count=6, concurrency=1, resources=shared)
        shared.commit()
        await shared.close()
        return shared

    assert asyncio.run(run()).state_dict() == {
        "board": {"notes": {"train 0 0": ["yes"], "train 0 2": ["yes"]}}
    }  # fmt: skip


def test_a_committed_state_is_what_a_checkpoint_gives_back() -> None:
    class Pairs(Board):
        def commit(self, writes: Sequence[Any]) -> None:
            self.notes = {"b": ("x", 1), "a": {2: "y"}}  # type: ignore[dict-item]

    shared = RunResources({"pairs": Pairs()})
    shared.bind().write("pairs", 1)
    episode = shared.bind()
    episode.write("pairs", {"n": 1})
    planned = [object()]
    shared.collect(planned[0], episode.writes)
    shared.queue_in_order(planned)
    shared.commit()
    again = RunResources({"pairs": Pairs()})
    again.load_state_dict(json.loads(json.dumps(shared.state_dict(), sort_keys=True)))
    assert json.dumps(again.state_dict()) == json.dumps(shared.state_dict())
    assert list(shared.state_dict()["pairs"]["notes"]) == ["a", "b"]


def test_what_can_be_written() -> None:
    shared = RunResources({"board": Board(), "browser": Browser()}).bind()
    with pytest.raises(TypeError, match="Browser has no `commit`"):
        shared.write("browser", 1)
    with pytest.raises(TypeError):
        shared.write("board", {1, 2})
    with pytest.raises(KeyError):
        shared.write("cache", 1)
    value = {"task": "t", "text": "a"}
    shared.write("board", value)
    value["text"] = "b"
    assert shared.writes == [("board", {"task": "t", "text": "a"})]


def test_a_checkpoint_of_another_environment_is_refused() -> None:
    with pytest.raises(UserError, match="the state of a resource 'cache', which the environment has not"):
        RunResources({"board": Board()}).load_state_dict({"cache": {}})


def test_an_evaluation_has_the_first_state_and_leaves_none(renderer: Renderer) -> None:
    policy = TrainablePolicy(loader.load("tiny"))
    shared = RunResources(Notes().make_resources())
    panel = Panel(tuple(Notes().tasks("val", 3)), 0)

    async def run() -> list[Trajectory]:
        await play(Notes, renderer, count=2, resources=shared)
        shared.commit()
        before = json.dumps(shared.state_dict())
        agent = Agent(max_turns=1, sampling=Sampling(max_tokens=2))
        _, episodes = await policy.evaluate("val", panel, Notes, agent, resources=shared)
        shared.commit()
        assert json.dumps(shared.state_dict()) == before
        await shared.close()
        await policy.close()
        return episodes

    assert shown(asyncio.run(run())) == ["0 []"] * 3


def test_a_run_that_is_stopped_in_an_evaluation_saves_the_state_from_before_it() -> None:
    class InPlace(Resource):
        """Keeps its state in one list, which it hands out and changes."""

        def __init__(self) -> None:
            self.notes: list[str] = []

        def state_dict(self) -> list[str]:
            return self.notes

        def load_state_dict(self, state: Any) -> None:
            self.notes[:] = state

        def commit(self, writes: Sequence[Any]) -> None:
            self.notes += writes

    resource = InPlace()
    shared = RunResources({"notes": resource})
    shared.queue([("notes", "a")])
    shared.commit()
    with shared.evaluation():
        assert resource.notes == []
        assert shared.state_dict() == {"notes": ["a"]}
    assert resource.notes == ["a"]
    assert shared.state_dict() == {"notes": ["a"]}


# -- a mix, and the commands ----------------------------------------------------------------


def test_the_members_of_a_mix_have_their_own_resources_opened_when_needed(tmp_path: Path, renderer: Renderer) -> None:
    log = tmp_path / "log"

    def make() -> MixEnvironment:
        return MixEnvironment({NOTES: {"log": str(log)}, "math": None})

    async def run(count: int) -> list[Trajectory]:
        shared = RunResources(make().make_resources())
        tasks = [task for task in make().tasks("train", 6) if task.environment == ("notes" if count else "math")]
        episodes = await run_episodes(
            plan_attempts(tasks, 1, 0), make, Agent(), speaker(renderer), renderer, resources=shared
        )
        shared.commit()
        assert len(shared.state_dict()[f"{NOTES}/board"]["notes"]) == count
        await shared.close()
        return episodes

    asyncio.run(run(0))
    assert not log.exists()
    assert {episode.outcome for episode in asyncio.run(run(3))} == {Outcome.SUCCESS}
    assert log.read_text().split() == ["open", "close"]


def test_commands_open_and_close_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    common = ["--env", NOTES, "--env-arg", f"log={log}", "--tasks", "5"]
    assert main(["collect", *common, "--policy", "expert", "--out", str(tmp_path / "c")]) == 0
    assert "5 success" in capsys.readouterr().out
    assert main(["eval", *common, "--policy", "expert", "--out", str(tmp_path / "e.json")]) == 0
    assert log.read_text().split() == ["open", "close"] * 2


@pytest.mark.parametrize("command", ["collect", "eval"])
def test_rounds_show_what_earlier_rounds_wrote_and_can_be_resumed(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, *more: str) -> dict[str, bytes]:
        arguments = ["--env", NOTES, "--tasks", "7", "--round", "3", "--policy", "expert", *more]
        assert main([command, *arguments, "--out", str(tmp_path / name / "out.json")]) == 0
        capsys.readouterr()
        paths = sorted((tmp_path / name).rglob("*__attempt_*.jsonl"), key=lambda path: (len(path.name), path.name))
        return {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in paths}

    unbroken = run("a", "--concurrency", "1")
    assert run("b", "--concurrency", "8") == unbroken
    episodes = [read_episode(tmp_path / "a" / path) for path in unbroken]
    assert [content.split()[0] for content in shown(episodes)] == ["0"] * 3 + ["3"] * 3 + ["6"]
    for path in list(unbroken)[2:]:  # as if the first run had been cut short in its first round
        (tmp_path / "a" / path).unlink()
    (tmp_path / "a" / "out.json").unlink() if command == "eval" else None
    assert run("a", "--concurrency", "8") == unbroken
    assert main([command, "--env", "math", "--round", "3", "--out", str(tmp_path / "c" / "out.json")]) == 2
    assert "--round: the episodes of 'math' share nothing that they write to." in capsys.readouterr().err


TRAIN = [
    f"agent.environment={NOTES}",
    "agent.num_chains=2",
    "agent.max_tokens_per_turn=4",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.model.path=tiny",
    "data.train_batch_size=2",
    "trainer.total_training_steps=3",
    "trainer.val_before_train=false",
    "trainer.logger=[]",
    "trainer.experiment_name=x",
]


def test_a_training_does_not_depend_on_the_number_of_episodes_at_once(tmp_path: Path) -> None:
    results = []
    for concurrency in (1, 8):
        folder = tmp_path / str(concurrency)
        own = [f"agent.concurrency={concurrency}", f"trainer.default_local_dir={folder}", "trainer.save_freq=1"]
        assert main(["train", *TRAIN, *own]) == 0
        (metrics,) = folder.rglob("metrics.jsonl")
        (state,) = folder.rglob("global_step_3/state.json")
        results.append((metrics.read_bytes(), state.read_bytes()))
    assert results[0] == results[1]
    notes = json.loads(results[0][1])["practice"]["resources"]["board"]["notes"]
    assert sum(map(len, notes.values())) == 12


def arguments_with_signal(command: str, tmp_path: Path) -> list[str]:
    """A command whose process gets SIGTERM in its third task."""
    log = tmp_path / "log"
    if command == "train":
        own = [f"agent.environment_args.log={log}", "agent.environment_args.signal_at=2"]
        return ["train", *TRAIN, *own, f"trainer.default_local_dir={tmp_path}", "trainer.save_freq=1"]
    own = ["--env-arg", f"log={log}", "--env-arg", "signal_at=2"]
    return [command, "--env", NOTES, *own, "--tasks", "8", "--policy", "expert", "--out", str(tmp_path / "out.json")]


@pytest.mark.parametrize("command", ["train", "collect", "eval"])
def test_sigterm_closes_what_was_opened(command: str, tmp_path: Path) -> None:
    environment_class(NOTES).__init__.__globals__["SIGNALLED"].clear()
    assert main(arguments_with_signal(command, tmp_path)) == 130
    assert (tmp_path / "log").read_text().split() == ["open", "close"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "collect"])
def test_sigterm_closes_what_another_process_has_opened(command: str, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "practicum.cli", *arguments_with_signal(command, tmp_path)]
    child = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert child.returncode == 130, child.stderr
    assert (tmp_path / "log").read_text().split() == ["open", "close"]

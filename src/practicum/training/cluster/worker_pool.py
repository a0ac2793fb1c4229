"""The rollout workers of a run, as the learner sees them: started, sent weights, given episodes, replaced.

Groups go round among the workers, so which worker runs an episode is fixed by the plan while none is lost. Workers may
join and leave at any time: the episodes of one that is lost are run again on the others, with the same seeds, and one
that joins takes part from the next rollout on. A finished episode is neither lost nor run twice;
`rollout_ledger.jsonl` in the run's folder accounts for every episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from practicum import __version__
from practicum.agent import Agent
from practicum.config.overrides import to_yaml
from practicum.config.train import TrainConfig
from practicum.data.store import decode_episode
from practicum.errors import UserError
from practicum.training import ranks
from practicum.training.build import RunComponents
from practicum.training.cluster import ray_session
from practicum.training.cluster.outgoing_weights import OutgoingWeights
from practicum.training.cluster.rollout_worker import (
    RolloutWorker,
    agent_hashes,
    agents_of,
    encode_attempt,
    threads_per_worker,
    trained_tensors,
)
from practicum.training.settings import mismatch_limit
from practicum.training.trainable_policy import (
    PROBE_TOKENS,
    SHORT_PROBE_TOKENS,
    RolloutRequest,
    TrainablePolicy,
    gather_episodes,
)
from practicum.trajectory import Attempt, Trajectory

LEDGER = "rollout_ledger.jsonl"
MAX_LOSSES = 3
"""Losses per worker in a row without an episode that has ended; then the run stops. A worker that is lost as often
while it joins is refused."""
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
    slots: asyncio.Semaphore
    """Limits the episodes that it runs at once; those that came first begin first."""
    version: int | None = None
    is_here: bool = False
    """Whether it is on the learner's machine, where whole tensors take less time than finding what has changed."""
    is_compared: bool = False
    """Whether its engine has been compared with the learner since it has joined."""
    is_lost: bool = False
    unfinished: dict[int, Attempt] = field(default_factory=dict)
    """The episodes that are assigned to it, by the identity of the job."""


@dataclass
class RolloutWorkerPool:
    """The workers of a run. Only the first rank has any; the others get the episodes from it.

    A rollout begins when `min_workers` of `num_workers` are ready; the others join when Ray has place for them. One
    that cannot take part is refused, and tried again when the machines of the cluster have changed. The run ends for
    that reason only where fewer than `min_workers` are left.
    """

    config: TrainConfig
    folder: Path
    components: RunComponents
    num_workers: int
    min_workers: int
    say: Callable[[str], None] = print
    workers: dict[int, WorkerHandle] = field(default_factory=dict)
    """The workers that are ready, by index."""
    _agents: dict[str, Agent] = field(default_factory=dict)
    _ray: Any = None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _starts: Counter[int] = field(default_factory=Counter)
    _joining: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _refused: dict[int, frozenset[str]] = field(default_factory=dict)
    """By index of a worker that cannot take part: the machines that the cluster had then."""
    _weights: OutgoingWeights | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a worker has become ready, or none ever will."""
    _failure: Exception | None = None
    _num_losses: int = 0
    """Losses since the last episode that has ended."""

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
        planned = request.planned
        if request.updates_weights:
            await self.update_weights(policy)
        await self._wait_for_workers(policy, self.min_workers)
        name = next(name for name, agent in self._agents.items() if agent == request.agent)
        worker_of = assign(planned, sorted(self.workers))
        runs: Counter[int] = Counter()

        async def play(position: int) -> tuple[Trajectory, int]:
            index: int | None = worker_of[position]
            while True:
                worker = await self._choose(policy, index, position)
                index = None  # after a loss: whichever is ready
                with contextlib.suppress(WorkerLost):
                    async with self._assigned(worker, planned[position]), worker.slots:
                        if worker.is_lost:
                            continue
                        runs[position] += 1
                        episode = await self._run_one(worker, planned[position], name, request)
                    self._num_losses = 0
                    if request.on_done is not None:
                        request.on_done(episode)
                    return episode, worker.index

        played = await _all([play(position) for position in range(len(planned))])
        episodes = [[*_key(planned[p]), worker, runs[p]] for p, (_, worker) in enumerate(played)]
        versions = [] if self._weights is None else self._weights.versions
        self._write("rollout", agent=name, versions=versions, episodes=episodes)
        return [episode for episode, _ in played]

    async def _choose(self, policy: TrainablePolicy, index: int | None, position: int) -> WorkerHandle:
        """The worker of an index while it is ready, else one of those that are."""
        if index is not None and index in self.workers:
            return self.workers[index]
        await self._wait_for_workers(policy, 1)
        ready = sorted(self.workers)
        return self.workers[ready[position % len(ready)]]

    @contextlib.asynccontextmanager
    async def _assigned(self, worker: WorkerHandle, attempt: Attempt) -> Any:
        """Note that an episode is with a worker; where the worker is lost meanwhile, the pool notes the loss."""
        worker.unfinished[id(attempt)] = attempt
        try:
            yield
        except WorkerLost as lost:
            self._lose(worker, str(lost))
            raise
        finally:
            worker.unfinished.pop(id(attempt), None)

    async def _run_one(self, worker: WorkerHandle, attempt: Attempt, name: str, request: RolloutRequest) -> Trajectory:
        assert worker.version is not None
        limit = request.agent.deadlines
        seconds = 2 * (limit.episode + limit.reset + limit.open) + UPDATE_SECONDS  # an episode may be run twice
        provenance = json.dumps(dict(request.provenance))
        call = worker.actor.run.remote(
            encode_attempt(attempt), name, worker.version, provenance, request.updates_weights
        )
        kind, data = await self._answer(call, seconds)
        if kind == "error":
            raise UserError(f"Rollout worker {worker.index}: {data.decode()}")
        return decode_episode(data)

    async def _answer(self, call: Any, seconds: float | None) -> Any:
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

    # -- weights ----------------------------------------------------------------------------

    async def update_weights(self, policy: TrainablePolicy) -> float:
        """Give all workers the policy's current weights; those that join get them before they are ready.

        Returns the largest mean |worker's engine - learner| log-prob of a reply sampled after it.
        """
        self._start(policy)
        versions = versions_of(policy)
        if self._weights is None or self._weights.versions != versions:
            # Learner and workers at the same time: the learner's own tensors change while others may still join.
            keeps = self.config.trainer.max_staleness > 0
            sends_changes = not self.workers or not all(worker.is_here for worker in self.workers.values())
            tensors = trained_tensors(policy)
            self._weights = OutgoingWeights.after(self._weights, versions, tensors, keeps, sends_changes)
        await self._wait_for_workers(policy, self.min_workers)
        differences = await _all([self._update_or_lose(worker, policy) for worker in list(self.workers.values())])
        await self._wait_for_workers(policy, self.min_workers)
        return max(differences, default=0.0)

    async def _update_or_lose(self, worker: WorkerHandle, policy: TrainablePolicy) -> float:
        try:
            return await self._update(worker, policy)
        except WorkerLost as lost:
            self._lose(worker, str(lost))
            return 0.0

    async def _update(self, worker: WorkerHandle, policy: TrainablePolicy, compares: bool = True) -> float:
        """Send the weights to a worker that lacks them, and prove that they arrived.

        With `compares` the learner scores what the worker's engine samples, unless it has been trained meanwhile, as it
        may be while a worker joins: then that is done after the next update. The first time it shows that model,
        tokenizer and engine are the learner's. Later only the weights are new, and their checksums were right: a few
        tokens show whether the engine is damaged. The mean of few varies more: where it is too large, that of more
        tokens decides.
        """
        assert self._weights is not None
        sent = self._weights
        if worker.version == sent.number:
            await self._answer(worker.actor.reset.remote(sent.versions), UPDATE_SECONDS)
            return 0.0
        base = None if worker.is_here else worker.version
        refused = await self._send(worker, sent, base)
        if refused is not None and base is not None:  # changes on another base: send whole tensors
            refused = await self._send(worker, sent, None)
        if refused is not None:
            raise UserError(f"Rollout worker {worker.index} refuses the weights: {refused}.")
        worker.version = sent.number
        if not compares:
            return 0.0
        limit, difference = mismatch_limit(self.config), 0.0
        for num_tokens in (SHORT_PROBE_TOKENS, PROBE_TOKENS) if worker.is_compared else (PROBE_TOKENS,):
            sampled = await self._answer(worker.actor.probe.remote(num_tokens), UPDATE_SECONDS)
            if versions_of(policy) != sent.versions:
                return 0.0
            if (difference := policy.score_difference(sampled)) <= limit:
                break
        else:
            raise UserError(
                f"Rollout worker {worker.index} is {difference:.3g} per token away from the learner after an "
                f"update of its weights (limit {limit:g}); is the model's folder the same on all machines?"
            )
        worker.is_compared = True
        return difference

    async def _send(self, worker: WorkerHandle, sent: OutgoingWeights, version: int | None) -> str | None:
        """Send the weights as changes on a version, None: as whole tensors. Returns why they are refused, or None."""
        call = worker.actor.update_weights.remote(sent.message(self._ray, version), sent.versions)
        refused: str | None = await self._answer(call, UPDATE_SECONDS)
        return refused

    # -- workers ----------------------------------------------------------------------------

    def _start(self, policy: TrainablePolicy) -> None:
        """Connect to Ray and read the agents, once."""
        if self._ray is not None:
            return
        self._agents = agents_of(self.config, self.components, tuple(policy.role_engines))
        self._ray = self._stack.enter_context(ray_session.connected(self.num_workers + ranks.num_ranks()))
        on_gpu = policy.decoder.device.type == "cuda"
        share = self.config.actor_rollout_ref.rollout.gpus_per_worker if on_gpu else 1
        ray_session.check_resources(self._ray, self.min_workers, on_gpu, "The rollout workers", share=share)
        self._write("opened", version=policy.version, num_workers=self.num_workers)

    async def _wait_for_workers(self, policy: TrainablePolicy, count: int) -> None:
        """Start the workers that are missing, and wait until `count` are ready."""
        if self._refused:
            machines = self._machines()
            self._refused = {index: tried_on for index, tried_on in self._refused.items() if tried_on == machines}
        while True:
            for index in range(self.num_workers):
                if index not in self.workers and index not in self._joining and index not in self._refused:
                    self._joining[index] = asyncio.create_task(self._join(index, policy))
            if self._failure is not None:
                raise self._failure
            if len(self.workers) >= count:
                return
            self._changed.clear()
            await self._changed.wait()

    async def _join(self, index: int, policy: TrainablePolicy) -> None:
        """Start a worker and make it ready: it waits until Ray has place for it. After a loss it is started again.

        Nobody awaits this task: what else goes wrong is raised by those who wait for workers.
        """
        num_losses = 0
        try:
            while self._failure is None:
                worker = self._start_actor(index, policy)
                try:
                    await self._check(worker)
                    while self._weights is None or worker.version != self._weights.number:
                        await self._update(worker, policy, compares=not self.config.trainer.max_staleness)
                except WorkerLost as lost:
                    self._lose(worker, str(lost))
                    num_losses += 1
                    if num_losses < MAX_LOSSES:
                        continue
                    self._refuse(worker, f"Rollout worker {index} died {num_losses} times while it joined ({lost}).")
                except UserError as error:
                    self._refuse(worker, str(error))
                else:
                    self.workers[index] = worker
                break
        except Exception as error:
            self._failure = error
        del self._joining[index]
        self._changed.set()

    def _start_actor(self, index: int, policy: TrainablePolicy) -> WorkerHandle:
        on_gpu = policy.decoder.device.type == "cuda"
        actor = self._ray.remote(RolloutWorker).options(
            num_cpus=1, num_gpus=self.config.actor_rollout_ref.rollout.gpus_per_worker * on_gpu, max_concurrency=1000,
            max_restarts=0, scheduling_strategy="SPREAD",
        )  # fmt: skip
        threads = threads_per_worker(self.num_workers, len(self._ray.nodes()))
        started = actor.remote(to_yaml(self.config), str(self.folder.absolute()), os.getcwd(), threads)
        self._starts[index] += 1
        return WorkerHandle(index, started, self._starts[index] - 1, asyncio.Semaphore(policy.concurrency))

    async def _check(self, worker: WorkerHandle) -> None:
        """Raise UserError where a new worker has another version of the package or cannot build what it needs."""
        described = await self._answer(worker.actor.describe.remote(), None)  # Ray may have no place for it yet
        worker_name = f"Rollout worker {worker.index} on {described['host']}"
        if described["version"] != __version__:
            raise UserError(
                f"{worker_name} has Practicum {described['version']}, not {__version__}; install the same there."
            )
        if described["failure"] is not None:
            raise UserError(f"{worker_name}: {described['failure']}")
        worker.is_here = described["host"] == socket.gethostname()
        if described["agents"] != agent_hashes(self._agents):
            raise UserError(f"{worker_name} reads the configuration otherwise; install the same packages there.")
        location = {"host": described["host"], "pid": described["pid"]}
        self._write("worker_started", worker=worker.index, start=worker.starts, **location)

    def _refuse(self, worker: WorkerHandle, reason: str) -> None:
        """Go on without a worker that cannot take part, where enough others are left."""
        self._refused[worker.index] = self._machines()
        with contextlib.suppress(Exception):
            self._ray.kill(worker.actor)
        self._write("worker_refused", worker=worker.index, start=worker.starts, reason=reason)
        if self.num_workers - len(self._refused) < self.min_workers:
            self._failure = UserError(reason)
        else:
            self.say(f"{reason} The run goes on without it.")

    def _machines(self) -> frozenset[str]:
        """The machines of the cluster that are there."""
        return frozenset(node["NodeID"] for node in self._ray.nodes() if node["Alive"])

    def _lose(self, worker: WorkerHandle, reason: str) -> None:
        """Forget a worker that is lost, once, and end its process where it can be reached; it is started again."""
        if worker.is_lost:
            return
        worker.is_lost = True
        if was_ready := self.workers.get(worker.index) is worker:
            del self.workers[worker.index]
        with contextlib.suppress(Exception):
            self._ray.kill(worker.actor)
        keys = [_key(attempt) for attempt in worker.unfinished.values()]
        self._write("worker_lost", worker=worker.index, reason=reason, run_again=keys)
        self.say(f"Rollout worker {worker.index} is lost ({reason}); {len(keys)} episodes are run again.")
        self._num_losses += was_ready
        if self._num_losses >= MAX_LOSSES * self.num_workers:
            self._failure = UserError(
                f"Rollout workers died {self._num_losses} times in a row without an episode ({reason})."
            )
        self._changed.set()

    async def close(self) -> None:
        """End the workers."""
        if self._ray is None:
            return
        joining = list(self._joining.values())
        for task in joining:
            task.cancel()
        await asyncio.gather(*joining, return_exceptions=True)
        closing = [self._answer(worker.actor.close.remote(), CLOSE_SECONDS) for worker in self.workers.values()]
        await asyncio.gather(*closing, return_exceptions=True)
        for worker in self.workers.values():
            with contextlib.suppress(Exception):
                self._ray.kill(worker.actor)
        self.workers.clear()
        self._joining.clear()
        self._ray = None
        self._stack.close()

    def _write(self, event: str, **values: Any) -> None:
        """Add a line to the ledger."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LEDGER).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **values}) + "\n")


def versions_of(policy: TrainablePolicy) -> tuple[int, ...]:
    """The versions of a policy's models."""
    return tuple(model.version for model in policy.models)


def assign(planned: Sequence[Attempt], workers: Sequence[int]) -> list[int]:
    """The worker of each position of a plan: a group is on one worker, and groups go round."""
    worker_of: dict[str, int] = {}
    return [
        worker_of.setdefault(attempt.group or attempt.task.id, workers[len(worker_of) % len(workers)])
        for attempt in planned
    ]


def _key(attempt: Attempt) -> list[Any]:
    return [attempt.group or attempt.task.id, attempt.number]


async def _all(work: Sequence[Any]) -> list[Any]:
    """Await all; the first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""Learner ranks that Ray places and supervises: `trainer.nnodes` machines with `trainer.n_gpus_per_node` ranks each
(`train`), or `training.nnodes` with `training.n_gpus_per_node` (`sft`, `dpo`).

Every rank is a process of its own (`rank_process`), as `torchrun` would start it, beside a Ray actor that starts it,
passes on what it tells, and ends with it. Where a rank, its actor or its node dies, all ranks start again and go on
from the last checkpoint. The driver, which is the process that was called, decides and holds nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from practicum.config.overrides import Resolved, to_yaml
from practicum.config.resolve import SELECTED, rank_keys
from practicum.config.train import TrainConfig
from practicum.errors import UserError
from practicum.training.build import StepCallback, TrainResult
from practicum.training.cluster import ray_session
from practicum.training.cluster.rank_actor import RAY_THREADS, RankActor
from practicum.training.cluster.rank_process import INTERRUPTED
from practicum.training.settings import find_device
from practicum.utils.terminal import Progress

GRACE_SECONDS = 10.0
"""Seconds in which the other ranks may end by themselves after one has failed."""
MAX_FAILURES = 3
"""Failures in a row without a new step, after which the run stops."""
RAY_FATAL = re.compile(r"^\[[-\d]+ [:,\d]+ C \d+ \d+\] ", re.MULTILINE)
"""The line with which Ray ends a process, as where the node that it asks for has died and Ray has not noticed yet."""


@dataclass
class Ending:
    """How a rank ended: exit status (None: its actor died), the failure that it told, and the end of its stderr."""

    rank: int
    code: int | None = None
    failure: tuple[str, str] | None = None
    stderr: str = ""

    @property
    def died(self) -> bool:
        """Whether something ended it from outside: a signal, the end of its node, or Ray, whose node is gone."""
        if self.code is None or self.code < 0:
            return True
        return self.failure is None and RAY_FATAL.search(self.stderr) is not None

    def describe(self) -> str:
        if self.code is None:
            return f"rank {self.rank} was lost with its node or its supervisor"
        if self.code < 0:
            return f"rank {self.rank} was killed by signal {-self.code}"
        if self.died:
            return f"rank {self.rank} was ended by Ray, which has lost its node"
        return f"rank {self.rank} ended ({(self.failure or ('', f'exit status {self.code}'))[1]})"


@dataclass(frozen=True)
class RankJob:
    """What all ranks run: `train`, `sft` or `dpo` with its configuration, on `nnodes` machines with `per_node` each."""

    command: str
    resolved: Resolved[Any]
    model_folder: str | None
    nnodes: int
    per_node: int
    on_gpu: bool

    @property
    def num_ranks(self) -> int:
        return self.nnodes * self.per_node

    def request(self) -> str:
        """The line that a rank reads from its stdin."""
        config, sources = to_yaml(self.resolved.config), self.resolved.sources
        request = {"command": self.command, "config": config, "sources": sources, "model_folder": self.model_folder}
        return json.dumps(request)


SHOWN = {"train": ("reward", "reward/mean"), "sft": ("loss", "actor/loss"), "dpo": ("loss", "dpo/loss")}
"""By command, the metric in the line of progress: how it is called there, and its name."""


@dataclass
class RankSupervisor:
    """Runs all ranks until the training is done, again after a failure."""

    ray: Any
    job: RankJob
    log: Callable[[str], None]
    on_step: StepCallback | None
    line: Progress
    result: TrainResult | None = None
    last_step: int = 0
    actors: list[Any] = field(default_factory=list)
    num_signals: int = 0
    first_node: str | None = None
    """The address of the machine that rank 0 is on, however often it is started: it has the run's folder."""

    async def run(self) -> TrainResult:
        loop, failures, step_before = asyncio.get_running_loop(), 0, -1
        with contextlib.suppress(ValueError, RuntimeError):  # not the main thread: signals are handled elsewhere
            for signal_number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(signal_number, self._pass_on, signal_number)
        host = self.ray.util.get_node_ip_address()
        self.first_node = choose_first_node(self.ray.nodes(), host, self.job)
        if self.first_node not in (None, host):
            self.log(
                f"Rank 0, which writes the run's folder, is on {self.first_node}: this machine is too small for it."
            )
        for attempt in range(10_000):
            # A store of its own: addresses of ranks that are gone must not be found.
            store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
            endings = await self._run_once(host, store.port, attempt)
            if self.result is not None and all(ending.code == 0 for ending in endings):
                return self.result
            if self.num_signals:
                raise KeyboardInterrupt
            cause = first_failure(endings)
            failures = failures + 1 if self.last_step == step_before else 1
            step_before = self.last_step
            if failures >= MAX_FAILURES:
                raise UserError(f"Ranks failed {failures} times without a new step ({cause.describe()}).")
            when = f"After step {self.last_step}" if self.last_step else "Before the first step"
            self.log(f"{when}, {cause.describe()}; all ranks start again from the last checkpoint.")
        raise AssertionError("unreachable")

    async def _run_once(self, host: str, port: int, attempt: int) -> list[Ending]:
        """Start all ranks and follow them to their end."""
        job, per_node, on_gpu = self.job, self.job.per_node, self.job.on_gpu
        bundle = {"CPU": float(per_node), **({"GPU": float(per_node)} if on_gpu else {})}
        first = bundle if self.first_node is None else {**bundle, f"node:{self.first_node}": 0.001}
        group = self.ray.util.placement_group(
            [first, *[bundle] * (job.nnodes - 1)], strategy="STRICT_SPREAD" if job.nnodes > 1 else "STRICT_PACK"
        )
        try:
            if not await asyncio.to_thread(group.wait, ray_session.START_SECONDS):
                where = "" if self.first_node is None else f", {self.first_node} among them"
                raise UserError(
                    f"The Ray cluster has no {job.nnodes} machines with {per_node} free "
                    f"{'GPUs' if on_gpu else 'CPUs'} each{where}; lower nnodes or n_gpus_per_node."
                )
            make = self.ray.remote(RankActor)
            strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
            self.actors = [
                make.options(
                    num_cpus=1, num_gpus=int(on_gpu), max_concurrency=8,
                    scheduling_strategy=strategy(group, placement_group_bundle_index=rank // per_node),
                ).remote()
                for rank in range(job.num_ranks)
            ]  # fmt: skip
            return await self._follow_all(host, port, attempt)
        finally:
            await self._stop_all()
            self.ray.util.remove_placement_group(group)

    async def _follow_all(self, host: str, port: int, attempt: int) -> list[Ending]:
        request, per_node = self.job.request(), self.job.per_node
        common = {
            "WORLD_SIZE": str(len(self.actors)), "LOCAL_WORLD_SIZE": str(per_node), "MASTER_ADDR": host,
            "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is the driver's
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "RAY_ADDRESS": self.ray.get_runtime_context().gcs_address,
            **{name: os.environ[name] for name in (*RAY_THREADS, "PYTHONPATH") if name in os.environ},
        }  # fmt: skip
        following = []
        for rank, actor in enumerate(self.actors):
            local = str(rank % per_node)
            env = {**common, "RANK": str(rank), "LOCAL_RANK": local, SELECTED: local}
            following.append(asyncio.create_task(self._follow(rank, actor, request, env)))
        try:
            waiting = set(following)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if any(task.result().code != 0 for task in done):
                    await asyncio.wait(waiting or done, timeout=GRACE_SECONDS)
                    break
            return [task.result() for task in following if task.done()]
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    async def _follow(self, rank: int, actor: Any, request: str, env: dict[str, str]) -> Ending:
        """Start a rank and handle its events until it ends."""
        ending = Ending(rank)
        try:
            await ray_session.as_future(actor.start.remote(request, env, os.getcwd()))
            while True:
                kind, value = await ray_session.as_future(actor.next_event.remote())
                if kind == "exit":
                    ending.code, ending.stderr = value
                    return ending
                if kind in ("user_error", "ranks_lost"):
                    ending.failure = (kind, value)
                elif rank == 0:
                    self._handle(kind, value)
        except self.ray.exceptions.RayTaskError:
            raise
        except self.ray.exceptions.RayError:
            return ending

    def _handle(self, kind: str, value: Any) -> None:
        """Pass on what the first rank tells."""
        if kind == "log":
            self.log(value)
        elif kind == "result":
            self.result = TrainResult(**{**value, "folder": Path(value["folder"]), "model": Path(value["model"])})
        elif kind == "step":
            step, total, values = value
            self.last_step = max(self.last_step, step)
            self.line.total, self.line.done = total, step - 1
            label, name = SHOWN[self.job.command]
            self.line.advance(1, f"{label} {values.get(name, float('nan')):.3f}")
            if self.on_step is not None:
                self.on_step(step, total, values)

    def _pass_on(self, signal_number: int) -> None:
        """Pass a signal on to the first rank, which decides for all; the second one ends everything."""
        self.num_signals += 1
        for actor in self.actors if self.num_signals > 1 else self.actors[:1]:
            actor.signal.remote(signal_number if self.num_signals == 1 else signal.SIGKILL)

    async def _stop_all(self) -> None:
        """Kill what is left of the ranks."""
        actors, self.actors = self.actors, []
        stopping = [asyncio.wait_for(ray_session.as_future(actor.stop.remote()), GRACE_SECONDS) for actor in actors]
        await asyncio.gather(*stopping, return_exceptions=True)
        for actor in actors:
            with contextlib.suppress(Exception):
                self.ray.kill(actor)


def first_failure(endings: list[Ending]) -> Ending:
    """The ending that made the others fail, if it is one to start again from; raise where it is not.

    Where a rank was ended from outside, whatever the others fail with may come from that.
    """
    for ending in endings:
        if ending.failure is not None and ending.failure[0] == "user_error":
            raise UserError(ending.failure[1])
    if lost := [ending for ending in endings if ending.died]:
        return lost[0]
    for ending in endings:
        if ending.code not in (0, INTERRUPTED) and ending.failure is None:
            raise RuntimeError(f"Rank {ending.rank} failed:\n{ending.stderr}")
    return next(ending for ending in endings if ending.code != 0)


def choose_first_node(nodes: Sequence[Mapping[str, Any]], host: str, job: RankJob) -> str | None:
    """The address of the machine for rank 0: that of the driver where it is large enough, else the first one that is.

    None: no machine is large enough now. Ray offers every machine as a resource of the name `node:ADDRESS`.
    """
    kind = "GPU" if job.on_gpu else "CPU"
    addresses: list[str] = sorted(
        node["NodeManagerAddress"] for node in nodes if node["Alive"] and node["Resources"].get(kind, 0) >= job.per_node
    )
    return host if host in addresses else next(iter(addresses), None)


def make_job(command: str, resolved: Resolved[Any], model_folder: str | Path | None) -> RankJob:
    """The ranks that a configuration asks for, on a GPU each unless it asks for CPUs: the driver may have no GPU."""
    config = resolved.config
    values = rank_keys(config)[1]
    device = config.trainer.device if isinstance(config, TrainConfig) else config.model.device
    on_gpu = values.n_gpus_per_node > 0 and device != "cpu"
    if not on_gpu and isinstance(config, TrainConfig):
        find_device(config)  # what is wrong with device or dtype is an error before Ray starts
    folder = None if model_folder is None else str(Path(model_folder).absolute())
    return RankJob(command, resolved, folder, values.nnodes, max(1, values.n_gpus_per_node), on_gpu)


def train_on_ranks(
    command: str,
    resolved: Resolved[Any],
    progress: bool,
    log: Callable[[str], None],
    on_step: StepCallback | None,
    model_folder: str | Path | None = None,
) -> TrainResult:
    """Run `train`, `sft` or `dpo` on the ranks that its numbers of machines and GPUs ask for."""
    config, job = resolved.config, make_job(command, resolved, model_folder)
    num_workers = config.actor_rollout_ref.rollout.num_workers if isinstance(config, TrainConfig) else 0
    cpu_key = "trainer.device" if isinstance(config, TrainConfig) else "model.device"
    what = "Learner ranks and rollout workers" if num_workers else "Learner ranks"
    with ray_session.connected(job.num_ranks + num_workers) as ray:
        ray_session.check_resources(ray, job.num_ranks + num_workers, job.on_gpu, what, cpu_key)
        with Progress(command, 0, "steps", shown=progress) as line:
            return asyncio.run(RankSupervisor(ray, job, log, on_step, line).run())

"""Rollouts beside the training: the batches of coming steps, with a bound on how old their tokens may become.

The tasks of step n are admitted when the weights are those of step `n - max_staleness`, so no token is older than that
when it is trained on. Batches are trained on in the order of admission, each with exactly the tasks of a synchronous
run: the learner waits for the slowest episode of the oldest batch. Training on whatever ends first, or discarding what
has become too old, would train on short episodes more often than on long ones (`benchmarks/async_length_bias.py`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from practicum.data.store import decode_episode, encode_episode
from practicum.training.rollout_batch import RolloutBatch
from practicum.training.rollout_source import OnEpisode, OnlineSource
from practicum.trajectory import Trajectory, is_trained

CLOSE_SECONDS = 5.0
"""Seconds to wait for cancelled episodes to end."""


@dataclass
class PendingBatch:
    """A batch that is being rolled out: the state of the task stream before it, and its episodes so far."""

    step: int
    stream: dict[str, Any] | None = None
    finished: list[Trajectory] = field(default_factory=list)
    task: asyncio.Task[RolloutBatch] | None = None


class AsyncSource:
    """The batches of an `OnlineSource`, begun up to `max_staleness` steps before they are trained on."""

    from_engine = False
    """The weights have changed since a token was sampled: its log-prob differs from the learner's for that reason."""
    metric_names: Mapping[str, str] = {}

    def __init__(self, source: OnlineSource) -> None:
        self.source = source
        self.agent = source.agent
        self.max_staleness = source.settings.max_staleness
        policy = source.policy
        policy.episode_slots = asyncio.Semaphore(policy.concurrency)
        self._pending: dict[int, PendingBatch] = {}
        self._first_versions: list[tuple[int, int]] = []
        """By step, oldest first: the version of the weights at its start. As many as may have sampled a token."""

    async def collect(self, step: int, on_episode: OnEpisode | None = None) -> RolloutBatch:
        """The batch of a step, after the batches of the steps that may be begun with the current weights."""
        self._first_versions = [(s, v) for s, v in self._first_versions if step - self.max_staleness <= s < step]
        self._first_versions.append((step, self.source.policy.version))
        last = self.source.settings.total_training_steps - 1
        for coming in range(step, min(step + self.max_staleness, last) + 1):
            if coming not in self._pending:
                self._admit(coming, on_episode)
        task = self._pending[step].task
        assert task is not None
        batch = await asyncio.shield(task)  # a wait that is given up leaves the episodes that have ended to `state`
        del self._pending[step]
        roles = self.source.settings.estimation.train_roles
        staleness = staleness_metrics(step, batch, self._first_versions, self.max_staleness, roles)
        return replace(batch, metrics={**batch.metrics, **staleness})

    def _admit(self, step: int, on_episode: OnEpisode | None) -> None:
        """Begin the batch of a step; its tasks are drawn before those of later steps."""
        pending = self._pending[step] = PendingBatch(step)

        def done(episode: Trajectory) -> None:
            pending.finished.append(episode)
            if on_episode is not None:
                on_episode(episode)

        async def roll_out() -> RolloutBatch:
            pending.stream = self.source.stream.state()
            labels = f"step-{step}/"
            pending.finished += [
                trajectory for (group, _), trajectory in self.source.finished.items() if group.startswith(labels)
            ]
            return await self.source.collect(step, done)

        pending.task = asyncio.create_task(roll_out())

    def state(self) -> dict[str, Any]:
        """The stream before the oldest batch that is not trained on yet, and the finished episodes of all of them."""
        oldest = min(self._pending, default=None)
        stream = None if oldest is None else self._pending[oldest].stream
        finished = dict(self.source.finished)  # of an earlier process
        for pending in self._pending.values():
            finished |= {(episode.group, episode.attempt): episode for episode in pending.finished}
        return {
            "stream": self.source.stream.state() if stream is None else stream,
            "first_versions": [list(pair) for pair in self._first_versions],
            "finished": [encode_episode(episode).decode() for episode in finished.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: batches are admitted anew, and episodes that had ended are not run again."""
        self.source.restore(state)
        self._first_versions = [(int(step), int(version)) for step, version in state.get("first_versions", ())]
        episodes = [decode_episode(text.encode()) for text in state.get("finished", ())]
        self.source.finished = {(episode.group, episode.attempt): episode for episode in episodes}

    async def close(self) -> None:
        """Stop the batches that are being rolled out."""
        tasks = [pending.task for pending in self._pending.values() if pending.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            ended, _ = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            await asyncio.gather(*ended, return_exceptions=True)


def staleness_metrics(
    step: int,
    batch: RolloutBatch,
    first_versions: Sequence[tuple[int, int]],
    max_staleness: int,
    roles: Collection[str] | None,
) -> dict[str, float]:
    """Return how many steps the weights were behind those of this step when the trained turns were sampled.

    `first_versions`: step and version of the weights at its start, oldest first. Raises where a turn is older.
    """
    steps, versions = zip(*first_versions, strict=True)
    all_turns = [turn for group in batch.groups for episode in group for turn in episode.turns]
    # A turn that the environment chose has no tokens, and no version.
    turns = [turn for turn in all_turns if turn.num_sampled and is_trained(turn, roles)]
    if not turns:
        return {}
    oldest = min(turn.policy_version for turn in turns)
    if oldest < versions[0]:
        raise AssertionError(f"a turn of version {oldest} is more than {max_staleness} steps old")
    ages = [step - steps[bisect_right(versions, turn.policy_version) - 1] for turn in turns]
    return {"staleness/steps/mean": sum(ages) / len(ages), "staleness/steps/max": float(max(ages))}

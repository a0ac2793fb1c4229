"""Collecting: episodes of any policy, written into a folder; a second run continues where the first one stopped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from practicum.chat.console import ConsoleEpisodeWatcher
from practicum.data import store
from practicum.data.collection import CHOOSE_ANOTHER, Collection, Row, plan
from practicum.data.episode_times import TIMING_FILE, append_times
from practicum.data.run_folder import locked
from practicum.data.tasks import find_tasks, registry_hash
from practicum.engines.server_check import check_server
from practicum.errors import UserError
from practicum.rollout_settings import RolloutSettings, policy_identity
from practicum.trajectory import Attempt, Outcome, Trajectory
from practicum.utils.concurrency import run_async
from practicum.utils.tables import percent, progress_label
from practicum.utils.terminal import Progress, printable

MAX_ERROR_CHARACTERS = 300
NUM_RETRIES = 1
"""Times that an episode is run again if it ends unscored: one whose worker process was killed gets a new worker."""
MAX_UNSCORED_SHARE = 0.1
"""Share of unscored episodes above which a collection counts as failed."""


@dataclass(frozen=True, kw_only=True)
class CollectSettings(RolloutSettings):
    """What to collect, and the folder: `out`/`experiment`/`run_id`."""

    rollouts_per_task: int = 1
    task_seed: int = 0
    """Seed of the environment: this + 1000 × task + rollout."""
    out: str | Path = "runs"
    experiment: str = "collect"
    run_id: str | None = None
    """None: a name made of the environment, the policy, the split and the seed."""
    watch: bool = False
    """Print the first episode as it runs."""

    def folder(self, default_name: str) -> Path:
        """Return the folder of the episodes; `default_name`, which may begin with a path, never makes a hidden one."""
        name = re.sub(r"^(\.+_)+", "", re.sub(r"[^A-Za-z0-9_.-]+", "_", default_name))
        return Path(self.out) / self.experiment / (self.run_id or name)

    @property
    def mode(self) -> str:
        if self.url is not None:
            return "server"
        return self.policy if self.is_scripted else "model"


@dataclass(frozen=True)
class CollectResult:
    """The episodes of a collection: `rows` is one summary per episode file, those from before first."""

    folder: Path
    rows: Mapping[Path, Row]
    num_new: int
    """Episodes that this run added."""

    @property
    def counts(self) -> Counter[str]:
        """Number of episodes by outcome."""
        return Counter(row["outcome"] for row in self.rows.values())

    @property
    def rewards(self) -> list[float]:
        """Rewards of the scored episodes."""
        return [row["reward"] for row in self.rows.values() if Outcome(row["outcome"]).scored]

    @property
    def unscored_warning(self) -> str | None:
        """A sentence with the remedy if too many episodes are unscored; None otherwise."""
        num_unscored = len(self.rows) - len(self.rewards)
        if num_unscored <= MAX_UNSCORED_SHARE * len(self.rows):
            return None
        return (
            f"{num_unscored} of {len(self.rows)} episodes are unscored, more than "
            f"{percent(MAX_UNSCORED_SHARE, digits=0)}: remove the cause and run the same command again, which runs "
            "only these."
        )

    @cached_property
    def episodes(self) -> list[Trajectory]:
        """The episodes, read from the folder on first use."""
        return [store.read_episode(path) for path in self.rows]

    def describe(self) -> str:
        """One line: how many episodes, where, their outcomes and mean reward, and the first error."""
        rewards, rows = self.rewards, self.rows.values()
        mean = f"mean reward {sum(rewards) / len(rewards):.3f}" if rewards else "none scored"
        before = f" ({len(rows) - self.num_new} of them from before)" if self.num_new < len(rows) else ""
        failed = next((row for row in rows if not Outcome(row["outcome"]).scored), None)
        if failed is not None:
            error = " ".join(printable(failed.get("error") or "it gave no reason").split())
            mean += f"; first: {error[:MAX_ERROR_CHARACTERS]}"
        return f"{len(rows)} episodes in {self.folder}{before}: {format_counts(self.counts)}; {mean}"


def collect(settings: CollectSettings, *, progress: bool = True, log: Callable[[str], None] = print) -> CollectResult:
    """Run the episodes of `settings` that its folder does not hold yet, and write each one as it ends.

    A folder that holds episodes made under other settings is an error. `progress` shows a line on stderr; `log` gets
    notes about the settings before the first episode.
    """
    return run_async(run_collection(settings, plan_collection(settings, log), progress))


def plan_collection(settings: CollectSettings, log: Callable[[str], None] = print) -> Collection:
    """The environment, agent and tasks of the settings, before any model is loaded."""
    environment = settings.make_environment()
    tasks = settings.select_tasks(environment)
    if settings.sample_size is not None and len(tasks) < settings.sample_size:
        log(f"--sample_size {settings.sample_size}: there are {len(tasks)} such tasks, so all of them are played")
    planned = plan(tasks, settings.rollouts_per_task, settings.seed, settings.task_seed)
    name = f"{settings.environment}-{settings.policy.strip('/.~')}-{settings.split}-seed{settings.seed}"
    folder = settings.folder(name)
    about = {
        "run_id": folder.name,
        "experiment": settings.experiment,
        "mode": settings.mode,
        "policy": settings.policy,
        "subset": settings.subset,
        "max_turns": settings.max_turns,
    }
    return Collection(folder, planned, _recorded_settings(settings, registry_hash(tasks)), about)


def _recorded_settings(settings: CollectSettings, tasks_hash: str) -> dict[str, Any]:
    """Everything that the episodes depend on, as collect.json holds it."""
    sampling = settings.sampling()
    return {
        "environment": settings.environment,
        "options": settings.recorded_options,
        "format": settings.format,
        "split": settings.split,
        "subset": settings.subset,
        "sample_size": settings.sample_size,
        "tasks": tasks_hash,
        "policy": policy_identity(settings.policy, settings.url),
        "url": settings.url,
        "tokenizer": settings.tokenizer,
        "template": settings.template,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "max_turns": settings.max_turns,
        "rollouts_per_task": settings.rollouts_per_task,
        "seed": settings.seed,
        "task_seed": settings.task_seed,
        **settings.device_record(),
        **settings.roles_record,
        **settings.round_record,
        **settings.decoding_record,
        **settings.external_record,
    }


async def run_collection(settings: CollectSettings, collection: Collection, progress: bool = True) -> CollectResult:
    """Run the attempts that the folder does not hold yet; close the engine whatever happens."""
    with locked(collection.folder, CHOOSE_ANOTHER) as lock:
        lock.delete_unfinished()
        return await _run_missing(settings, collection, progress)


async def _run_missing(settings: CollectSettings, collection: Collection, progress: bool) -> CollectResult:
    rows = collection.finished()
    missing = [attempt for attempt in collection.planned if collection.path(attempt) not in rows]
    if missing:
        if settings.url is not None:
            check_server(settings.url, settings.policy)
        setup = settings.make_setup()
        counts = Counter(row["outcome"] for row in rows.values())
        try:
            with Progress(progress_label("collect", settings.policy), len(missing), "episodes", shown=progress) as line:

                def save(episode: Trajectory) -> None:
                    if episode.tool_seconds:
                        append_times(collection.folder / TIMING_FILE, episode)
                    path = store.write_episode(collection.folder, episode)
                    rows[path] = collection.row(path, episode)
                    counts[episode.outcome.value] += 1
                    line.advance(1, format_counts(counts))

                await setup.stream(
                    collection.planned,
                    missing,
                    round_size=settings.round_size,
                    read=lambda attempt: store.read_episode(collection.path(attempt)),
                    on_done=save,
                    concurrency=settings.concurrency,
                    retries=NUM_RETRIES,
                    provenance={**setup.provenance, "policy": settings.policy, "collect": collection.hash},
                    watcher=ConsoleEpisodeWatcher(setup.renderer) if settings.watch else None,
                )
        finally:
            await setup.close()
    collection.finish(rows)
    return CollectResult(collection.folder, rows, len(missing))


def first_attempt(settings: CollectSettings, task_id: str) -> Attempt:
    """The first attempt at a task of the registry or the environment, by its id."""
    environment = settings.make_environment()
    if settings.task_registry is not None:
        tasks = {task.id: task for task in settings.select_tasks(environment)}
    else:
        tasks = find_tasks(environment, [task_id], settings.split, settings.seed)
    if task_id not in tasks:
        raise UserError(
            f"Environment '{settings.environment}' has no '{settings.split}' task '{task_id}'; "
            "check --split and --seed."
        )
    return plan([tasks[task_id]], 1, settings.seed, settings.task_seed)[0]


def format_counts(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())

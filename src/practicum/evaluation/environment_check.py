"""Checks an environment: expert and null policy, wrong answers, determinism, splits, blocking calls, speed, memory."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from practicum.data.near_duplicates import near_duplicate_key
from practicum.data.store import encode_episode
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import SPLITS, Action, Environment
from practicum.environments.worker import close_pools
from practicum.errors import UserError, describe_exception
from practicum.evaluation.answer_check import AnswerCheck, check_answers
from practicum.evaluation.stats.intervals import jeffreys
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.rollout_setup import RolloutSetup, make_rollout_setup
from practicum.task import Task
from practicum.trajectory import ActionSource, Outcome, Trajectory, plan_attempts
from practicum.utils.memory import release_free_memory, tree_resident_megabytes

MIN_EXPERT_SHARE = 0.95
"""Share of its ceiling that the expert must reach; the interval of its success rate decides."""
EXPERT_INTERVAL_LEVEL = 0.98
"""Confidence level of that interval."""
NUM_REPLAYED_TASKS = 10
"""Number of tasks that another process plays too."""
MAX_OPEN_EPISODES = 64
"""Number of episodes that are open at once, if there are as many tasks."""
MAX_EXPERT_TURNS, MAX_NULL_TURNS = 200, 5
MAX_BLOCKING_SECONDS = 0.25
"""Time for which half of an environment's resets or steps may keep the event loop, which all episodes share."""
NO_DIGEST = "none"
"""What another process prints for an environment that it cannot play."""
NUM_TASKS_PER_SPLIT = 300
"""Tasks per split in which duplicates are looked for, where listing them is quick."""
QUICK_LISTING_SECONDS = 0.5
MAX_CAUSES = 2
"""Number of different causes of failed episodes that are printed."""


@dataclass(frozen=True)
class CheckResult:
    """Result of checking one environment."""

    tasks: int
    oracle: float
    """Success rate of the expert; without one, of the tasks' own answers; NaN without those too."""
    ceiling: float
    null: float
    floor: float
    repeats: bool
    """The same seed gave the same episode twice in this process."""
    replays: bool | None
    """The same seed gave the same episode in another process; None if that could not play."""
    disjoint: bool
    speed: float
    """Steps per second of all episodes together, with the expert and rendering."""
    num_open: int
    num_wanted: int
    megabytes: float
    """Memory of the open episodes and their processes."""
    policy: str = "expert"
    """What was played: `expert`, `answers` (the field `answer` of the tasks) or `random`."""
    expert_causes: str = ""
    """Why episodes of the expert did not succeed."""
    null_causes: str = ""
    """Why episodes of the null policy ended in an error."""
    open_cause: str = ""
    """The exception of the first episode that could not be opened."""
    blocking: Mapping[str, float] = field(default_factory=dict)
    """Seconds for which half of the calls of a method kept the event loop."""
    answers: AnswerCheck = field(default_factory=AnswerCheck)
    """Wrong answers played."""
    near_duplicates: int = 0
    """Number of val and test tasks that are a training task but for names, case or punctuation."""

    @property
    def faults(self) -> list[str]:
        """Return a sentence for each fault; an environment without any is sound."""
        if self.policy == "random":
            expert_fails, expert_fault = True, "there is no expert: define `def expert(self, task)`"
        else:
            interval = jeffreys(round(self.oracle * self.tasks), self.tasks, EXPERT_INTERVAL_LEVEL)
            expert_fails = interval.high < MIN_EXPERT_SHARE * self.ceiling
            expert_fault = "the expert fails" if self.policy == "expert" else "the tasks' own answers are refused"
        answers = self.answers
        checks = (
            (expert_fails, _because(expert_fault, self.expert_causes)),
            (self.null > self.floor + 1e-9, "the null policy is above its floor"),
            (bool(self.null_causes), _because("the null policy's episodes cannot be scored", self.null_causes)),
            (not self.repeats, "the same seed gave another episode"),
            (self.replays is False, "another process gave another episode"),
            (self.replays is None, "another process could not play it"),
            (not self.disjoint, "splits overlap"),
            (
                self.near_duplicates > 0,
                f"{self.near_duplicates} val and test tasks are training tasks but for names, case or punctuation",
            ),
            (
                self.num_open < self.num_wanted,
                _because(f"only {self.num_open} of {self.num_wanted} episodes could be open at once", self.open_cause),
            ),
            (
                answers.accepted > 0,
                _because(f"accepts {answers.accepted} of {answers.wrong} wrong answers", "; ".join(answers.examples)),
            ),
            (
                answers.refused > 0,
                _because(f"refuses {answers.refused} of {answers.right} right answers", "; ".join(answers.examples)),
            ),
            *(
                (
                    seconds > MAX_BLOCKING_SECONDS,
                    f"`{method}` blocks all episodes for {seconds:.2f} s: await what takes time, or write it as a "
                    "plain `def`, which runs in a thread",
                )
                for method, seconds in self.blocking.items()
            ),
        )
        return [text for failed, text in checks if failed]


def _because(fault: str, causes: str) -> str:
    return f"{fault}: {causes}" if causes else fault


class ReplayProcess:
    """Another process that plays the same tasks of several environments, one after the other, at the same time."""

    def __init__(self, names: Sequence[str], count: int, options: Mapping[str, Any]) -> None:
        flags = [word for key, value in options.items() for word in ("--env-arg", f"{key}={json.dumps(value)}")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "practicum.cli", "envs", "digest", ",".join(names), "--tasks", str(count), *flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._digests: dict[str, str] = {}

    def digest(self, name: str) -> str | None:
        """Return the digest of the other process's episodes; None if it could not play the environment."""
        assert self._process.stdout is not None
        while name not in self._digests:
            line = self._process.stdout.readline()
            if not line:
                return None
            if line.startswith("digest "):
                environment, _, value = line.removeprefix("digest ").rstrip().rpartition(" ")
                self._digests[environment] = value
        return None if self._digests[name] == NO_DIGEST else self._digests[name]

    def megabytes_without_replay(self) -> float:
        """Return the memory of this process tree without the replay process and its children."""
        return tree_resident_megabytes() - tree_resident_megabytes(self._process.pid)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def user_error(name: str, error: BaseException) -> UserError:
    """Return the UserError that an exception or group of exceptions is or contains, else one that describes it."""
    while isinstance(error, BaseExceptionGroup):
        error = (error.subgroup(UserError) or error).exceptions[0]
    return error if isinstance(error, UserError) else UserError(f"'{name}' raises {describe_exception(error)}.")


def check_environments(
    names: Sequence[str], count: int, options: Mapping[str, Any]
) -> Iterator[tuple[str, CheckResult | UserError]]:
    """Check environments one after the other on `count` tasks; an error instead of a result if one cannot run."""
    replay = ReplayProcess(names, count, options)
    try:
        for name in names:
            try:
                yield name, asyncio.run(check(name, count, options, replay))
            except Exception as error:  # one environment that cannot be checked must not hide the others
                yield name, user_error(name, error)
    finally:
        replay.close()


@dataclass(frozen=True)
class CheckSetup:
    """A setup and what its engine plays: `expert`, `answers` or `random`."""

    setup: RolloutSetup
    engine: ScriptedEngine
    policy: str

    @property
    def environment(self) -> Environment:
        return self.setup.environment

    def tasks(self, split: str, count: int) -> list[Task]:
        try:
            return list(self.environment.tasks(split, count))
        except NotImplementedError:
            raise UserError(
                f"{type(self.environment).__name__} has no tasks: define `def tasks(self, split, count, seed=0)`, "
                "or give it a file with --data if it takes one."
            ) from None


async def make_check_setup(name: str, options: Mapping[str, Any]) -> CheckSetup:
    """Return the setup of the expert; without one, of the field `answer` of the tasks; else of the random policy."""
    setup = make_rollout_setup(name, "expert", max_turns=MAX_EXPERT_TURNS, options=options)
    assert isinstance(setup.engine, ScriptedEngine)
    expert = CheckSetup(setup, setup.engine, "expert")
    tasks = expert.tasks("train", 1)
    if not tasks:
        raise UserError(f"'{name}' has no 'train' tasks.")
    await setup.resources.open()  # the expert may need them; they are closed with the event loop
    try:
        await setup.environment.ready_expert(tasks[0])
        setup.environment.expert(tasks[0])
        return expert
    except NotImplementedError:
        pass
    if isinstance(tasks[0].fields.get("answer"), str | int | float):
        engine = ScriptedEngine(
            lambda task, seed: lambda observation: Action(content=str(task.fields.get("answer"))),
            ActionSource.EXPERT,
            make_format(setup.agent.format),
            setup.renderer,
        )
        return CheckSetup(replace(setup, engine=engine), engine, "answers")
    setup = make_rollout_setup(name, "random", max_turns=MAX_NULL_TURNS, options=options)
    assert isinstance(setup.engine, ScriptedEngine)
    return CheckSetup(setup, setup.engine, "random")


async def check(name: str, count: int, options: Mapping[str, Any], replay: ReplayProcess) -> CheckResult:
    """Check one environment with `count` tasks."""
    release_free_memory()
    megabytes_before = replay.megabytes_without_replay()
    try:
        checked = await make_check_setup(name, options)
        environment = checked.environment
        open_episodes = await hold_open(checked, min(count, MAX_OPEN_EPISODES))
        megabytes = max(0.0, replay.megabytes_without_replay() - megabytes_before)
        started_at = time.perf_counter()
        episodes = await play(checked, count)
        speed = sum(len(episode.turns) for episode in episodes) / (time.perf_counter() - started_at)
        repeated = await play(checked, count)
        null = make_rollout_setup(name, "null", max_turns=MAX_NULL_TURNS, options=options)
        null = replace(null, resources=checked.setup.resources)
        assert isinstance(null.engine, ScriptedEngine)
        null_episodes = await play(CheckSetup(null, null.engine, "null"), count)
        solved = [episode for episode in episodes if episode.outcome is Outcome.SUCCESS]
        answers = (
            await check_answers(checked.setup, environment, solved) if checked.policy != "random" else AnswerCheck()
        )
        splits = tasks_of_splits(checked, count)
        digest_elsewhere = replay.digest(name)
        own_digest = episodes_digest(episodes[:NUM_REPLAYED_TASKS])
        return CheckResult(
            tasks=len(episodes),
            oracle=success_rate(episodes) if checked.policy != "random" else float("nan"),
            ceiling=environment.ceiling,
            null=success_rate(null_episodes),
            floor=environment.floor,
            repeats=episodes == repeated,
            replays=None if digest_elsewhere is None else digest_elsewhere == own_digest,
            disjoint=splits_are_disjoint(splits),
            near_duplicates=count_near_duplicates(splits),
            speed=speed,
            num_open=open_episodes.num_open,
            num_wanted=open_episodes.num_wanted,
            megabytes=megabytes,
            policy=checked.policy,
            expert_causes=causes_of(episodes) if checked.policy != "random" else "",
            null_causes=causes_of([episode for episode in null_episodes if not episode.scored], len(null_episodes)),
            open_cause=open_episodes.cause,
            blocking=open_episodes.blocking,
            answers=answers,
        )
    finally:
        close_pools()


def causes_of(episodes: Sequence[Trajectory], total: int | None = None) -> str:
    """Return why episodes did not succeed, the most frequent causes first; "" if all did."""
    failed = [episode for episode in episodes if episode.outcome is not Outcome.SUCCESS]
    causes = Counter(_cause(episode) for episode in failed)
    shown = [f"{count} of {total or len(episodes)} {cause}" for cause, count in causes.most_common(MAX_CAUSES)]
    return "; ".join((*shown, "…") if len(causes) > MAX_CAUSES else shown)


def _cause(episode: Trajectory) -> str:
    if episode.error is not None:
        return f"{episode.outcome.value}: {episode.error}"
    if episode.outcome is Outcome.TRUNCATED:
        return "reached the limit of turns without an end"
    return "ended without success"


def tasks_of_splits(checked: CheckSetup, count: int) -> list[list[Task]]:
    """Return the tasks of every split, train first; a split that a file does not give is left out.

    There are `count` of them, or NUM_TASKS_PER_SPLIT where listing tasks is quick and tasks can be near duplicates;
    `count` too where a split has fewer.
    """
    begin = time.perf_counter()
    train = checked.tasks("train", count)
    is_quick = time.perf_counter() - begin < QUICK_LISTING_SECONDS
    more = max(count, NUM_TASKS_PER_SPLIT)
    counts = (more, count) if is_quick and near_duplicate_key(train[0]) != train[0].hash else (count,)
    splits = [tasks for split in SPLITS if (tasks := _tasks_or_none(checked, split, counts)) is not None]
    return splits or [train]


def _tasks_or_none(checked: CheckSetup, split: str, counts: Sequence[int]) -> list[Task] | None:
    """Return the tasks of a split by the first of the counts that it has; None if it has no tasks at all."""
    for count in counts:
        with contextlib.suppress(UserError):
            return checked.tasks(split, count)
    return None


def splits_are_disjoint(splits: Sequence[Sequence[Task]]) -> bool:
    """Return whether no task is in two splits."""
    hashes = [{task.hash for task in tasks} for tasks in splits]
    return sum(map(len, hashes)) == len(set[str]().union(*hashes))


def count_near_duplicates(splits: Sequence[Sequence[Task]]) -> int:
    """Return how many tasks of the later splits are one of the first but for names, case or punctuation."""
    train, *others = splits
    keys = {near_duplicate_key(task) for task in train}
    return sum(near_duplicate_key(task) in keys for tasks in others for task in tasks)


SCHEDULER_TIMES = Path("/proc/thread-self/schedstat")
"""Of this thread, in nanoseconds: time on a core, time of waiting for one, then a count (Linux)."""


def seconds_waited_for_core() -> float:
    """Return how long this thread was ready to run and other processes had the cores; 0 where it is not known."""
    try:
        return int(SCHEDULER_TIMES.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class TimedAwait:
    """Awaits something and measures the longest time for which it did not give control back to the event loop.

    Time in which other processes had the cores is left out: a busy machine is no fault of what is awaited.
    """

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.awaitable, self.longest = awaitable, 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        iterator = self.awaitable.__await__()
        value: Any = None
        error: BaseException | None = None
        while True:
            started = time.perf_counter() - seconds_waited_for_core()
            try:
                pending = iterator.send(value) if error is None else iterator.throw(error)
            except StopIteration as stop:
                return stop.value
            finally:
                self.longest = max(self.longest, time.perf_counter() - seconds_waited_for_core() - started)
            try:
                value, error = (yield pending), None
            except BaseException as raised:
                value, error = None, raised


@dataclass(frozen=True)
class OpenEpisodes:
    """How many episodes could be open at once, why others could not, and how long their calls blocked."""

    num_open: int
    num_wanted: int
    cause: str
    blocking: Mapping[str, float]


async def hold_open(checked: CheckSetup, count: int) -> OpenEpisodes:
    """Open `count` episodes at once and take a step in each."""
    tasks = checked.tasks("train", count)
    environments: list[Environment] = []
    blocked: dict[str, list[float]] = {"reset": [], "step": []}

    async def timed(method: str, awaitable: Awaitable[Any]) -> Any:
        call = TimedAwait(awaitable)
        try:
            return await call
        finally:
            blocked[method].append(call.longest)

    async def reset_and_step(environment: Environment, index: int) -> bool:
        environment.resources = checked.setup.resources.bind()
        await environment.resources.ready(environment.resource_names(tasks[index]))
        observation = await timed("reset", environment.reset(tasks[index], index))
        if checked.engine.ready is not None:
            await checked.engine.ready(tasks[index])
        await timed("step", environment.step(checked.engine.make_policy(tasks[index], 0)(observation)))
        return True

    try:
        for _ in tasks:
            environments.append(checked.setup.make_environment())
        results = await asyncio.gather(
            *(reset_and_step(environment, index) for index, environment in enumerate(environments)),
            return_exceptions=True,
        )
    finally:
        for environment in environments:
            await environment.close()
    errors = [result for result in results if isinstance(result, BaseException)]
    wrong_setting = next((error for error in errors if isinstance(error, UserError)), None)
    if wrong_setting is not None:
        raise wrong_setting
    medians = {method: statistics.median(seconds) for method, seconds in blocked.items() if seconds}
    cause = describe_exception(errors[0]) if errors else ""
    return OpenEpisodes(len(tasks) - len(errors), len(tasks), cause, medians)


async def digest(name: str, count: int, options: Mapping[str, Any]) -> str:
    """Return the digest of the expert's episodes of an environment's first tasks, played by this process."""
    try:
        return episodes_digest(await play(await make_check_setup(name, options), min(count, NUM_REPLAYED_TASKS)))
    finally:
        close_pools()


async def play(checked: CheckSetup, count: int) -> list[Trajectory]:
    """Play one episode of each of the first `count` training tasks."""
    setup = checked.setup
    planned = plan_attempts(checked.tasks("train", count), 1, 0)
    return await run_episodes(
        planned, setup.make_environment, setup.agent, setup.engine, setup.renderer, resources=setup.resources
    )


def episodes_digest(episodes: Sequence[Trajectory]) -> str:
    """Return a hash of everything that is recorded of the episodes."""
    return hashlib.sha256(b"".join(map(encode_episode, episodes))).hexdigest()[:16]


def success_rate(episodes: Sequence[Trajectory]) -> float:
    return sum(episode.outcome is Outcome.SUCCESS for episode in episodes) / len(episodes)

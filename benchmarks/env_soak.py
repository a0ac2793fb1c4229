"""Mixed episodes side by side for a while: does memory grow, does a process stay behind, does an episode get stuck?

Part of `envs.py --soak SECONDS`. Every slot plays one of the environments, task after task, with random actions and a
pause before each, as a policy would make. Memory is that of the whole tree of processes.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil

from practicum.environments.mix import MixEnvironment
from practicum.environments.worker import close_pools
from practicum.utils.memory import descendants, tree_resident_megabytes

MIXED = ("affine:sat", "affine:abd", "affine:ded", "agentgym:webshop", "agentgym:alfworld", "agentgym:babyai",
         "agentgym:sciworld", "agentgym:textcraft")  # fmt: skip
TURNS = 20
"""Turns of an episode at most."""
STILL = 120.0
"""Seconds without a step after which an episode counts as stuck."""
SAMPLE = 5.0
GROWTH = 0.05
"""Memory of the last third of the time over that of the second that still counts as none."""


@dataclass
class Watch:
    """What is counted while the episodes run."""

    moved: dict[int, float] = field(default_factory=dict)
    """When each slot last took a step."""
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    lasted: list[float] = field(default_factory=list)
    steps: int = 0
    stuck: int = 0
    samples: list[dict[str, float]] = field(default_factory=list)


async def run_slot(watch: Watch, slot: int, name: str, tasks: list[Any], think: float, end: float) -> None:
    """Run one episode after the other in one slot until the time is over."""
    for index in itertools.count(slot):
        if time.monotonic() > end:
            return
        task, environment, started = tasks[index % len(tasks)], MixEnvironment([name]), time.monotonic()
        try:
            policy = environment.random(task, index)
            observation = await environment.reset(task, index)
            for _ in range(TURNS):
                watch.moved[slot] = time.monotonic()
                await asyncio.sleep(think)
                step = await environment.step(policy(observation))
                watch.steps, observation = watch.steps + 1, step.observation
                if step.terminated or step.truncated or time.monotonic() > end:
                    break
            watch.counts[name] += 1
            watch.lasted.append(time.monotonic() - started)
        except Exception as error:  # an environment's failure is what is looked for
            watch.faults[f"{name}: {type(error).__name__}: {str(error)[:100]}"] += 1
        finally:
            await environment.close()


async def look(watch: Watch, started: float, end: float) -> None:
    while time.monotonic() < end:
        await asyncio.sleep(min(SAMPLE, (end - started) / 20))
        now = time.monotonic()
        watch.stuck = max(watch.stuck, sum(now - last > STILL for last in watch.moved.values()))
        below = descendants()
        watch.samples.append({
            "second": now - started, "megabytes": tree_resident_megabytes(), "java": sum(map(_java_megabytes, below)),
            "processes": len(below), "episodes": sum(watch.counts.values()), "steps": watch.steps,
        })  # fmt: skip


async def soak(seconds: float, names: tuple[str, ...], num_slots: int, think: float) -> dict[str, Any]:
    """Run all slots at once until the time is over; return what was counted."""
    tasks = {name: list(MixEnvironment([name]).tasks("train", 60)) for name in names}
    before, watch, started = set(descendants()), Watch(), time.monotonic()
    end = started + seconds
    named = [names[slot % len(names)] for slot in range(num_slots)]
    watch.moved = dict.fromkeys(range(num_slots), started)
    playing = [asyncio.create_task(run_slot(watch, n, name, tasks[name], think, end)) for n, name in enumerate(named)]
    await look(watch, started, end)
    _, pending = await asyncio.wait(playing, timeout=STILL)  # a step that was under way may still come back
    watch.stuck = max(watch.stuck, len(pending))
    for task in pending:
        task.cancel()
    await asyncio.gather(*playing, return_exceptions=True)
    close_pools()
    await asyncio.sleep(1.0)
    return summarize(watch, seconds, num_slots, think, len(set(descendants()) - before))


def summarize(watch: Watch, seconds: float, num_slots: int, think: float, num_left: int) -> dict[str, Any]:
    third = len(watch.samples) // 3
    middle = statistics.mean(sample["megabytes"] for sample in watch.samples[third : 2 * third])
    last_mean = statistics.mean(sample["megabytes"] for sample in watch.samples[2 * third :])
    growth = last_mean / middle - 1
    passed = growth < GROWTH and not watch.faults and not watch.stuck and not num_left
    minutes = by_minute(watch.samples)
    for row in minutes:
        print(
            f"  minute {row['minute']:>2}: {row['megabytes']:>5.0f} MB (Java {row['java']:.0f}), at most "
            f"{row['processes']} processes, {row['episodes']} episodes, {row['steps']} steps so far",
            flush=True,
        )
    print(f"soak: {seconds:.0f} s, {num_slots} slots, {sum(watch.counts.values())} episodes, {watch.steps} steps, "
          f"{sum(watch.faults.values())} failed, {watch.stuck} stuck, {num_left} processes left; longest episode "
          f"{max(watch.lasted, default=0.0):.0f} s; memory {middle:.0f} MB in the second third, {last_mean:.0f} MB in "
          f"the last ({growth:+.1%}){'' if passed else '  NOT REACHED'}", flush=True)  # fmt: skip
    for fault, count in watch.faults.most_common(5):
        print(f"  {count} x {fault}", flush=True)
    return {"seconds": seconds, "slots": num_slots, "think": think,
            "episodes": dict(watch.counts), "steps": watch.steps,
            "failed": dict(watch.faults), "stuck": watch.stuck, "processes_left": num_left,
            "longest_episode": max(watch.lasted, default=0.0), "median_episode": statistics.median(watch.lasted or [0]),
            "memory_mb": {"second_third": middle, "last_third": last_mean, "growth": growth}, "minutes": minutes,
            "reached": passed}  # fmt: skip


def by_minute(samples: list[dict[str, float]]) -> list[dict[str, float]]:
    rows = []
    for minute, group in itertools.groupby(samples, key=lambda sample: int(sample["second"] // 60)):
        group_samples = list(group)
        rows.append({
            "minute": minute + 1,
            "megabytes": statistics.mean(sample["megabytes"] for sample in group_samples),
            "java": statistics.mean(sample["java"] for sample in group_samples),
            "processes": max(sample["processes"] for sample in group_samples),
            "episodes": group_samples[-1]["episodes"],
            "steps": group_samples[-1]["steps"],
        })  # fmt: skip
    return rows


def _java_megabytes(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 1e6 if process.name() == "java" else 0.0
    except psutil.Error:  # it has ended
        return 0.0

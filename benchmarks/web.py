"""The browser's speed and hygiene: steps per second with 1, 4 and 8 pages, and memory over many episodes.

    python benchmarks/web.py [--seconds 30] [--episodes 500] [--pages 1,4,8]

An expert plays tasks of all sites, without a model. Speed: as many episodes at once as there are pages, for `--seconds`
each. Hygiene: `--episodes` in rounds; after each round, with no page open, processes and the private memory of each
kind of process are counted, and at the end pages, contexts and processes that are left. Private memory is what would be
free if the process ended: resident memory also counts what processes share, once in each, and pages of files that come
and go. Processor time is that of all processes, so that it can be compared where the machine has other work. `--pages
''` leaves the speed out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from practicum.data.run_folder import write_atomic
from practicum.environments.web.browser import EXECUTABLE, Browser
from practicum.environments.web.environment import WebEnvironment
from practicum.task import Task
from practicum.utils.memory import cpu_seconds, descendants, release_free_memory

MAX_ACTIONS = 30
ROUND_EPISODES = 25
GROWTH = 0.05
"""Memory of the last third of the rounds over that of the second third that still counts as none."""


@dataclass
class Count:
    """Counts over the episodes that were run."""

    episodes: int = 0
    steps: int = 0
    successes: int = 0


async def run_episode(browser: Browser, task: Task, count: Count) -> None:
    """One episode of the expert."""
    env = WebEnvironment(observe="brief", prompt="page")
    env.resources = {"browser": browser}  # type: ignore[assignment]
    policy = env.expert(task)
    try:
        observation = await env.reset(task, 0)
        for _ in range(MAX_ACTIONS):
            step = await env.step(policy(observation))
            observation = step.observation
            count.steps += 1
            if step.terminated:
                count.successes += bool(step.success)
                break
        count.episodes += 1
    finally:
        await env.close()


async def run_all_episodes(
    browser: Browser, tasks: Iterator[Task], num_slots: int, keep_running: Callable[[], bool]
) -> Count:
    """Episodes in `num_slots` slots as long as `keep_running` returns true."""
    count = Count()

    async def slot() -> None:
        while keep_running() and (task := next(tasks, None)) is not None:
            await run_episode(browser, task, count)

    await asyncio.gather(*(slot() for _ in range(num_slots)))
    return count


async def speed(num_pages: int, seconds: float) -> dict[str, Any]:
    """Steps per second with `num_pages` episodes at once in one browser."""
    tasks = WebEnvironment().tasks("train", 2000)
    browser, cpu_started = Browser(max_sessions=num_pages), cpu_seconds()
    await browser.open()
    try:
        started = time.monotonic()
        endless = itertools.cycle(tasks)
        count = await run_all_episodes(browser, endless, num_pages, lambda: time.monotonic() - started < seconds)
        wall = time.monotonic() - started
    finally:
        await browser.close()
    await asyncio.sleep(1.0)
    cpu = cpu_seconds() - cpu_started  # once they have ended: renderer processes come and go
    rate = count.steps / wall
    print(f"{num_pages} pages: {rate:.1f} steps/s, {count.episodes / wall:.2f} episodes/s; "
          f"{1000 * cpu / count.steps:.0f} ms of processor time per step, {cpu / wall:.2f} cores; "
          f"{count.successes} of {count.episodes} solved", flush=True)  # fmt: skip
    return {"pages": num_pages, "steps_per_second": rate, "episodes_per_second": count.episodes / wall,
            "cpu_ms_per_step": 1000 * cpu / count.steps, "cores": cpu / wall, "episodes": count.episodes,
            "steps": count.steps, "solved": count.successes, "seconds": wall}  # fmt: skip


def opened(browser: Browser) -> tuple[int, int]:
    """Contexts and pages that the browser has."""
    contexts = browser._browser.contexts
    return len(contexts), sum(len(context.pages) for context in contexts)


def private_megabytes() -> dict[str, float]:
    """Private memory by kind of process: Python, Playwright's driver, the browser, its zygotes, GPU process, ..."""
    sizes: Counter[str] = Counter()
    for process in (psutil.Process(), *descendants()):
        with contextlib.suppress(psutil.Error):  # it has ended
            words = process.cmdline()
            types = [word.removeprefix("--type=") for word in words if word.startswith("--type=")]
            is_browser = "chrom" in Path(words[0]).name if words else False
            kind = types[0] if types else "browser" if is_browser else Path(words[0]).name if words else "other"
            sizes["python" if process.pid == os.getpid() else kind] += process.memory_full_info().uss / 1e6
    return dict(sizes)


async def hygiene(num_episodes: int, num_pages: int) -> dict[str, Any]:
    """Memory and processes after each round of episodes, and what is left at the end."""
    tasks = iter(WebEnvironment().tasks("train", num_episodes))
    before = len(descendants())
    browser = Browser(max_sessions=num_pages)
    await browser.open()
    rounds: list[dict[str, Any]] = []
    total = Count()
    started = time.monotonic()
    try:
        while total.episodes < num_episodes:
            part = itertools.islice(tasks, ROUND_EPISODES)
            count = await run_all_episodes(browser, part, num_pages, lambda: True)
            for name in ("episodes", "steps", "successes"):
                setattr(total, name, getattr(total, name) + getattr(count, name))
            await asyncio.sleep(0.5)  # renderer processes end after their context
            release_free_memory()
            (contexts, pages), private = opened(browser), private_megabytes()
            rounds.append({"episodes": total.episodes, "megabytes": sum(private.values()), "by_process": private,
                           "processes": len(descendants()), "contexts": contexts, "pages": pages})  # fmt: skip
            parts = ", ".join(f"{name} {value:.0f}" for name, value in private.items())
            print(f"{total.episodes} episodes: {sum(private.values()):.0f} MB ({parts})", flush=True)
    finally:
        await browser.close()
    await asyncio.sleep(1.0)
    third = max(1, len(rounds) // 3)
    second, last = (statistics.median(sample["megabytes"] for sample in part)
                    for part in (rounds[third : 2 * third] or rounds, rounds[-third:]))  # fmt: skip
    left_open = {"sessions": browser.num_sessions, "contexts": rounds[-1]["contexts"], "pages": rounds[-1]["pages"],
            "processes": len(descendants()) - before}  # fmt: skip
    flat = last <= (1 + GROWTH) * second and not any(left_open.values())
    print(f"{total.episodes} episodes, {total.steps} steps in {time.monotonic() - started:.0f} s, {total.successes} "
          f"solved: {second:.0f} MB in the second third, {last:.0f} MB in the last; {rounds[0]['processes']:.0f} "
          f"processes after the first round, {rounds[-1]['processes']:.0f} after the last; left at the end: {left_open}"
          f"{'' if flat else '  NOT FLAT'}", flush=True)  # fmt: skip
    return {"episodes": total.episodes, "steps": total.steps, "solved": total.successes, "rounds": rounds,
            "megabytes_second_third": second, "megabytes_last_third": last, "left": left_open,
            "flat": flat}  # fmt: skip


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--pages", default="1,4,8")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "web.json")
    args = parser.parse_args()
    speeds = [await speed(int(pages), args.seconds) for pages in args.pages.split(",") if pages]
    result = await hygiene(args.episodes, 8)
    record = {
        "browser": EXECUTABLE,
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "speed": speeds,
        "hygiene": result,
    }
    write_atomic(args.results, (json.dumps(record, indent=1) + "\n").encode())
    return 0 if result["flat"] else 1


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))

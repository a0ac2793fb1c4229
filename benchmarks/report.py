"""Ten thousand episodes (200 MB) in the report and on the live page: seconds, memory, and the cost of one more step.

    python benchmarks/report.py [--episodes 10000] [--keep FOLDER]

Times of the processor (of the command and its children; of the page's main thread; of the server) are printed beside
those of the clock: on a machine that is busy with other things only these say something.
Needs Chromium (/usr/bin/chromium) and playwright.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, Page, sync_playwright

from practicum.data import store
from practicum.data.store import encode_episode
from practicum.environment import Action, Message
from practicum.task import Task
from practicum.training.monitor.loggers import MetricsFile
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
PAINT = """new Promise(done => {
  const look = () => {
    const paint = performance.getEntriesByName('first-contentful-paint')[0];
    if (paint) done(paint.startTime); else setTimeout(look, 20);
  };
  look();
})"""
COUNT = "document.querySelector('.count').textContent"
ATTEMPTS = 8
TRAININGS = 5


def episode(index: int, rng: random.Random) -> Trajectory:
    """About 20 kB: six turns of 80 sampled tokens with their log-probs."""
    task = Task(f"bench-{index // ATTEMPTS}", "math", "train", {"question": f"number {index // ATTEMPTS}?"})
    turns = tuple(_turn(index, rng.randrange(20)) for index in range(6))
    solves = rng.random() < 0.5
    return Trajectory(
        task=task,
        attempt=index % ATTEMPTS,
        group=task.id,
        outcome=Outcome.SUCCESS if solves else Outcome.FAILURE,
        turns=turns,
        reward=float(solves),
        components={"answer": float(solves), "format": 0.1},
        seeds=Seeds(index, index),
        provenance={"model": "tiny", "policy": "bench"},
    )


@functools.cache
def _turn(index: int, seed: int) -> Turn:
    rng = random.Random(1000 * index + seed)
    ids = [tuple(rng.randrange(300, 700) for _ in range(count)) for count in (10, 50, 80)]
    logprobs = tuple(-rng.expovariate(2.0) for _ in ids[2])
    reply = " ".join(str(i) for i in ids[2])
    return Turn(
        spans=(Span(Origin.TEMPLATE, ids[0]), Span(Origin.OBSERVATION, ids[1]), Span(Origin.SAMPLED, ids[2], logprobs)),
        restart=index == 0,
        messages=(Message("user", " ".join(str(i) for i in ids[1])),),
        reply=reply,
        action=Action(text=reply, content=reply),
        source=ActionSource.POLICY,
        policy_version=0,
        stop_reason=StopReason.END,
        seed=index,
    )


def make_runs(top: Path, episodes: int) -> int:
    """Two collections of the same tasks, and trainings; returns the bytes of all episodes."""
    rng, size = random.Random(0), 0
    for index in range(episodes):
        data = encode_episode(episode(index // 2, rng))
        run = top / f"collect-{index % 2}"
        run.mkdir(parents=True, exist_ok=True)
        store.episode_path(run, f"bench-{index // 2 // ATTEMPTS}", index // 2 % ATTEMPTS).write_bytes(data)
        size += len(data)
    return size


def row(step: int) -> dict[str, float]:
    rng = random.Random(step)
    names = [f"actor/figure_{n}" for n in range(50)]
    return {"reward/mean": rng.random(), "reward/std": 0.4, "success/mean": rng.random(), "rollout/groups": 16.0,
            "actor/entropy": 1.0 + rng.random(), **{name: rng.random() for name in names}}  # fmt: skip


def measure_report(top: Path, page: Path) -> dict[str, float]:
    started, before = time.monotonic(), children_seconds()
    done = subprocess.run([sys.executable, "-m", "practicum.cli", "report", str(top), "-o", str(page)], check=True,
                          stderr=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)  # fmt: skip
    seconds = time.monotonic() - started
    print(done.stdout.strip())
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    cpu_seconds = children_seconds() - before
    return {
        "report_seconds": seconds,
        "report_cpu_seconds": cpu_seconds,
        "report_peak_mib": peak_mib,
        "report_file_mb": page.stat().st_size / 1e6,
    }


def measure_opening(browser: Browser, page: Path) -> dict[str, float]:
    first_page, session = new_page(browser)
    started = time.monotonic()
    first_page.goto(page.as_uri())
    first_page.wait_for_selector("#samples")
    opened, cpu_seconds_to_open = time.monotonic() - started, thread_seconds(session)
    first_page.keyboard.press("2")
    first_page.wait_for_selector(".list .row")
    started, before = time.monotonic(), thread_seconds(session)
    first_page.fill("#search", "bench-77 success")
    becomes(first_page, f"/ of [^…]*$/.test({COUNT})")
    filtered, searched = time.monotonic() - started, thread_seconds(session) - before
    first_page.fill("#search", "number 77? 3")  # a word of the replies
    becomes(first_page, f"/ of [^…]*$/.test({COUNT})")
    started = time.monotonic()
    first_page.keyboard.press("ArrowDown")
    first_page.wait_for_selector(".turn, .note")
    result = {"report_open_seconds": opened, "report_open_cpu_seconds": cpu_seconds_to_open, "filter_seconds": filtered,
              "filter_cpu_seconds": searched, "episode_seconds": time.monotonic() - started}  # fmt: skip
    first_page.close()
    return result


def measure_live(browser: Browser, top: Path) -> dict[str, Any]:
    server = subprocess.Popen([sys.executable, "-m", "practicum.cli", "ui", str(top), "--port", "0"],
                              stdout=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[0]
        page, session = new_page(browser)
        started, before = time.monotonic(), cpu(server.pid)
        page.goto(address)
        paint = page.evaluate(PAINT)
        painted = thread_seconds(session) + cpu(server.pid) - before
        page.wait_for_selector(".run")
        runs = time.monotonic() - started
        files = [MetricsFile(top / f"training-{n}" / "metrics.jsonl") for n in range(TRAININGS)]
        waits = busy_latencies(page, address, files)
        figures = {"live_first_paint_seconds": paint / 1000, "live_first_paint_cpu_seconds": painted,
                 "live_runs_seconds": runs,
                 "live_answer_ms_while_reading": 1000 * statistics.median(waits),
                 "live_slowest_answer_ms": 1000 * max(waits)}  # fmt: skip
        until_read(address)
        figures["live_all_read_seconds"] = time.monotonic() - started
        figures["live_server_mib"] = memory(server.pid)
        for file in files:
            file.close()
        return figures | step_costs(page, server.pid, top)
    finally:
        server.terminate()
        server.wait(10)


def busy_latencies(page: Page, address: str, files: list[MetricsFile]) -> list[float]:
    """Answers while episodes are still read and all trainings write two steps per second."""
    waits = []
    for turn in range(20):
        for file in files:
            file.write(turn + 1, row(turn + 1))
        started = time.monotonic()
        get(f"{address}api/runs")
        waits.append(time.monotonic() - started)
        time.sleep(0.5)
    page.wait_for_selector("[data-metric='reward/mean'] path.line")
    return waits


def becomes(page: Page, expression: str) -> None:
    """Playwright's own waiting evaluates strings, which the page's policy forbids."""
    deadline = time.monotonic() + 600
    while not page.evaluate(expression):
        if time.monotonic() > deadline:
            raise TimeoutError(expression)
        time.sleep(0.1)


def get(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.loads(answer.read())


def until_read(address: str) -> None:
    while any(run["waiting"] for run in get(f"{address}api/runs")["runs"]):
        time.sleep(0.5)


def memory(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / (1 << 20)


def new_page(browser: Browser) -> tuple[Page, Any]:
    """A page, and a session that measures the processor time of its main thread."""
    page = browser.new_page()
    page.set_default_timeout(300_000)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    return page, session


def thread_seconds(session: Any) -> float:
    figures = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    return float(figures["TaskDuration"])


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def step_costs(page: Page, pid: int, top: Path) -> dict[str, float]:
    """CPU of the server and script time of the page for one more step, of a short run and of a long one."""
    figures = {}
    for length in (500, 20_000):
        name = f"length-{length}"
        path = top / name / "metrics.jsonl"
        path.parent.mkdir()
        path.write_text("".join(json.dumps({"step": s, **row(s)}) + "\n" for s in range(1, length + 1)))
        card = page.locator(".run", has_text=name)
        card.wait_for(timeout=120_000)
        becomes(page, f"[...document.querySelectorAll('.run')].some(c => c.innerText.includes('{length}'))")
        others = page.locator(".run:not(.off)", has_not_text=name)
        while others.count():
            others.first.locator("input").click()
            page.wait_for_timeout(500)
        if "off" in (card.get_attribute("class") or ""):
            card.locator("input").click()
        becomes(page, f"[...document.querySelectorAll('.run')].some(c => c.innerText.includes('step {length}'))")
        page.wait_for_timeout(4000)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        before, idle = (cpu(pid), thread_seconds(session)), 60
        with path.open("a") as file:
            for step in range(length + 1, length + 1 + idle):
                file.write(json.dumps({"step": step, **row(step)}) + "\n")
                file.flush()
                time.sleep(0.25)
        becomes(page, f"[...document.querySelectorAll('.run')].some(c => c.innerText.includes('step {length + idle}'))")
        figures[f"server_ms_a_step_at_{length}"] = 1000 * (cpu(pid) - before[0]) / idle
        figures[f"page_ms_a_step_at_{length}"] = 1000 * (thread_seconds(session) - before[1]) / idle
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="make the runs here and leave them")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        top = args.keep or Path(scratch) / "runs"
        size = make_runs(top, args.episodes)
        print(f"{args.episodes} episodes, {size / 1e6:.0f} MB")
        figures: dict[str, Any] = {"episodes": args.episodes, "megabytes": size / 1e6}
        page = Path(scratch) / "report.html"
        figures |= measure_report(top, page)
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        figures |= measure_opening(browser, page)
        figures |= measure_live(browser, top)
        browser.close()
    for name, value in figures.items():
        print(f"{name:<32} {value:10.3f}")


if __name__ == "__main__":
    main()

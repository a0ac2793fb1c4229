"""What a reader chooses on the page, in a real browser: baseline, axes, parts of charts, tasks; and accessibility."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from practicum.data.episode_times import append_times
from practicum.data.run_folder import locked
from practicum.data.store import write_episode
from practicum.environment import Message
from practicum.report.document import document
from practicum.report.runs import find_runs
from practicum.task import Task
from practicum.trajectory import Outcome
from tests.report.browser_pages import PageRecorder, wait_for_count, wait_until
from tests.report.live.test_live import Running
from tests.report.report_files import CHROMIUM, make_episode, make_turn, step_values, write_run, write_training

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs /usr/bin/chromium (make setup installs it)")


def write_report(top: Path, out: Path) -> Path:
    out.write_bytes(document(find_runs([top]))[0])
    return out


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Base, SFT and RL on the same 20 tasks; some failures of a tool."""
    top = tmp_path_factory.mktemp("staged")
    for stage, solved in (("base", 1), ("sft", 10), ("rl", 20)):
        write_run(top / "run" / stage / "examination", [[float(n < solved)] for n in range(20)], tokenizer)
    (top / "run" / "plan.json").write_text("{}")
    turn = make_turn(tokenizer, "What?", "well")
    failed = replace(turn, messages=(Message("tool", "Error: no number", name="calculator"),))
    for index in range(3):
        episode = make_episode(f"odd-{index}", 0, 0.0, tokenizer, turns=(turn, failed), error=f"no number {index}")
        task = Task(episode.task.id, "math", "train", dict(episode.task.fields))
        write_episode(top / "run" / "sft" / "odd", replace(episode, task=task, outcome=Outcome.TRUNCATED))
    return write_report(top, top / "report.html")


def test_the_baseline_is_chosen_on_the_page_and_kept_in_the_address(browser: Any, report: Path) -> None:
    verdicts = "#result .result:nth-child(2) .verdicts"
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(report.as_uri())
        assert page.locator("#result tbody td:first-child").all_inner_texts()[:3] == ["base", "sft", "rl"]
        texts = page.locator(verdicts).all_inner_texts()
        assert texts[0] == "baseline"
        assert "better than base, +95.0 [" in " ".join(texts[2].split())
        assert "better than sft, +50.0 [" in " ".join(texts[2].split())
        assert page.locator("#result .headline b").first.inner_text().startswith("rl − sft: +50.0 points [")
        page.select_option("#baseline", label="sft")
        texts = page.locator(verdicts).all_inner_texts()
        assert "worse than sft" in " ".join(texts[0].split())
        assert "baseline" in texts[1]
        assert "better than sft" in " ".join(texts[2].split())
        page.select_option("#baseline", label="base")
        assert page.locator("#result .headline b").first.inner_text().startswith("rl − base: +95.0 points [")
        texts = page.locator(verdicts).all_inner_texts()
        address = page.evaluate("location.href")
    with PageRecorder(browser) as recorder:
        recorder.page.goto(address)
        assert recorder.page.locator(verdicts).all_inner_texts() == texts


def test_failures_open_their_episodes_and_the_list_is_a_table(browser: Any, report: Path, tmp_path: Path) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(report.as_uri())
        assert page.locator("#failures-of").input_value() == "all"  # the last stage has no failure
        page.locator("[data-cause=error]").click()
        assert page.locator("#clusters tbody tr", has_text="no number #").locator("td").nth(1).inner_text() == "3"
        page.locator("[data-cause=tool]").click()
        page.locator("#clusters tbody tr", has_text="calculator").click()
        wait_for_count(page, "3 of 63 episodes")
        assert page.locator(".cause").inner_text() == "tool that failed: calculator ×"
        heads = page.locator(".heads [role=columnheader]").all_inner_texts()
        assert heads[:8] == ["Task", "Question", "Target", "Answer", "Score", "Turns", "Tools", "Outcome"]
        assert "calculator ×2 (1 failed)" in page.locator(".list .row").first.inner_text()
        page.locator(".cause button").click()
        page.select_option("[data-filter=outcome]", "")
        page.locator(".sort", has_text="Score").click()
        page.locator(".sort", has_text="Score").click()
        assert page.locator("[aria-sort=descending]").inner_text() == "Score"
        assert page.locator(".list .row .value").first.inner_text() == "1"
        with page.expect_download() as download:
            page.locator("#jsonl").click()
        rows = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
        assert len(rows) == 63
        assert rows[0]["reward"] == 1
        assert rows[0]["tools"] == {"calculator": {"calls": 1, "errors": 0}}


@pytest.mark.parametrize("served", [False, True])
def test_any_word_of_an_episode_finds_it_and_tools_have_a_latency(browser: Any, tmp_path: Path, served: bool) -> None:
    """A word far into the first of two replies, and one of a tool's error, in the file and on the live page."""
    run = write_run(tmp_path / "run", [[0.0]] * 5)
    episode = make_episode("far", 0, 0.0)
    (turn,) = episode.turns
    first = replace(turn, reply="lorem " * 500 + "Ornithopter")
    answer = Message("tool", "Error: no Zanzibar", name="calculator")
    episode = replace(episode, turns=(first, replace(turn, restart=False, messages=(answer,))))
    episode = replace(episode, tool_seconds={"calculator": (0.25, 1.5)})
    append_times(run / "timing.jsonl", episode)
    write_episode(run, episode)
    report = write_report(run, tmp_path / "report.html")
    opened = Running(tmp_path) if served else contextlib.nullcontext(report.as_uri())
    with opened as address, PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(address)
        page.wait_for_selector("#tools tbody tr")
        wait_until(page, "document.querySelector('#tools tbody').innerText.includes('250 ms')")
        cells = page.locator("#tools tbody tr").first.locator("td").all_inner_texts()
        assert cells[1:] == ["6", "7", "1 in 1 episode", "14.3 %", "250 ms", "1.5 s"]
        for table in ("#tools", "#clusters"):  # all columns are seen
            assert page.locator(table).evaluate("(node) => node.scrollWidth <= node.closest('.card').clientWidth")
        page.keyboard.press("/")
        for text in ("ornithopter", "Zanzibar", "THOPT lorem error:"):
            page.fill("#search", text)
            wait_for_count(page, "1 of 6 episodes")
            assert page.locator(".list .row .name").all_inner_texts() == ["far"]
        page.fill("#search", "nowhere")
        wait_for_count(page, "0 of 6 episodes")


def test_tasks_are_gained_lost_or_solved_by_both(browser: Any, report: Path) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(report.as_uri() + "#/compare")
        page.select_option("#compare-a", label="sft")
        page.select_option("#compare-b", label="rl")
        assert page.locator("#solved b").all_inner_texts() == ["10", "0", "10", "0"]
        page.locator("[data-tasks=both]").click()
        assert page.locator("#tasks tbody tr").count() == 10
        address = page.evaluate("location.href")
    with PageRecorder(browser) as recorder:
        recorder.page.goto(address)
        assert recorder.page.locator("#tasks tbody tr").count() == 10


def test_charts_are_drawn_over_tokens_and_time_and_zoomed(browser: Any, tmp_path: Path) -> None:
    run = write_training(tmp_path / "run", 40, **{"actor/tokens": 50_000.0})
    with (run / "timing.jsonl").open("w") as file:
        for step in range(1, 41):
            file.write(json.dumps({"step": step, "timing/step": 90.0}) + "\n")
    report = write_report(tmp_path / "run", tmp_path / "report.html")
    chart = "[data-metric='success/mean']"
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(report.as_uri())
        assert page.locator(f"{chart} text", has_text="40").count() == 1
        page.select_option("#x-axis", "tokens")
        assert page.locator(f"{chart} text", has_text="2 M").count() == 1
        page.select_option("#x-axis", "seconds")
        assert page.locator(f"{chart} text", has_text="1:00:00").count() == 1
        page.locator(f"{chart} svg").hover()
        assert page.locator("#tip").inner_text().startswith("step ")
        assert ", time " in page.locator("#tip").inner_text()
        page.select_option("#x-axis", "step")
        box = page.locator(f"{chart} svg").bounding_box()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 60, steps=4)
        assert page.locator("#curves .chosen").count() == page.locator("#curves .chart").count()
        page.mouse.up()
        assert page.locator(f"{chart} text", has_text="40").count() == 0
        zoomed = page.locator(f"{chart} path.line").get_attribute("d")
        address = page.evaluate("location.href")
        page.locator("[data-zoom-stage=rl] button").click()
        assert page.locator(f"{chart} text", has_text="40").count() == 1
        page.locator("[data-zoom=from]").fill("10")  # the same by keyboard
        page.keyboard.press("Enter")
        assert page.locator(f"{chart} text").last.text_content() == "40"
        page.locator(f"{chart} svg").dblclick()
        assert page.locator("[data-zoom=from]").input_value() == ""
        with page.expect_download() as download:
            page.locator(chart).locator(".save", has_text="CSV").click()
        assert Path(download.value.path()).read_text().splitlines()[2].endswith(",100000,180")
    with PageRecorder(browser) as recorder:
        recorder.page.goto(address)
        assert recorder.page.locator(f"{chart} path.line").get_attribute("d") == zoomed


def test_policies_and_environments_are_a_matrix(
    browser: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    for policy, solved in (("base", 2), ("rl", 18)):
        for environment in ("math", "search"):
            for index in range(20):
                episode = make_episode(f"{environment}-{index}", 0, float(index < solved), tokenizer)
                task = Task(episode.task.id, environment, "test", dict(episode.task.fields))
                write_episode(tmp_path / "runs" / policy, replace(episode, task=task))
    report = write_report(tmp_path / "runs", tmp_path / "report.html")
    with PageRecorder(browser) as recorder:
        recorder.page.goto(report.as_uri())
        assert recorder.page.locator("#matrix thead th").all_inner_texts() == ["Policy", "math", "search"]
        assert recorder.page.locator("#matrix tbody th").all_inner_texts() == ["base", "rl"]
        assert recorder.page.locator("#matrix td.better").count() == 2


def test_turns_stand_beside_each_other(browser: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    short, long = (make_turn(tokenizer, "What?", reply) for reply in ("it is 4", "let me think " * 40))
    for attempt, turns in enumerate(([short, long, short], [long, short])):
        write_episode(tmp_path / "run", make_episode("task", attempt, 0.0, tokenizer, turns=tuple(turns)))
    report = write_report(tmp_path / "run", tmp_path / "report.html")
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(report.as_uri() + "#/episodes")
        page.locator(".list .row").first.click()
        page.locator("#group-side").click()
        wait_until(page, "document.querySelectorAll('.column .turn').length === 5")
        top_edges = page.evaluate(
            "[...document.querySelectorAll('.column')].map((column) => [...column.querySelectorAll('.turn')]"
            ".map((turn) => Math.round(turn.getBoundingClientRect().top)))"
        )
        assert top_edges[0][:2] == top_edges[1]


def test_a_share_has_the_digits_that_the_terminal_prints(
    browser: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    write_run(tmp_path / "run", [[float(n < 333)] for n in range(400)])  # 83.25 %, a tie
    report = write_report(tmp_path / "run", tmp_path / "report.html")
    with PageRecorder(browser) as recorder:
        recorder.page.goto(report.as_uri())
        assert f"{100 * 333 / 400:.1f}" == "83.2"
        assert recorder.page.locator("#result td b").first.inner_text() == "83.2 %"
        assert "83.3" not in recorder.page.inner_text("body")


def test_the_live_page_says_how_long_it_takes_and_that_a_run_has_ended(browser: Any, tmp_path: Path) -> None:
    run = write_training(tmp_path / "run", 20, planned=40)
    with (run / "timing.jsonl").open("w") as file:
        for step in range(1, 21):
            file.write(json.dumps({"step": step, "timing/step": 60.0}) + "\n")
    with Running(tmp_path) as address, PageRecorder(browser) as recorder:
        page = recorder.page
        with locked(run, ""):  # a process writes to it: else it has ended early once nothing is new for 20 seconds
            page.goto(address)
            wait_until(page, "document.body.innerText.includes('about 20 min left')")
            assert "held-out success at step 20 50.0 % [40.0, 60.0]" in page.locator(".run").inner_text()
            with (run / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": 21, **step_values(21), "actor/tokens": 1000.0}) + "\n")
            wait_until(page, "document.body.innerText.includes('about 19 min left')")
        (run / "last").mkdir()
        page.reload()
        wait_until(page, "document.querySelector('.pace') && document.querySelector('.pace').innerText === 'finished'")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_serious(browser: Any, full_report: Path, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python brings axe-core")
    script = Path(axe.__file__).with_name("axe.min.js").read_text()
    with PageRecorder(browser, color_scheme=scheme, viewport={"width": width, "height": 900}) as recorder:
        page = recorder.page
        page.goto(full_report.as_uri())
        page.evaluate(script)
        initial = {"1": "#result", "2": ".list .row", "3": "#tasks"}
        opened = {"j": ".list .row", "k": ".tokens", "l": ".by-logprob", "g": ".column .tokens", "a": ".by-advantage"}
        for key, selector in (initial | opened).items():
            page.keyboard.press(key)
            page.wait_for_selector(selector, state="attached")
            violations = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
            serious = [(v["id"], v["nodes"][0]["html"]) for v in violations if v["impact"] in ("serious", "critical")]
            assert serious == [], (page.url, serious)


@pytest.fixture(scope="module")
def full_report(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Groups of episodes in two runs, and a training with a health event."""
    top = tmp_path_factory.mktemp("all")
    write_run(top / "first", [[0.0, 1.0]] * 3, tokenizer)
    write_run(top / "second", [[1.0, 1.0]] * 3, tokenizer)
    write_training(top / "training", 12, **{"actor/ppo_kl": 0.7})
    return write_report(top, top / "report.html")

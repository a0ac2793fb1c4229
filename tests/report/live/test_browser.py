"""The report and the live page in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from practicum.data.store import write_episode
from practicum.environment import Action
from practicum.report.document import document
from practicum.report.runs import find_runs
from practicum.task import Task
from practicum.training.monitor.health import Adjustment, HealthFinding, HealthLog
from practicum.training.monitor.loggers import MetricsFile
from practicum.training.rollout_source import EpisodeSaver
from tests.report.browser_pages import PageRecorder, wait_for_count, wait_until
from tests.report.live.test_live import Running
from tests.report.report_files import (
    CHROMIUM,
    HOSTILE_TEXTS,
    make_episode,
    step_values,
    write_damaged_episodes,
    write_hostile_episodes,
    write_run,
    write_training,
)

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs /usr/bin/chromium (make setup installs it)")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Two collections of the same tasks and two trainings, one of them unwell."""
    top = tmp_path_factory.mktemp("runs")
    write_run(top / "first", [[0.0, 1.0, 0.0, 0.0]] * 3 + [[0.0] * 4] * 5, tokenizer)
    write_run(top / "second", [[1.0, 1.0, 0.0, 1.0]] * 6 + [[0.0] * 4] * 2, tokenizer)
    write_training(top / "well", 30, seed=1)
    write_training(top / "unwell", 30, seed=2, **{"actor/ppo_kl": 0.7})
    page_bytes, _ = document(find_runs([top / "first", top / "second", top / "well", top / "unwell"]))
    path = top / "report.html"
    path.write_bytes(page_bytes)
    return path


def test_the_report_shows_curves_health_tables_and_comparison(browser: Any, report: Path) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(report.as_uri())
        assert page.locator(".run").count() == 4
        curve = page.locator("[data-metric='success/mean']")
        assert curve.locator("path.line").count() == 2
        assert curve.locator("path.area").count() == 2
        assert page.locator("[data-metric='success/mean'] .mark-act").count() >= 1
        assert "kl_high" in page.locator("#health").inner_text()
        assert "judged again from the metrics" in page.locator("#health-source").inner_text()
        assert page.locator("section[aria-label='Reward parts'] path.stack").count() == 4
        assert page.locator("#environments tbody tr").count() == 2
        assert "'second' is better than 'first'" in page.locator("#comparison").inner_text()
        assert page.locator("#samples h3", has_text="Most surprising").count() == 2
        page.locator("[data-metric='success/mean'] svg").hover()
        assert page.locator("#tip").inner_text().startswith("step ")
        page.locator("#environments tbody tr").nth(1).click()
        wait_for_count(page, "32 of 64 episodes")
        page.keyboard.press("1")
        page.locator(".run input").nth(3).uncheck()
        assert page.locator("[data-metric='success/mean'] path.line").count() == 1
        assert recorder.requests == [report.as_uri()]


def test_the_result_is_first_and_a_filtered_link_shows_the_same_elsewhere(
    browser: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    for stage, solved in (("base", 1), ("rl", 20), ("sft", 10)):
        write_run(tmp_path / "run" / stage / "examination", [[float(n < solved)] for n in range(20)], tokenizer)
    (tmp_path / "run" / "plan.json").write_text("{}")
    path = tmp_path / "report.html"
    path.write_bytes(document(find_runs([tmp_path / "run"]))[0])
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(path.as_uri())
        assert page.locator("section").first.get_attribute("aria-label") == "Result"
        names = page.locator("#result tbody td:first-child").all_inner_texts()
        assert names == ["base", "sft", "rl"]
        assert page.locator("#result .whisker.better").count() == 2
        page.keyboard.press("/")
        page.keyboard.type("task-7? calculator")
        wait_for_count(page, "3 of 60 episodes")
        page.locator(".list .row").first.click()
        page.keyboard.press("l")
        address = page.evaluate("location.href")
        assert page.locator(".list .row[aria-selected=true] .name").all_inner_texts() == ["task-7"]
    with PageRecorder(browser) as recorder:
        recorder.page.goto(address)
        wait_for_count(recorder.page, "3 of 60 episodes")
        assert recorder.page.locator("[data-choice=logprob]").get_attribute("aria-pressed") == "true"
        with recorder.page.expect_download() as download:
            recorder.page.locator("#csv").click()
        rows = Path(download.value.path()).read_text().splitlines()
        assert len(rows) == 4
        assert "What is task-7?" in rows[1]


def test_charts_are_smoothed_logarithmic_hidden_and_saved(browser: Any, report: Path) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(report.as_uri())
        chart = page.locator("[data-metric='success/mean']")
        page.locator("#smooth").fill("0.9")
        assert chart.locator("path.raw").count() == 2
        page.locator("#log-axis").check()
        assert "NaN" not in page.locator("#curves").inner_html()
        chart.locator("svg").hover()
        assert page.locator("#curves .cross").count() == page.locator("#curves .chart").count()
        chart.locator(".key").first.click()
        assert chart.locator("path.line:not(.raw)").count() == 1
        chart.locator(".key").first.click()
        for kind, beginning in (("SVG", "<svg"), ("CSV", "line,step,mean,low,high")):
            with page.expect_download() as download:
                chart.locator(".save", has_text=kind).click()
            assert Path(download.value.path()).read_text().startswith(beginning)
        assert "Keys that differ" not in page.inner_text("body")  # both trainings have the same configuration
        assert "All keys of the configuration have the same values" in page.inner_text("body")


def test_side_by_side_folds_the_common_prompt_and_marks_differences(
    browser: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    for attempt, reply in enumerate(("the answer is 4", "the answer is 5 or 6", "the answer is 4")):
        write_episode(tmp_path / "run", make_episode("task", attempt, 0.0, tokenizer, reply=reply))
    path = tmp_path / "report.html"
    path.write_bytes(document(find_runs([tmp_path / "run"]))[0])
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(path.as_uri() + "#/episodes")
        page.locator(".list .row").first.click()
        page.locator("#group-side").click()
        page.locator(".column").nth(2).locator(".tokens").wait_for()
        wait_until(page, "document.querySelectorAll('#common-prompt').length === 1")
        assert "What is task?" not in page.locator(".columns").inner_text()
        assert "".join(page.locator(".column").nth(1).locator(".apart").all_inner_texts()).strip() == "5 or 6"
        assert page.locator(".column").nth(2).locator(".apart").count() == 0
        assert page.locator(".turn-head .badge").all_inner_texts() == ["differs", "same reply"]


def test_recorded_health_findings_and_advantages_are_shown(
    browser: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Its own health notes, and advantages by token, which the page could not have computed."""
    run = write_training(tmp_path / "run", 30, **{"actor/ppo_kl": 0.7})
    health_log = HealthLog(run / "health.jsonl")
    health_log.write_findings(
        7, [HealthFinding("dead_groups", "act", 0.95, 0.9, "groups are alike", "give it easier tasks")]
    )
    health_log.write_adjustment(7, Adjustment(1 / 3, 1.0))
    health_log.close()
    group = [make_episode("task-0", attempt, float(attempt == 1), tokenizer) for attempt in range(3)]
    size = len(group[0].turns[0].spans[-1].ids)
    saver = EpisodeSaver(run, "gae")
    saver.set_advantages([group], [[np.linspace(-2.0, 2.0, size), np.full(size, 0.25), np.full(size, -0.25)]])
    saver.save_group(4)
    path = tmp_path / "report.html"
    path.write_bytes(document(find_runs([run]))[0])
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(path.as_uri())
        health = page.locator("#health").inner_text()
        assert "as the run noted them while it went" in health
        assert "groups are alike (0.95, limit 0.9); give it easier tasks" in health
        assert "learning rate × 0.333" in health
        assert "kl_high" not in health
        page.keyboard.press("2")
        page.locator(".list .row").first.click()
        page.wait_for_selector(".tokens")
        page.keyboard.press("a")
        assert page.locator("#advantage-source").inner_text() == "as the run trained with them (gae), token by token."
        colours = [page.locator(f".tokens .t.sampled.{kind}").count() for kind in ("d3", "u3")]
        assert min(colours) >= 1
        page.locator(".tokens .t.sampled").first.hover()
        assert "advantage −2" in page.locator("#tip").inner_text()
        page.keyboard.press("j")
        wait_until(page, "document.querySelector('.episode .facts').textContent.includes('advantage +0.25')")
        assert page.locator("#advantage-source").inner_text().endswith("one number for all tokens of an episode.")
        page.keyboard.press("g")
        page.wait_for_selector(".column .tokens")
        assert page.locator(".column").count() == 3
        assert page.locator("#advantage-source").inner_text().startswith("as the run trained with them (gae)")


def test_episodes_are_filtered_opened_and_coloured(browser: Any, report: Path) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(report.as_uri())
        page.keyboard.press("2")
        wait_for_count(page, "64 episodes")
        page.keyboard.press("/")
        page.keyboard.type("task-1 success")
        wait_for_count(page, "4 of 64 episodes")
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        page.keyboard.press("2")
        page.select_option("[data-filter=run]", label="first")
        page.select_option("[data-filter=outcome]", "success")
        wait_for_count(page, "3 of 64 episodes")
        page.locator(".list .row").first.click()
        page.wait_for_selector(".tokens")
        assert page.locator(".tokens.by-origin .t.sampled").count() > 2
        sampled_text = "".join(page.locator(".tokens .t.sampled").all_text_contents())
        assert sampled_text == "the answer is 4"
        page.keyboard.press("l")
        assert page.locator(".tokens.by-logprob .t.sampled.h0").count() >= 1
        assert page.locator(".tokens.by-logprob .t.sampled.h2").count() >= 1
        page.locator("[data-choice=advantage]").click()
        assert page.locator(".tokens.by-advantage .t.sampled.u3").count() > 2
        assert "advantage (computed here) +1.5" in page.locator(".episode .facts").inner_text()
        assert page.locator("#advantage-source").inner_text().startswith("computed for this page")
        page.locator(".tokens .t.sampled").first.hover()
        assert "log-prob 0" in page.locator("#tip").inner_text()
        page.keyboard.press("t")
        assert page.locator(".message.assistant").inner_text().endswith("the answer is 4")
        first = page.url
        page.keyboard.press("j")
        page.wait_for_url(lambda url: url != first)
        page.keyboard.press("k")
        page.wait_for_url(first)


def test_a_group_and_two_runs_stand_side_by_side(browser: Any, report: Path) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(report.as_uri() + "#/episodes")
        page.locator(".list .row").first.click()
        page.wait_for_selector(".turn")
        page.keyboard.press("g")
        page.wait_for_selector(".columns")
        assert page.locator(".column").count() == 4
        wait_until(page, "document.querySelectorAll('.column .turn').length === 4")
        page.keyboard.press("3")
        assert page.locator("#compare-a").input_value() != page.locator("#compare-b").input_value()
        assert page.locator("#tasks tbody tr").count() == 6
        page.locator("[data-tasks=all]").click()
        assert page.locator("#tasks tbody tr").count() == 8
        page.locator("#tasks tbody tr").first.click()
        wait_until(page, "document.querySelectorAll('.column .turn').length === 8")
        heads = page.locator(".column-head").all_inner_texts()
        assert sum("first" in head for head in heads) == sum("second" in head for head in heads) == 4


def test_drawings_of_plans_are_images_on_the_page(
    browser: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    for step, reward in ((1, 0.0), (4, 1.0)):
        for attempt in (0, 1):
            episode = make_episode("plan", attempt, reward, tokenizer, reply="0: buy lamp, tell Ada<1")
            task = Task(f"plan {step}", "htdag", "train", {"request": "buy a lamp, then tell Ada"})
            turn = replace(episode.turns[0], action=Action(content="0: buy lamp, tell Ada<1"))
            write_episode(tmp_path / "run" / "groups" / f"step_{step}", replace(episode, task=task, turns=(turn,)))
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    (tmp_path / "report.html").write_bytes(document(find_runs([tmp_path / "run"]))[0])
    with PageRecorder(browser) as recorder:
        recorder.page.goto((tmp_path / "report.html").as_uri())
        wait_until(recorder.page, "document.querySelectorAll('#drawings .drawing img').length === 2")
        wait_until(
            recorder.page, "[...document.querySelectorAll('#drawings img')].every((image) => image.naturalWidth > 100)"
        )
        assert "step 1" in recorder.page.inner_text("#drawings")
        recorder.page.click("#drawings a.item")
        wait_until(recorder.page, "document.querySelectorAll('.detail .drawing img').length === 1")


def test_light_dark_keys_and_a_phone(browser: Any, report: Path) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    with PageRecorder(browser, color_scheme="dark") as recorder:
        page = recorder.page
        page.goto(report.as_uri())
        dark = page.evaluate(back)
        page.keyboard.press("d")
        assert page.evaluate(back) != dark
        page.keyboard.press("?")
        assert page.locator("#help").is_visible()
        page.keyboard.press("Escape")
        assert not page.locator("#help").is_visible()
    with PageRecorder(browser, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True) as recorder:
        page = recorder.page
        for fragment in ("", "#/episodes", "#/compare"):
            page.goto(report.as_uri() + fragment)
            page.wait_for_selector(".run, .row, #tasks")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.goto(report.as_uri() + "#/episodes")
        page.locator(".row").first.tap()
        page.wait_for_selector(".turn")
        assert not page.locator(".list").is_visible()
        page.locator(".back").tap()
        page.wait_for_selector(".list")


def open_every_episode(page: Any, count: int) -> None:
    """Open every episode in every way of looking; nothing of it may have run or become an element."""
    wait_until(page, f"document.querySelectorAll('.list .row').length >= {min(count, 5)}")
    for _ in range(count):
        page.keyboard.press("j")
        page.wait_for_selector(".turn")
        for key in ("t", "l", "a", "o", "t"):
            page.keyboard.press(key)
    assert page.evaluate("window.owned") is None
    assert page.locator("main img, main script, main iframe, main b:not(.facts b):not(.turn-head b)").count() == 0


def test_hostile_trajectories_run_no_script_in_the_report(
    browser: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    paths = write_hostile_episodes(tmp_path / "bad", tokenizer)
    damaged = write_damaged_episodes(tmp_path / "bad", tokenizer)
    write_training(tmp_path / "bad", 3, **{HOSTILE_TEXTS["markup"]: 1.0})
    path = tmp_path / "report.html"
    path.write_bytes(document(find_runs([tmp_path / "bad"]))[0])
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(path.as_uri())
        assert page.locator("#faults tr").count() == len(damaged)
        page.locator("details summary").first.click()
        page.goto(path.as_uri() + "#/episodes")
        open_every_episode(page, len(paths))
        assert recorder.requests == [path.as_uri()] or all(url.startswith("file:") for url in recorder.requests)


def test_hostile_trajectories_run_no_script_on_the_live_page(
    browser: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    paths = write_hostile_episodes(tmp_path / "bad", tokenizer)
    write_damaged_episodes(tmp_path / "bad", tokenizer)
    with Running(tmp_path) as address, PageRecorder(browser) as recorder:
        recorder.page.goto(address + "#/episodes")
        open_every_episode(recorder.page, len(paths))
        assert all(url.startswith(address) or url == "data:," for url in recorder.requests)


def test_the_live_page_watches_a_training_advance(
    browser: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    write_run(tmp_path / "first", [[0.0, 1.0], [0.0, 0.0]], tokenizer)
    write_run(tmp_path / "second", [[1.0, 1.0], [1.0, 1.0]], tokenizer)
    with Running(tmp_path) as address, PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(address)
        wait_until(page, "document.querySelectorAll('.run').length === 2")
        wait_until(page, "document.getElementById('status').textContent === 'live'")
        write_training(tmp_path / "third", 3, planned=40)
        wait_until(page, "document.body.innerText.includes('step 3 / 40')")
        drawn_path = page.locator("[data-metric='success/mean'] path.line").get_attribute("d")
        with (tmp_path / "third" / "metrics.jsonl").open("a") as file:
            for step in range(4, 9):
                file.write(json.dumps({"step": step, **step_values(step)}) + "\n")
        wait_until(page, "document.body.innerText.includes('step 8 / 40')")
        wait_until(
            page,
            f"document.querySelector(\"[data-metric='success/mean'] path.line\").getAttribute('d') !== '{drawn_path}'",
        )
        file = MetricsFile(tmp_path / "third" / "metrics.jsonl")  # the same run begins anew
        file.write(1, step_values(1))
        file.close()
        wait_until(page, "document.body.innerText.includes('step 1 / 40')")
        page.keyboard.press("2")
        page.wait_for_selector(".list .row")
        page.locator(".list .row").first.click()
        page.wait_for_selector(".tokens .t.sampled")
        write_run(tmp_path / "second", [[1.0, 1.0], [1.0, 1.0], [0.0]], tokenizer)
        wait_until(page, "document.querySelector('.count').textContent.startsWith('9 ')")


@pytest.mark.slow
def test_the_live_page_watches_a_real_training(browser: Any, tmp_path: Path) -> None:
    settings = ["recipe=math-tiny", "trainer.total_training_steps=2", "data.train_batch_size=2",
                "data.val_batch_size=2", "agent.num_chains=2", "agent.max_turns=2", "trainer.test_freq=1",
                "actor_rollout_ref.rollout.response_length=24", f"trainer.default_local_dir={tmp_path}"]  # fmt: skip
    with Running(tmp_path) as address, PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(address)
        training = subprocess.Popen(
            [sys.executable, "-m", "practicum.cli", "train", *settings], stdout=subprocess.DEVNULL
        )
        try:
            # Quick steps may pass between two checks, so any step and the last one are waited for.
            wait_until(page, "/step [12] \\/ 2/.test(document.body.innerText)", 600.0)
            wait_until(page, "document.body.innerText.includes('step 2 / 2')", 240.0)
            assert training.wait(120) == 0
        finally:
            training.kill()
        page.wait_for_selector("[data-metric='val/success/mean'] path.area")
        page.keyboard.press("2")
        page.locator(".list .row").first.click()
        page.wait_for_selector(".tokens .t.sampled")

"""The first screen: what fails, which tool errs, since when a run is unhealthy, what differs; reports of a GPU."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from practicum.data.store import write_episode
from practicum.environment import Message
from practicum.evaluation.result import AttemptResult, EvalResult
from practicum.report.document import document
from practicum.report.page import script
from practicum.report.runs import find_runs
from practicum.training.monitor.loggers import MetricsFile
from practicum.training.validation_results import write_validation
from practicum.trajectory import Outcome
from tests.report.browser_pages import PageRecorder, wait_until
from tests.report.live.test_live import Running
from tests.report.live.test_overview import write_rl, write_stages
from tests.report.report_files import CHROMIUM, make_episode, make_turn, write_run, write_training
from tests.training.monitor.test_health import COLLAPSING

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs /usr/bin/chromium (make setup installs it)")

REPOSITORY = Path(__file__).parents[3]
SHIPPED = sorted((REPOSITORY / "docs" / "gpu-training").glob("*.html"))


def write_report(top: Path) -> Path:
    path = top / "report.html"
    path.write_bytes(document(find_runs([top]))[0])
    return path


def first_screen(page: Any) -> dict[str, str]:
    rows = page.locator("#glance > div").evaluate_all(
        "(rows) => rows.map((row) => [...row.children].map((one) => one.innerText))"
    )
    return {name: " ".join(text.split()) for name, text in rows}


def test_the_first_screen_answers_and_leads_to_the_details(browser: Any, tmp_path: Path) -> None:
    write_stages(tmp_path / "alpha", {"base": 2, "sft": 15, "rl": 22}, "a", 3e-4)
    write_rl(tmp_path / "alpha" / "rl", 40, collapse=2)
    write_run(tmp_path / "notes" / "collect", [[1.0]])  # a run that keeps no configuration differs in none
    path = write_report(tmp_path)
    with PageRecorder(browser) as recorder:
        recorder.page.goto(path.as_uri())
        assert "Runs differ in" not in first_screen(recorder.page)
        assert recorder.page.locator("#differences").count() == 0
    write_stages(tmp_path / "beta", {"base": 2, "sft": 12, "rl": 24}, "b", 1e-3)
    path = write_report(tmp_path)
    with PageRecorder(browser, viewport={"width": 1280, "height": 900}) as recorder:
        page = recorder.page
        page.goto(path.as_uri())
        answers = first_screen(page)
        assert list(answers) == ["Best", "Fails", "Tool errors", "Health", "Runs differ in"]
        assert answers["Best"].startswith("beta · rl 66.7 % [")
        assert "next alpha · rl 60.0 %: no difference shown +6.7 points [" in answers["Best"]
        assert answers["Fails"] == "most often level 1: 6 of 10 (60.0 %) · beta · rl"
        assert answers["Tool errors"] == ("calculator 5 of 35 calls (14.3 %), most often ‘no number’ (5) · beta · rl")
        assert answers["Health"] == "act: success_collapse since step 2, and 1 further sign"
        assert answers["Runs differ in"] == f"rl.lr 0.0003 → 0.001, commit {9 * 'a'} → {9 * 'b'} · alpha → beta"
        assert page.locator("#config-differences thead th").all_inner_texts() == ["alpha", "beta"]
        for selector in ("#glance", "#result .headline >> nth=-1", "#result tbody tr >> nth=2"):
            box = page.locator(selector).bounding_box()
            assert box["y"] + box["height"] <= 900
        for section in ("failures", "health", "differences"):
            page.locator(f"#glance [data-section={section}]").first.focus()
            page.keyboard.press("Enter")
            wait_until(page, f"document.activeElement.id === '{section}'")
            wait_until(page, f"(() => {{ const top = document.getElementById('{section}').getBoundingClientRect().top;"
                          " return top >= 0 && top < innerHeight; })()")  # fmt: skip


def test_the_errors_of_a_tool_are_listed_by_text_and_open_their_episodes(browser: Any, tmp_path: Path) -> None:
    for index in range(12):
        episode = make_episode(f"task-{index}", 0, 0.0)
        (turn,) = episode.turns
        error_text = (
            "5" if index < 4 else f"Error: no article 'pen {index}' below {index} EUR" if index < 9 else "Error: busy"
        )
        times = 2 if index == 4 else 1  # one episode fails twice with one text
        later = tuple(
            replace(turn, restart=False, messages=(Message("tool", error_text, name="calculator"),))
            for _ in range(times)
        )
        write_episode(tmp_path / "run" / "rl" / "examination", replace(episode, turns=(turn, *later)))
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(write_report(tmp_path).as_uri())
        text = "no article ‘…’ below # EUR"
        assert f"most often ‘{text}’ (6)" in first_screen(page)["Tool errors"]
        rows = page.locator("#tool-errors tbody tr")
        assert rows.locator("td").all_inner_texts() == [f"calculator {text}", "6", "5", "calculator busy", "3", "3"]
        assert page.locator("#tool-errors tfoot td").all_inner_texts() == ["All", "9", "8"]
        rows.first.locator("td").nth(1).click()
        wait_until(page, "document.body.innerText.includes('5 of 12 episodes')")
        assert page.locator(".cause").inner_text() == f"a call failed with: calculator: {text} ×"


def test_a_short_run_that_collapses_is_dated_on_the_first_screen(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "rl"
    folder.mkdir(parents=True)
    file = MetricsFile(folder / "metrics.jsonl")
    for step in range(1, 9):
        metrics = {name: values[step - 1] for name, values in COLLAPSING.items()}
        file.write(step, {**metrics, "reward/mean": metrics["success/mean"], "reward/std": 0.4, "rollout/groups": 8.0})
    file.close()
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(write_report(tmp_path).as_uri())
        assert first_screen(page)["Health"].startswith("act: success_collapse since step 3")
        assert "as the mean of steps 3 to 7" in page.locator("[data-sign=dead_groups]").first.inner_text()
        assert "training success at step 8 0.0 %" in page.locator(".run").inner_text()


def test_all_differences_are_on_one_axis(browser: Any, tmp_path: Path) -> None:
    for name, solved in (("base", 0), ("sft", 10), ("rl", 20)):
        write_run(tmp_path / "run" / name / "examination", [[float(n < solved)] for n in range(20)])
    (tmp_path / "run" / "plan.json").write_text("{}")
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(write_report(tmp_path).as_uri())
        rows = page.locator("#comparison .verdict")
        centres = {
            rows.nth(index).locator("summary").inner_text().split(" by ")[0]:
            float(rows.nth(index).locator("circle").get_attribute("cx"))
            for index in range(rows.count())
        }  # fmt: skip
        assert len(centres) == 3
        zero = {
            float(position)
            for position in rows.locator("line.zero").evaluate_all("(all) => all.map((one) => one.getAttribute('x1'))")
        }
        assert len(zero) == 1
        (zero_position,) = zero
        by = {name.split("'")[1] + name.split("'")[3]: at - zero_position for name, at in centres.items()}
        assert by["rlbase"] == pytest.approx(2 * by["rlsft"])
        assert by["sftbase"] == pytest.approx(by["rlsft"])
        assert page.locator("#comparison .verdict table:visible").count() == 0
        rows.first.locator("summary").click()
        assert page.locator("#comparison .verdict table:visible").count() == 1
        page.keyboard.press("3")  # task by task begins with the last stage and the one before
        for choice, stage in (("a", "sft"), ("b", "rl")):
            assert page.locator(f"#compare-{choice} option:checked").inner_text() == stage


def validate(run: Path, step: int, solved: int) -> None:
    outcomes = [Outcome.SUCCESS if index < solved else Outcome.FAILURE for index in range(30)]
    attempts = tuple(
        AttemptResult(f"v-{n}", f"v-{n}", 0, o, float(o is Outcome.SUCCESS), 1, 9, 0) for n, o in enumerate(outcomes)
    )
    write_validation(run, step, EvalResult("val", "math", "panel", 30, 1, attempts))


def test_validations_are_the_result_where_nothing_else_was_evaluated(browser: Any, tmp_path: Path) -> None:
    for name, last in (("first", 3), ("second", 25)):
        write_training(tmp_path / name, 10)
        validate(tmp_path / name, 0, 4)
        validate(tmp_path / name, 10, last)
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(write_report(tmp_path).as_uri())
        heads = page.locator("#result p.headline b").all_inner_texts()
        assert [head.split(" points")[0] for head in heads] == [
            "first: validation, step 10 − validation, step 0: −3.3",
            "second: validation, step 10 − validation, step 0: +70.0",
            "second · validation, step 10 − first · validation, step 10: +73.3",
        ]


def test_failures_on_the_live_page_are_of_the_newest_stage_until_one_is_chosen(browser: Any, tmp_path: Path) -> None:
    """Also those of a stage that comes while the page is open."""
    write_run(tmp_path / "run" / "sft" / "examination", [[0.0], [1.0]])
    (tmp_path / "run" / "plan.json").write_text("{}")
    with Running(tmp_path) as address, PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(address)
        chosen = "(document.querySelector('#failures-of') || {selectedOptions: [{}]}).selectedOptions[0].text"
        wait_until(page, "document.querySelector('#clusters') !== null")
        write_run(tmp_path / "run" / "rl" / "examination", [[0.0], [1.0]])
        wait_until(page, f"{chosen} === 'rl'")
        wait_until(page, "document.querySelector('#glance').innerText.includes('· rl')")
        page.select_option("#failures-of", label="sft")
        write_run(tmp_path / "run" / "train" / "examination", [[0.0], [1.0]])
        wait_until(
            page, "[...document.querySelectorAll('#failures-of option')].some((one) => one.text.startsWith('train'))"
        )
        assert page.evaluate(chosen) == "sft"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_report_of_a_gpu_has_its_stages_in_order_with_verdicts(browser: Any, path: Path) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(path.as_uri())
        rows = page.locator("#result .result").first.locator("tbody tr")
        texts = [" ".join(text.split()) for text in rows.all_inner_texts()]
        stages = [text.split()[0].partition("/")[2] for text in texts]
        assert stages[:3] == ["base", "sft", "rl"]
        assert len(stages) % 3 == 0
        for base, sft, rl in zip(texts[::3], texts[1::3], texts[2::3], strict=True):
            assert "baseline" in base
            assert any(f"{verdict} than" in sft for verdict in ("better", "worse")) or "no difference shown from" in sft
            assert "/sft" in rl
        assert set(first_screen(page)) == {"Best", "Fails", "Tool errors", "Health", "Runs differ in"}
        page.goto(path.as_uri() + "#/episodes")
        assert page.locator(".list .row .where").first.inner_text() == "math/base"  # as the result names it
        page.locator(".list .row").first.click()
        wait_until(page, "document.querySelectorAll('.tokens .t.sampled').length > 0")


def test_some_report_of_a_gpu_is_shipped() -> None:
    assert SHIPPED


def test_a_report_gets_the_page_of_this_checkout_and_keeps_its_data(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    turn = make_turn(tokenizer, "What?", "</script> & <b>")
    write_episode(tmp_path / "run", replace(make_episode("odd & <ends>", 0, 1.0), turns=(turn,)))
    page = write_report(tmp_path).read_bytes()
    old = page.replace(script().encode(), b"'an older script'")
    spec = importlib.util.spec_from_file_location("renew_report", REPOSITORY / "benchmarks" / "renew_report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert old != page
    assert module.renewed(old) == page

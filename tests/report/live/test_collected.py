"""From `collect` and `eval` to the report: what these commands write is shown token by token, found, and linked to."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from practicum.cli.main import main
from practicum.data.store import write_episode
from practicum.environments.math import NAMES
from tests.cli.terminal import MARK, RUNNER, environment
from tests.report.browser_pages import PageRecorder, wait_for_count, wait_until
from tests.report.report_files import CHROMIUM, make_episode, make_turn

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs /usr/bin/chromium (make setup installs it)")

ENVIRONMENT = ["--env", "math", "--env-arg", "levels=[1]"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a collection of an expert and of an evaluation of the tiny model."""
    top = tmp_path_factory.mktemp("collected")
    runs, path = top / "runs", top / "report.html"
    collected = ["collect", *ENVIRONMENT, "--policy", "expert", "--tasks", "4", "--out", str(runs)]
    evaluated = ["eval", *ENVIRONMENT, "--policy", "tiny-pretrained", "--tasks", "3", "--max-tokens", "8",
                 "--max-turns", "2", "--device", "cpu", "--out", str(runs / "tiny.json")]  # fmt: skip
    commands = [collected, evaluated, ["report", str(runs), "-o", str(path)]]
    # In a process of its own: Playwright's event loop runs in this one.
    subprocess.run([sys.executable, "-c", RUNNER, json.dumps(commands), MARK], check=True, env=environment({}))
    return path


def test_episodes_of_collect_and_eval_are_shown_token_by_token(browser: Any, report: Path) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(report.as_uri() + "#/episodes")
        wait_for_count(page, "7 episodes")
        runs = page.locator(".list .row .where").all_inner_texts()
        for run in dict.fromkeys(runs):
            page.locator(".list .row", has=page.locator(".where", has_text=run)).first.click()
            wait_until(page, "document.querySelectorAll('.tokens .t.sampled').length > 0")
            text = page.locator(".turn").first.inner_text()
            assert "<|im_start|>assistant" in text  # tokens, and not only messages
            assert page.locator(".list .row[aria-selected=true]").count() == 1
            page.go_back()
            wait_for_count(page, "7 episodes")
        assert len(set(runs)) == 2


def test_a_word_of_a_question_finds_its_episodes_and_the_link_shows_them_elsewhere(browser: Any, report: Path) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(report.as_uri() + "#/episodes")
        wait_for_count(page, "7 episodes")
        questions = page.locator(".list .row .question").all_inner_texts()
        word = next(name for name in NAMES if any(name in question for question in questions))
        having = [question for question in questions if word in question]
        page.fill("#search", word)
        wait_until(page, "/^[1-6] of 7 episodes$/.test(document.querySelector('.count').textContent)")
        questions_shown = page.locator(".list .row .question").all_inner_texts()
        assert set(having) <= set(questions_shown)  # others have the word in a reply
        count = f"{len(questions_shown)} of 7 episodes"
        wait_for_count(page, count)
        page.locator(".list .row").first.click()
        name = page.locator(".list .row[aria-selected=true] .name").inner_text()
        address = page.evaluate("location.href")
    with PageRecorder(browser, viewport={"width": 900, "height": 700}) as second:
        second.page.goto(address)
        wait_for_count(second.page, count)
        assert second.page.locator("#search").input_value() == word
        assert second.page.locator(".list .row[aria-selected=true] .name").inner_text() == name


def test_roles_and_branches_are_shown(browser: Any, tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    manager = make_turn(tokenizer, "plan it", "do the first part", role="manager")
    worker = make_turn(tokenizer, "do it", "done", role="worker")
    second_turn = make_turn(
        tokenizer, "do it again", "done again", role="manager", branch_reason="fresh prompt for each part"
    )
    follow = make_turn(tokenizer, "and then", "and done", role="manager", restart=False, continues=0)
    write_episode(tmp_path / "run", replace(make_episode("task", 0, 1.0), turns=(manager, worker, second_turn, follow)))
    path = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "run"), "-o", str(path)]) == 0
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(path.as_uri() + "#/episodes")
        page.locator(".list .row").first.click()
        wait_until(page, "document.querySelectorAll('.turn').length === 4")
        heads = [" ".join(text.split()) for text in page.locator(".turn-head").all_inner_texts()]
        assert [head.split()[2] for head in heads] == ["manager", "worker", "manager", "manager"]
        assert "prompt begins anew" in heads[2]
        assert "(fresh prompt for each part)" in heads[2]
        assert "continues turn 1" in heads[3]

"""The overview tells what was gained, what fails, since when a run is unhealthy, and what differs between runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from practicum.data.store import read_episodes, write_episode
from practicum.environment import Message
from practicum.evaluation.result import EvalResult, attempt_result
from practicum.report.document import document
from practicum.report.runs import find_runs
from practicum.task import Task
from practicum.training.monitor.loggers import MetricsFile
from practicum.trajectory import Outcome
from tests.report.browser_pages import PageRecorder, wait_for_count, wait_until
from tests.report.report_files import CHROMIUM, make_episode, step_values, write_run, write_training

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs /usr/bin/chromium (make setup installs it)")

COLLAPSED = {"success/mean": 0.0, "reward/mean": 0.0, "reward/std": 0.0, "rollout/dead_groups": 1.0}
TRAINED = ("actor/loss", "actor/grad_norm", "actor/entropy", "actor/ppo_kl")


def write_stages(run: Path, solved: Mapping[str, int], commit: str, lr: float) -> None:
    """Stages that solve so many of 30 tasks of three levels; every sixth episode calls a tool twice, in vain."""
    for stage, count in solved.items():
        for index in range(30):
            episode = make_episode(f"task-{index}", 0, float(index < count))
            fields = {"question": f"What is {index}?", "level": 1 + index % 3}
            if index % 6 == 0:
                (turn,) = episode.turns
                answer = Message("tool", "Error: no number", name="calculator")
                failed = replace(turn, restart=False, messages=(answer,))
                episode = replace(episode, turns=(turn, failed), outcome=Outcome.TRUNCATED, reward=0.0)
            write_episode(
                run / stage / "examination", replace(episode, task=Task(episode.task.id, "math", "test", fields))
            )
    (run / "plan.json").write_text(json.dumps({"seed": 1, "rl": {"lr": lr, "steps": 10}}))
    version = {"from_step": 0, "practicum": "0.1.0", "commit": commit * 40, "changed": False, "python": "3.11"}
    (run / "version.json").write_text(json.dumps([version]))


def write_rl(folder: Path, steps: int, collapse: int = 0) -> None:
    """A training that collapses at a step (0: never), after which no group has a difference and nothing is trained."""
    folder.mkdir(parents=True, exist_ok=True)
    file = MetricsFile(folder / "metrics.jsonl")
    for step in range(1, steps + 1):
        values = {**step_values(step), "success/mean": 0.8, "reward/mean": 0.8, "rollout/dead_groups": 0.2}
        values |= {"actor/grad_norm": 0.3}
        if collapse and step >= collapse:
            values = {name: value for name, value in {**values, **COLLAPSED}.items() if name not in TRAINED}
        file.write(step, values)
    file.close()


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of three stages on the same tasks: a short one that collapses, and a long one."""
    top = tmp_path_factory.mktemp("two")
    write_stages(top / "alpha", {"base": 2, "sft": 15, "rl": 22}, "a", 3e-4)
    write_stages(top / "beta", {"base": 2, "sft": 12, "rl": 24}, "b", 1e-3)
    write_rl(top / "alpha" / "rl", 40, collapse=2)
    write_rl(top / "beta" / "rl", 400)
    path = top / "report.html"
    path.write_bytes(document(find_runs([top]))[0])
    return path


@pytest.mark.parametrize("width", [1280, 1440, 390])
def test_stages_are_compared_within_their_run_and_no_verdict_is_cut(browser: Any, two_runs: Path, width: int) -> None:
    with PageRecorder(browser, viewport={"width": width, "height": 900}) as recorder:
        page = recorder.page
        page.goto(two_runs.as_uri())
        heads = page.locator("#result .headline b").all_inner_texts()
        assert [head.split(":")[0] for head in heads[:2]] == ["alpha", "beta"]
        assert heads[0].startswith("alpha: rl − sft: +")
        assert heads[1].startswith("beta: rl − sft: +")
        assert heads[2].startswith("beta · rl − alpha · rl: ")
        rows = page.locator("#result tbody tr")
        texts = [" ".join(text.split()) for text in rows.all_inner_texts()]
        assert [text.split()[0] for text in texts] == ["alpha", "base", "sft", "rl", "beta", "base", "sft", "rl"]
        assert "baseline" in texts[1]
        assert "baseline" in texts[5]
        for first in (1, 5):  # the base of a run is compared with nothing of the other run
            assert rows.nth(first).locator(".verdicts .badge").count() == 0
            assert ["than base" in text or "from base" in text for text in texts[first + 1 : first + 3]] == [True, True]
            assert "than sft" in texts[first + 2] or "from sft" in texts[first + 2]
        assert "alpha · rl" in texts[7]
        clipped = page.evaluate(
            "[...document.querySelectorAll('#result .verdicts, #result .headline')]"
            ".filter((node) => node.scrollWidth > node.clientWidth + 1).length"
        )
        assert clipped == 0
        fits = page.locator("#result .scroll").first.evaluate("(node) => node.scrollWidth <= node.clientWidth + 1")
        assert fits or width < 600


def test_the_number_of_comparisons_is_shown_and_does_not_depend_on_the_baseline(browser: Any, two_runs: Path) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(two_runs.as_uri())
        heading = page.locator("#result .section-head").inner_text()
        assert "corrected for the 15 pairs that can be compared here" in heading
        listed = page.locator("#comparison .verdict").count()
        assert 1 < listed < 15
        section_head = page.locator("#comparison .section-head").inner_text()
        assert f"over all 15 pairs that can be compared here, of which {listed} are listed" in section_head
        evidence = "#result .headline .soft"
        assert all("after Holm over 15 comparisons" in text for text in page.locator(evidence).all_inner_texts())
        before = page.locator("#result tbody tr").nth(2).locator(".verdicts .badge").first.inner_text()
        page.select_option("#baseline", label="beta · rl")
        assert all("after Holm over 15 comparisons" in text for text in page.locator(evidence).all_inner_texts())
        assert page.locator("#result .headline b").first.inner_text().startswith("alpha · rl − beta · rl: ")
        page.select_option("#baseline", label="alpha · base")
        assert page.locator("#result tbody tr").nth(2).locator(".verdicts .badge").first.inner_text() == before
        assert "corrected for the 15 pairs" in page.locator("#result .section-head").inner_text()


def test_what_differs_between_two_runs_is_shown_above_the_curves(browser: Any, two_runs: Path) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(two_runs.as_uri())
        order = page.locator("section").evaluate_all("(nodes) => nodes.map((node) => node.id)")
        assert order.index("differences") < order.index("health")
        rows = {
            row[0]: row[1:]
            for row in page.locator("#config-differences tbody tr").evaluate_all(
                "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.innerText))"
            )
        }
        assert rows["commit"] == ["a" * 9, "b" * 9]
        assert rows["rl.lr"] == ["0.0003", "0.001"]
        assert rows["steps"] == ["rl 40", "rl 400"]
        assert set(rows) == {"last success", "steps", "commit", "rl.lr"}
        assert "1 key of the configuration differs" in page.locator("#differences").inner_text()


def test_health_is_dated_ordered_and_leads_to_its_curve(browser: Any, two_runs: Path) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(two_runs.as_uri())
        rows = page.locator("#events .event")
        assert rows.locator(".badge").all_inner_texts()[:2] == ["act: success_collapse", "act: dead_groups"]
        assert rows.locator(".step").all_inner_texts()[:2] == ["since step 2", "since step 2"]
        assert "reported at steps " in rows.first.inner_text()
        kinds = rows.locator(".badge").evaluate_all("(nodes) => nodes.map((node) => node.classList.contains('act'))")
        assert kinds == sorted(kinds, reverse=True)  # the gravest first
        chart = page.locator("[data-metric='success/mean']")
        alpha, beta = chart.locator(".key .dot").evaluate_all("(nodes) => nodes.map((node) => node.classList[1])")
        marks = chart.locator("path[class^=mark-]").evaluate_all(
            "(nodes) => nodes.map((node) => node.className.baseVal)"
        )
        assert f"mark-act {alpha}" in marks
        assert f"mark-warn {beta}" in marks  # its reward is flat
        assert f"mark-act {beta}" not in marks
        for metric in ("actor/loss", "actor/grad_norm"):
            note = page.locator(f"[data-metric='{metric}'] .ends").inner_text()
            assert note.startswith("alpha · rl ends at step 1 of 40: after that no group had a difference in reward")
        rows.nth(1).click()
        chart = page.locator("[data-metric='rollout/dead_groups']")
        assert "shown" in chart.get_attribute("class").split()
        assert chart.locator(".cross").count() == 1
        wait_until(
            page,
            "(() => { const box = document.querySelector(\"[data-metric='rollout/dead_groups']\")"
            ".getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight; })()",
        )
        assert "chart-zoom=rl" in page.url


def test_a_run_of_another_length_is_not_squashed(browser: Any, two_runs: Path) -> None:
    chart = "[data-metric='success/mean']"
    widths = (
        f'[...document.querySelectorAll("{chart} path.line")].map((path) => path.getBBox().width /'
        " path.ownerSVGElement.clientWidth)"
    )
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(two_runs.as_uri())
        assert page.locator("#x-axis").input_value() == "share"
        assert "share of its own run" in page.locator("#axis-note").inner_text()
        assert min(page.evaluate(widths)) > 0.7
        page.select_option("#x-axis", "step")
        assert min(page.evaluate(widths)) < 0.2
        assert page.locator("#axis-note").inner_text() == ""


def test_a_row_of_failures_or_tools_opens_exactly_the_episodes_that_it_counts(browser: Any, two_runs: Path) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(two_runs.as_uri())
        assert page.locator("#failures-of").locator("option:checked").inner_text() == "beta · rl"
        tables = [(cause, f"#{name}") for cause in ("kind", "error", "last", "tool") for name in ("clusters", "tools")]
        for cause, table in tables:
            page.locator(f"[data-cause={cause}]").click()
            rows = page.locator(f"{table} tr.link")
            assert rows.last.inner_text().startswith("All")
            counts = [int(rows.nth(index).locator("td").nth(1).inner_text()) for index in range(rows.count())]
            if table == "#clusters":
                assert sum(counts[:-1]) == counts[-1]
            for index, count in enumerate(counts):
                rows.nth(index).locator("td").nth(1).click()
                wait_for_count(page, f"{count} of 180 episodes")
                page.go_back()
                page.wait_for_selector(table)
        errors = page.locator("#tools tfoot button")
        assert errors.inner_text() == "5 in 5 episodes"
        errors.click()
        wait_for_count(page, "5 of 180 episodes")


def test_the_table_of_tools_follows_the_chosen_stage_and_links_start_without_filters(
    browser: Any, two_runs: Path
) -> None:
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(two_runs.as_uri())
        assert page.locator("#tools tbody tr").count() == 1
        page.select_option("#failures-of", "all")
        assert page.locator("#tools tbody tr").count() == 6
        cells = page.locator("#tools tfoot td").all_inner_texts()
        assert cells[:4] == ["All", "180", "210", "30 in 30 episodes"]
        page.locator("#tools tfoot button").click()
        wait_for_count(page, "30 of 180 episodes")
        page.locator("[data-tab=episodes]").click()  # the tab itself, without the filters of the row
        wait_for_count(page, "180 episodes")
        page.keyboard.press("1")
        page.locator("#environments tbody tr").first.click()
        wait_for_count(page, "30 of 180 episodes")
        assert page.locator(".cause button").count() == 0


def test_runs_of_one_stage_each_follow_each_other_but_seeds_do_not(browser: Any, tmp_path: Path) -> None:
    for name, solved in (("base", 1), ("rl-seed-1", 15), ("rl-seed-2", 16)):
        write_run(tmp_path / "runs" / name, [[float(n < solved)] for n in range(20)])
    path = tmp_path / "report.html"
    path.write_bytes(document(find_runs([tmp_path / "runs"]))[0])
    with PageRecorder(browser) as recorder:
        recorder.page.goto(path.as_uri())
        texts = [" ".join(text.split()) for text in recorder.page.locator("#result .verdicts").all_inner_texts()]
        assert texts[0] == "baseline"
        assert [text.split(",")[0] for text in texts[1:]] == ["better than base", "better than base"]
        assert "rl-seed-1" not in texts[2]


def test_two_trainings_from_one_model_are_compared_with_it_and_with_each_other(browser: Any, tmp_path: Path) -> None:
    """As separate commands leave them: demonstrations, SFT, two RL trainings, and a result of each model."""
    for index in range(20):
        episode = make_episode(f"train-{index}", 0, 1.0)
        write_episode(tmp_path / "demonstrations", replace(episode, task=replace(episode.task, split="train")))
    for name, solved in (("base", 1), ("sft", 10), ("rl", 18), ("rl-high-rate", 2)):
        write_run(tmp_path / "results" / name, [[float(n < solved)] for n in range(20)])
    for name in ("sft", "training/rl", "training/rl-high-rate"):
        write_rl(tmp_path / name, 20, collapse=5 if "high" in name else 0)
        (tmp_path / name / "config.yaml").write_text("lr: 2\n" if "high" in name else "lr: 1\n")
    (tmp_path / "sft" / "config.yaml").write_text("epochs: 3\n")
    (tmp_path / "sft" / "metrics.jsonl").write_text('{"step": 1, "sft/perplexity": 2.0}\n')
    path = tmp_path / "report.html"
    path.write_bytes(document(find_runs([tmp_path]))[0])
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(path.as_uri())
        blocks = page.locator("#result .result thead th:first-child").all_inner_texts()
        assert blocks == ["math, test tasks", "math, train tasks"]
        heads = page.locator("#result p.headline b").all_inner_texts()
        assert [head.split(" points")[0] for head in heads] == [
            "results/rl − results/sft: +40.0",  # the best one first
            "results/rl-high-rate − results/sft: −40.0",
        ]
        rows = [" ".join(text.split()) for text in page.locator("#result .verdicts").all_inner_texts()]
        assert [text.split(",")[0] for text in rows[3].split("] ")] == [
            "worse than results/sft",
            "worse than results/rl",
            "no difference shown from results/base",
        ]
        assert "results/rl-high-rate" not in page.locator("#glance > div").nth(1).inner_text()  # failures of the best
        differ = " ".join(page.locator("#glance > div").last.inner_text().split())
        assert differ == "Runs differ in lr 1 → 2 · training/rl → training/rl-high-rate"  # and not from SFT's keys


def test_a_training_and_an_evaluation_of_its_model_name_each_other(browser: Any, tmp_path: Path) -> None:
    """They are two runs, since a model may have several evaluations; other trainings are not named."""
    for name in ("shop/training/rl", "shop/training/rl-high-rate"):
        write_rl(tmp_path / name, 10)
    for name, policy in (("rl", "runs/shop/training/rl/model"), ("high", str(tmp_path / "shop/training/rl-high-rate")),
                         ("base", "tiny-pretrained")):  # fmt: skip
        episodes = write_run(tmp_path / "shop" / "results" / f"{name}.run", [[float(n < 5)] for n in range(9)])
        results = tuple(attempt_result(episode) for episode in read_episodes(episodes))
        EvalResult(policy, "math", "p", 9, 1, results).write(episodes.with_name(f"{name}.json"))
    path = tmp_path / "report.html"
    # The folder's own name is unknown to the command that evaluated.
    (tmp_path / "runs").mkdir()
    (tmp_path / "shop").rename(tmp_path / "runs" / "shop")
    path.write_bytes(document(find_runs([tmp_path / "runs" / "shop"]))[0])
    with PageRecorder(browser) as recorder:
        recorder.page.goto(path.as_uri())
        cards = {}
        for card in recorder.page.locator(".run.card").all():
            cards[card.locator(".run-name").inner_text().strip()] = " ".join(card.inner_text().split())
        assert len(cards) == 5
        assert "evaluation of training/rl " in cards["results/rl"] + " "
        assert "evaluated in results/rl" in cards["training/rl"]
        assert "evaluation" not in cards["results/base"] + cards["results/high"] + cards["training/rl-high-rate"]
        assert "rl-high-rate" not in cards["results/rl"]


def test_many_runs_fit_a_page_that_can_be_read(browser: Any, tmp_path: Path) -> None:
    """Twelve runs: the same few screens as of two, with everything beyond folded away or in a box of its own."""
    for index in range(12):
        run = tmp_path / f"run-{index:02d}"
        write_training(run, 40, seed=index)
        write_run(run / "evaluation", [[float((task + index) % 3 > 0)] for task in range(12)])
    path = tmp_path / "report.html"
    path.write_bytes(document(find_runs([tmp_path]))[0])
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(path.as_uri())
        assert page.locator("#result > .result").first.locator("tbody tr").count() == 12
        assert page.evaluate("document.documentElement.scrollHeight") < 7000
        assert page.locator("#result details summary").inner_text() == "validation during training: 24 rows"
        colours = page.locator(".run .dot").evaluate_all(
            "(dots) => dots.map((dot) => getComputedStyle(dot).color + getComputedStyle(dot).borderStyle)"
        )
        assert len(set(colours)) == 12


def test_rounding_noise_is_a_flat_line_and_stages_have_axes_of_their_own(browser: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for stage, values in (("sft", {"sft/perplexity": 2.0}), ("rl", {"reward/mean": 1.0, "success/mean": 1.0})):
        (run / stage).mkdir(parents=True)
        rows = [{"step": n, "actor/loss": 0.5, "actor/ppo_kl": 5e-8 * (n % 2), **values} for n in range(1, 30)]
        (run / stage / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "plan.json").write_text("{}")
    path = tmp_path / "report.html"
    path.write_bytes(document(find_runs([run]))[0])
    with PageRecorder(browser) as recorder:
        page = recorder.page
        page.goto(path.as_uri())
        assert page.locator("[data-stage=sft] [data-metric='actor/loss']").count() == 1
        assert page.locator("[data-stage=rl] [data-metric='actor/loss']").count() == 1
        assert page.locator("[data-metric='reward/mean']").count() == 0  # the same as the success
        line = page.locator("[data-stage=rl] [data-metric='actor/ppo_kl'] path.line").first.get_attribute("d")
        heights = [float(pair.split(",")[1]) for pair in re.findall(r"[-\d.]+,[-\d.]+", line or "")]
        assert len(heights) == 29
        assert max(heights) - min(heights) < 1

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from practicum import registry
from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.engines.scripted import ScriptedEngine
from practicum.environments.math import MathEnvironment
from practicum.errors import JudgeError, UserError
from practicum.registry import make_format
from practicum.rewards.math_equal_reward import MathWorker, as_latex
from practicum.rollout import run_episodes
from practicum.task import Task
from practicum.trajectory import Outcome, plan_attempts

installed = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs practicum[math]")


def score(answer: str | None, gold: object) -> float:
    reward = registry.reward("math_equal_reward")
    result = reward.score(Task("t", "math", "train", {"answer": gold}), answer, ())
    assert result.success is bool(result.reward)
    return result.reward


@installed
@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("1/2", "0.5", True),
        ("1/2", "\\frac{1}{2}", True),
        ("\\frac12", "$\\frac{2}{4}$", True),
        ("-\\frac{3}{4}", "-0.75", True),
        ("-3", "3", False),
        ("50\\%", "0.5", True),
        ("0.25", "25%", True),
        ("1,234", "1234", True),
        ("\\sqrt{8}", "2\\sqrt{2}", True),
        ("2\\sqrt{2}", "2", False),
        ("sqrt(8)", "2\\sqrt{2}", True),
        ("{1, 2, 3}", "\\{3, 2, 1\\}", True),
        ("\\{1, 2\\}", "\\{1, 2, 3\\}", False),
        ("(1, 2)", "(2, 1)", False),
        ("[0, 1)", "[0,1)", True),
        ("[0, 1)", "[0,1]", False),
        ("x^2-1", "(x-1)(x+1)", True),
        ("x^2-1", "(x-1)^2", False),
        ("sin(x)^2 + cos(x)^2", "1", True),
        ("42", "The answer is 42.", True),
        ("42", "So we get $6 \\cdot 7 = 42$", True),
        ("7", "\\boxed{7}", True),
        ("7", "seven", False),
        ("2xyz", "2", False),
        ("\\{2, 3\\}", "2 or 3", True),
        ("12", "12 apples", True),
        ("7", "nothing", False),
        ("7", "", False),
        ("7", None, False),
        (["6", "7"], "7.0", True),
        (7, "7", True),
    ],
)
def test_golden(gold: object, answer: str | None, equal: bool) -> None:
    assert score(answer, gold) == float(equal)


@installed
def test_it_works_from_many_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: score(f"\\frac{{{2 * n}}}{{2}}", str(n if n % 2 else n + 1)), range(40)))
    assert results == [float(n % 2) for n in range(40)]


@installed
def test_a_gold_answer_that_is_no_mathematics_is_a_judge_error() -> None:
    with pytest.raises(JudgeError, match="the gold answer 'of no use' cannot be read"):
        score("3", "of no use")


@installed
def test_a_comparison_that_hangs_is_a_judge_error_of_the_gold_answer_and_a_wrong_answer_otherwise() -> None:
    worker = MathWorker(cpu_seconds=1)
    started = time.monotonic()
    with pytest.raises(JudgeError, match="took more than 1 s of processor time"):
        worker.equal("9^{9^{9}}", "5")
    assert time.monotonic() - started < 60
    assert worker.equal("1/2", "0.5")  # a new worker process
    assert not worker.equal("5", "9^{9^{9}}")
    assert worker.equal("5", "5")
    assert not worker.equal("1/2", "0.6")
    worker.close()


@pytest.mark.parametrize("answer", ["(" * 400, "9^{9^{9^9}}", "9**9**9**9", "\\frac{1}{" * 60, "7" * 30_000])
def test_monstrous_answers_are_wrong_without_being_compared(answer: str) -> None:
    worker = MathWorker((sys.executable, "-c", "raise SystemExit(3)"))
    assert not worker.equal("5", answer)


def test_a_worker_that_does_not_answer_is_a_judge_error() -> None:
    reply = "import sys, time; sys.stdin.readline(); print('{\"equal\": true}', flush=True); time.sleep(60)"
    with pytest.raises(JudgeError, match=r"took more than 0\.2 s"):
        MathWorker((sys.executable, "-c", reply), deadline=0.2).equal("1", "1")


@installed
def test_ordinary_powers_and_brackets_are_compared() -> None:
    assert score("2^{2^3}", "256") == 1.0
    assert score("(((((1)))))", "1") == 1.0
    assert score("x^{2^{y^3}}", "x^{2^{y^3}}") == 1.0


def test_a_worker_that_dies_is_a_judge_error() -> None:
    reply = (
        "import sys; sys.stdin.readline(); print('{\"equal\": true}', flush=True); sys.stdin.readline(); sys.exit(3)"
    )
    worker = MathWorker((sys.executable, "-c", reply))
    for _ in range(2):
        with pytest.raises(JudgeError, match="ended with code 3"):
            worker.equal("1", "1")


def test_a_worker_that_says_nonsense_is_a_judge_error() -> None:
    worker = MathWorker((sys.executable, "-c", "print('hello')"))
    with pytest.raises(JudgeError, match="failed"):
        worker.equal("1", "1")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'practicum\[math\]'"):
        score("1", "1")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("1/2", "$1/2$"),
        ("\\frac{1}{2}", "$\\frac{1}{2}$"),
        ("50\\%", "$50%$"),
        ("It is 42.", "It is 42."),
        ("Answer: 42", "Answer: 42"),
        ("2xyz", "$2xyz$"),
        ("2 or 3", "$2 or 3$"),
        ("$x$", "$x$"),
        ("sin(x)", "$\\sin(x)$"),
        ("\\begin{pmatrix}1\\end{pmatrix}", "$\\begin{pmatrix}1\\end{pmatrix}$"),
        ("\\text{Monday}", "$\\text{Monday}$"),
    ],
)
def test_bare_formulas_are_marked_and_sentences_are_not(text: str, read: str) -> None:
    assert as_latex(text) == read


@installed
def test_in_an_episode(renderer: Renderer) -> None:
    """The reward runs in a worker thread there, which is where the package alone fails."""
    options: dict[str, Any] = {"reward": "math_equal_reward"}
    world = MathEnvironment(**options)
    engine = ScriptedEngine.of("expert", world, make_format("hf"), renderer)
    planned = plan_attempts(world.tasks("train", 6), 1, 0)
    episodes = asyncio.run(run_episodes(planned, lambda: MathEnvironment(**options), Agent(), engine, renderer))
    assert {e.outcome for e in episodes} == {Outcome.SUCCESS}

from __future__ import annotations

import importlib.util
import time

import pytest

from practicum import registry
from practicum.environment import ToolCall
from practicum.errors import JudgeError, UserError
from practicum.task import Task

CALLS = (ToolCall("calculator", {}),)


def score(answer: str | None, gold: object, reward: str = "math_reward") -> float:
    return registry.reward(reward).score(Task("t", "math", "train", {"answer": gold}), answer, CALLS).reward


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("2,002", "It is 2002.", True),
        ("12", "First 7, then **12**", True),
        ("12", "12, of 30", False),  # the last number counts
        ("1/2", "3/2", False),
        ("1/2", "0.5", True),
        ("1/2", "2 / 4", True),
        ("0.5", ".5", True),
        ("5", ".5", False),
        ("5", "It is...5", True),
        ("-0.5", "-.5", True),
        ("0.00001", "1e-05", True),
        (0.00001, "0.00001", True),
        ("2500", "2.5E3", True),
        ("5", "e5", True),
        ("-5", "-$5", True),
        ("-5", "$-5", True),
        ("-5", "\u22125", True),
        ("-5", "x=-5", True),
        ("-5", "_-5_", True),
        ("12", "7-12", False),  # a part of an expression is not the answer
        ("-12", "7-12", False),
        ("19", "COVID-19", True),
        ("5", "5/0", False),
        ("5", "", False),
        ("5", None, False),
    ],
)
def test_golden(gold: object, answer: str | None, right: bool) -> None:
    assert score(answer, gold) == float(right)


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("18", "She makes 9 * 2 = $18 a day.\n#### 18", True),
        ("18", "#### 18\nwith 3 more words", True),
        ("18", "The 3 boxes cost \\boxed{\\$18.00} for 7 people.", True),
        ("18", "\\boxed{17} or 18", False),
        ("3", "\\frac{5}{3}", False),
        ("3", "\\boxed{\\frac{5}{3}}", False),
        ("5/3", "\\boxed{\\dfrac{5}{3}}", True),
        ("\\frac{5}{3}", "5/3", True),
        ("3.5", "\\boxed{3\\frac{1}{2}}", True),
        ("3.5", "3 1/2", True),
        ("3", "3x", False),
        ("3", "2 + 3", False),
        ("3", "2*3", False),
        ("3", "x^3", False),
        ("3", "x > 3", False),
        ("4", "(3, 4)", False),
        ("34", "(3,4)", False),
        ("4", "3:4", False),
        ("25168", "2516_8", False),
        ("12", "It is *12*!", True),
        ("12", "<b>12</b>", True),
        ("12", "12m of rope", True),
        ("18 dollars", "18", True),
        ("18", "She makes 9 * 2 = $<<9*2=18>>18 every day.", True),
        ("18", "It costs eighteen dollars ($18).", True),
        ("18", "They are few (a total of 18) but fine.", True),
        ("18", "The wage is $18/hour.", True),
        ("18", "**Answer: 18**", True),
        ("18", "It is an 18-inch wheel.", True),
        ("448000", "450,000-2000=$448,000", True),
        ("9", "2 x 9", False),
        ("3", "f(3)", False),
        ("3", "2*(3)", False),
        ("3", "x/3", False),
        ("3", "7(x+3)(x-3)", False),
        ("3", "x - 3", False),
        ("10,080", "\\boxed{10{,}080}", True),
        ("90", "\\boxed{90^\\circ}", True),
        ("18.36", "$18.36\\text{ cm}$", True),
        ([6, "7"], "7.0", True),
    ],
)
def test_the_final_answer_counts_and_not_a_number_within_an_expression(gold: object, answer: str, right: bool) -> None:
    assert score(answer, gold) == float(right)


@pytest.mark.parametrize(
    "gold",
    ["\\left( 3, \\frac{\\pi}{2} \\right)", "p - q", "\\text{Evelyn}", "3\\sqrt{13}", "6 - 5i", "1,-2", "x=5",
     "52_8", "(-\\infty,-8)\\cup(8,\\infty)", "2k+2", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "1 \\pm \\sqrt{19}",
     "\\text{(C)}", "-5 \\le x \\le 5"],
)  # fmt: skip
def test_formulas_in_the_forms_of_math(gold: str) -> None:
    pytest.importorskip("math_verify")
    for form in ("{}", "\\boxed{{{}}}", "So it is ${}$.", "Then\n$\\boxed{{{}}}$.", "#### {}"):
        assert score(form.format(gold), gold) == 1.0, form
    for wrong in ("7", "\\boxed{\\frac{5}{7}}", "\\boxed{(3, 8)}", "\\text{Ellen}", "$x^9$"):
        assert score(wrong, gold) == 0.0, wrong


def test_a_gold_formula_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'practicum\[math\]'"):
        score("1", "\\sqrt{2}")
    assert score("\\boxed{3}", "3") == 1.0


def test_no_reply_takes_long() -> None:
    begin = time.perf_counter()
    for text in ("\\boxed{" * 20_000, "\\boxed " * 20_000, "####" * 30_000, "1," * 60_000, "\\text{" * 20_000,
                 "<a" * 60_000, "{" * 100_000):  # fmt: skip
        assert score(text, "5") == 0.0
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize("answer", ["1" * 5000, "0" * 5000 + "5", "1/" + "3" * 5000, "1e99999999", "1e-" + "9" * 5000])
def test_a_number_without_end_is_a_wrong_answer(answer: str) -> None:
    assert score(answer, "5") == 0.0
    assert score(answer, "5", "math_reward_string_equal") == 0.1


@pytest.mark.parametrize("reward", ["math_reward", "math_reward_string_equal"])
def test_a_gold_answer_without_a_number_is_a_judge_error(reward: str) -> None:
    with pytest.raises(JudgeError, match="the gold answer 'yes' has no number: give the task one"):
        score("yes", "yes", reward)

"""Rewards of mathematical answers: the final answer of a reply against the gold answer.

`math_reward` reads the final answer: the last `\\boxed{...}`, what follows the last `####`, or else the reply itself.
Against a gold number it must be that number: the 3 of `\\frac{5}{3}`, `3x` or `2 + 3` is not an answer. A gold answer
that is no number, and a reply in LaTeX, are compared as `math_equal_reward` compares them.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from practicum.environment import ToolCall
from practicum.errors import JudgeError, UserError
from practicum.rewards.base import Reward, Score, reward
from practicum.rewards.math_equal_reward import compare_with_gold
from practicum.task import Task
from practicum.utils.latex import last_boxed

INTEGER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
NUMBER = re.compile(
    r"(?:(?<![^\W_])(?P<sign>[-\u2212])(?:\\?[$\u20ac\u00a3])?)?"  # in 7-12 and A-12 it is not a sign
    rf"(?P<number>{INTEGER}(?:\.\d+)?|(?<![\w.])\.\d+)"
    r"(?:[eE](?P<exponent>[-+\u2212]?\d+)(?!\w))?"
    rf"(?: ?/ ?(?P<divisor>{INTEGER}(?:\.\d+)?))?"
)
FRACTION = re.compile(
    r"(?P<sign>[-\u2212]?)\s*(?P<whole>\d*)\s*\\[dtc]?frac\s*(?:\{\s*(?P<top>-?\d+)\s*\}|(?P<t>\d))\s*"
    r"(?:\{\s*(?P<bottom>\d+)\s*\}|(?P<b>\d))"
)
MIXED = re.compile(r"(?P<sign>[-\u2212]?)\s*(?P<whole>\d+)\s+(?P<top>\d+)\s*/\s*(?P<bottom>\d+)")
UNIT = re.compile(
    r"\\[ !,;:]|\\(?:text|mathrm|mbox)\s*\{[^{}]*\}|\^\s*\{?\\circ\}?|\\(?:left|right|displaystyle)(?![a-z])"
)
"""LaTeX around a number that does not change it."""
EDGES = " \t\r\n$\u20ac\u00a3*`%"
TAG = re.compile(r"</?[A-Za-z]\w{0,20}>|<<[^<>]*>>")
"""Markup and GSM8K's annotations, which are no part of a sentence."""
BEFORE = re.compile(
    r"(?:[\\+/^<>\u00d7\u00f7\u00b1\u221a]|(?:[\d)}]|\b[a-z])\s*[*xX\u2212-]|\d\s*[,:]|[^\W\d_]\s*\^|_|\d\s)\s*[{(]?\s*$"
    r"|(?:[\w)}]\(|\{)\s*$"
)
"""Text before a number that makes it a part of an expression."""
AFTER = re.compile(
    r"\s*(?:[+^<>\u00d7\u00f7\u221a]|/\s*(?:[\d(\\]|[A-Za-z](?![A-Za-z]))|[-\u2212]\s*\d|:\d|\*\s*[\w(]"
    r"|\\(?!text|mathrm|circ|[%$.,!;: )\]]))"
    r"|_[\w{]|[({]|[A-Za-z](?![A-Za-z])"
)
"""Text after a number that makes it a part of an expression; a single letter is a variable unless it is a unit."""
UNIT_LETTERS = frozenset("mgshdlLKCFVWJN")
LATEX = re.compile(r"\\(?!boxed|text|mathrm)[A-Za-z]+")
WORDS = re.compile(r"[^\W\d_]{2,}(?:[\s'-]+[^\W\d_]+)*")
MAX_DIGITS = 1000
"""Longest number that counts as an answer; longer ones come from a policy that repeats itself."""

MAX_CACHED_GOLDS = 4096
"""Gold answers whose number is kept: all attempts at a task are compared with the same one."""


def final_answer(reply: str) -> tuple[str, bool]:
    """Return the final answer of a reply, and whether the reply marks it (`\\boxed`, `####`)."""
    boxed = last_boxed(reply) if "box" in reply else None
    if boxed is not None:
        return boxed, True
    _, mark, last = reply.rpartition("####")
    lines = last.strip().splitlines() if mark else []
    return (lines[0].strip(), True) if lines else (reply.strip(), False)


def plain_number(text: str) -> Fraction | None:
    """Return the number that a text is, apart from currency, percent sign and unit in LaTeX; None if it is none."""
    if len(text) > MAX_DIGITS:
        return None
    text = (
        UNIT.sub("", text.replace("{,}", ",").replace("\\$", "").replace("\\%", "")).lstrip(EDGES).rstrip(EDGES + ".")
    )
    text = text[1:-1].strip(EDGES) if text[:1] == "(" and text[-1:] == ")" else text
    fraction = FRACTION.fullmatch(text) or MIXED.fullmatch(text)
    if fraction is not None:
        parts = fraction.groupdict()
        top, bottom = int(parts["top"] or parts["t"]), int(parts["bottom"] or parts["b"])
        value = int(parts["whole"] or 0) + (Fraction(top, bottom) if bottom else Fraction(0))
        return None if not bottom else -value if parts["sign"] else value
    match = NUMBER.fullmatch(text)
    return None if match is None else _value(match)


def last_number(text: str) -> Fraction | None:
    """Return the last number of a text, without thousands separators.

    None if there is none, or if the last one is a part of an expression, which has another value.
    """
    text = TAG.sub(" ", text)
    *_, match = None, *NUMBER.finditer(text)
    if match is None:
        return None
    before, after = text[: match.start()][-40:], text[match.end() :].lstrip("$*`")
    before = re.sub(r"(?<=[\s(:=])(?:\*\*|\*|__|_|`|\\?[$\u20ac\u00a3])+$", "", f" {before}")  # emphasis, currency
    expression = AFTER.match(after)
    if BEFORE.search(before) or (expression is not None and after[:1] not in UNIT_LETTERS):
        return None
    return _value(match)


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > MAX_DIGITS:
        return None
    exponent = int((match["exponent"] or "0").replace("\u2212", "-"))
    divisor = Fraction((match["divisor"] or "1").replace(",", ""))
    if abs(exponent) > MAX_DIGITS or not divisor:
        return None
    number = Fraction(match["number"].replace(",", "")) * Fraction(10) ** exponent / divisor
    return -number if match["sign"] else number


@functools.lru_cache(maxsize=MAX_CACHED_GOLDS)
def gold_number(gold: str) -> Fraction | None:
    """Return the number that a gold answer is: a plain one, or the only one among words (`18 dollars`)."""
    gold = final_answer(gold)[0]
    number = plain_number(gold)
    if number is None and "\\" not in gold and WORDS.search(gold) and len(NUMBER.findall(gold)) == 1:
        return last_number(gold)
    return number


def normalise_formula(text: str) -> str:
    """Return a formula without what changes nothing: dollars, blanks, sizes of brackets, kinds of fractions."""
    text = UNIT.sub(lambda match: re.sub(r"\\(?:text|mathrm|mbox)\s*|[{}]", "", match[0]), text)
    text = re.sub(r"\\[dtc]frac", r"\\frac", text).replace("\\left", "").replace("\\right", "")
    return re.sub(r"[\s$]|\\[ !,;:]", "", text).rstrip(".")


class MathReward(Reward):
    """A reward that compares formulas with `math-verify`; a missing package is a wrong setting, not a judge error."""

    def score(self, task: Task, answer_given: str | None, calls: Sequence[ToolCall]) -> Score:
        gold = task.fields.get("answer")
        golds = [gold] if isinstance(gold, str | int | float) else list(gold or ())
        if any(gold_number(str(answer_text)) is None for answer_text in golds) and not _can_compare_formulas():
            raise UserError(
                f"The gold answer '{str(gold)[:80]}' is no number, and formulas are compared by math-verify: "
                "pip install 'practicum[math]'."
            )
        return super().score(task, answer_given, calls)


def _can_compare_formulas() -> bool:
    return importlib.util.find_spec("math_verify") is not None


def compare_final_answer(answer_given: str | None, answer: str | float | Sequence[str | float]) -> Mapping[str, float]:
    """Return 1 if the final answer equals a gold answer, else 0."""
    golds = [answer] if isinstance(answer, str | int | float) else list(answer)
    right = float(any(_equals_gold(answer_given or "", str(gold)) for gold in golds))
    return {"reward": right, "success": right}


math_reward = MathReward("math_reward", compare_final_answer)


def _equals_gold(reply: str, gold: str) -> bool:
    gold = final_answer(gold)[0]  # a gold answer may be a worked solution, as in GSM8K's own rows
    number = gold_number(gold)
    if number is None and WORDS.fullmatch(gold.strip()):
        raise _without_number(gold)
    final, marked = final_answer(reply)
    if not final:
        return False
    if number is None:
        return normalise_formula(final) == normalise_formula(gold) or _same_formula(final, marked, gold)
    value = plain_number(final)
    if value is None and LATEX.search(final) and _can_compare_formulas():
        return _same_formula(final, marked, str(number))
    return (value if value is not None else last_number(final)) == number


def _same_formula(final: str, marked: bool, gold: str) -> bool:
    """Return whether math-verify finds two formulas equal; a marked answer is a formula as a whole."""
    text = f"\\boxed{{{final}}}" if marked and "$" not in final else final
    return compare_with_gold(text, gold)["reward"] > 0


def _without_number(answer: object) -> JudgeError:
    advice = "give the task one, or take another reward, such as qa_f1_reward"
    return JudgeError(f"the gold answer '{str(answer)[:80]}' has no number: {advice}")


@reward()
def math_reward_string_equal(answer_given: str | None, answer: str, calls: Sequence[ToolCall]) -> Mapping[str, float]:
    """AgentFly's reward: 0 without a tool call; else 1 if the last integer is right and 0.1 if not."""
    gold = re.findall(r"-?\d+", str(answer).replace(",", ""))
    answer_numbers = re.findall(r"-?\d+", (answer_given or "").replace(",", ""))
    if not gold or len(gold[-1]) > MAX_DIGITS:
        raise _without_number(answer)
    right = bool(answer_numbers) and len(answer_numbers[-1]) <= MAX_DIGITS and int(answer_numbers[-1]) == int(gold[-1])
    value = 0.0 if not calls else (1.0 if right else 0.1)
    return {"reward": value, "success": float(right and bool(calls)), "tool_used": float(bool(calls))}

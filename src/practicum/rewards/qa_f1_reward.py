"""Was the answer right, word for word? Exact match and token F1 as SQuAD and HotpotQA define them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from practicum.rewards.base import reward

ARTICLE = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
CLOSED = ("yes", "no", "noanswer")
"""Answers that are right or wrong as a whole: words in common are worth nothing."""


def normalise(text: str) -> str:
    """Lower case, without punctuation and articles, single blanks."""
    return " ".join(ARTICLE.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def compare_answers(given: str, gold: str) -> dict[str, float]:
    """Exact match, precision, recall and F1 of one answer against one gold answer."""
    said, wanted = normalise(given), normalise(gold)
    exact = float(said == wanted)
    if exact or said in CLOSED or wanted in CLOSED:
        return {"em": exact, "precision": exact, "recall": exact, "f1": exact}
    common = (Counter(said.split()) & Counter(wanted.split())).total()
    if not common:
        return {"em": 0.0, "precision": 0.0, "recall": 0.0, "f1": 0.0}
    precision, recall = common / len(said.split()), common / len(wanted.split())
    return {"em": 0.0, "precision": precision, "recall": recall, "f1": 2 * precision * recall / (precision + recall)}


def best_match(given: str | None, answer: str | float | Sequence[str | float]) -> dict[str, float]:
    """The comparison with the gold answer that fits best; no answer at all matches none."""
    golds = [answer] if isinstance(answer, str | int | float) else list(answer or ())
    if not golds or not all(isinstance(gold, str | int | float) for gold in golds):
        raise ValueError("the task's 'answer' must be a text, a number, or a list of them")
    if given is None:
        return {"em": 0.0, "precision": 0.0, "recall": 0.0, "f1": 0.0}
    return max((compare_answers(given, str(gold)) for gold in golds), key=lambda found: (found["f1"], found["em"]))


@reward()
def qa_f1_reward(answer_given: str | None, answer: str | float | Sequence[str | float]) -> Mapping[str, float]:
    """Token F1 with the best gold answer; solved when it matches exactly."""
    found = best_match(answer_given, answer)
    return {"reward": found.pop("f1"), "success": found["em"], **found}


@reward()
def qa_em_reward(answer_given: str | None, answer: str | float | Sequence[str | float]) -> Mapping[str, float]:
    """1 when the answer matches a gold answer exactly, after normalisation, else 0."""
    found = best_match(answer_given, answer)
    return {"reward": found["em"], "success": found["em"], "f1": found["f1"]}

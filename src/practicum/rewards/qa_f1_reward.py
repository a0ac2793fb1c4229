"""Rewards of short text answers: exact match and token F1 as SQuAD and HotpotQA define them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from practicum.rewards.base import reward

ARTICLE = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
CLOSED_ANSWERS = ("yes", "no", "noanswer")
"""Answers that are either right or wrong: common words count for nothing."""
UNANSWERABLE = ("", "no answer", "unanswerable", "not answerable")
"""What counts as `noanswer` where that is the gold answer, as in SQuAD 2.0."""


def normalise(text: str) -> str:
    """Lower-case a text, remove punctuation and articles, collapse blanks."""
    return " ".join(ARTICLE.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def compare_answers(answer: str, gold: str) -> dict[str, float]:
    """Return exact match, precision, recall and F1 of one answer against one gold answer."""
    answer_text, gold_text = normalise(answer), normalise(gold)
    if gold_text in ("noanswer", *UNANSWERABLE[1:]):
        gold_text = "noanswer"
        answer_text = "noanswer" if answer_text in UNANSWERABLE else answer_text
    exact = float(answer_text == gold_text)
    if exact or answer_text in CLOSED_ANSWERS or gold_text in CLOSED_ANSWERS:
        return {"em": exact, "precision": exact, "recall": exact, "f1": exact}
    common = (Counter(answer_text.split()) & Counter(gold_text.split())).total()
    if not common:
        return {"em": 0.0, "precision": 0.0, "recall": 0.0, "f1": 0.0}
    precision, recall = common / len(answer_text.split()), common / len(gold_text.split())
    return {"em": 0.0, "precision": precision, "recall": recall, "f1": 2 * precision * recall / (precision + recall)}


def best_match(answer_given: str | None, answer: str | float | Sequence[str | float]) -> dict[str, float]:
    """Return the comparison with the best matching gold answer; a missing answer matches none."""
    golds = [answer] if isinstance(answer, str | int | float) else list(answer or ())
    if not golds or not all(isinstance(gold, str | int | float) for gold in golds):
        raise ValueError("the task's 'answer' must be a text, a number, or a list of them")
    if answer_given is None:
        return {"em": 0.0, "precision": 0.0, "recall": 0.0, "f1": 0.0}
    return max(
        (compare_answers(answer_given, str(gold)) for gold in golds), key=lambda scores: (scores["f1"], scores["em"])
    )


@reward()
def qa_f1_reward(answer_given: str | None, answer: str | float | Sequence[str | float]) -> Mapping[str, float]:
    """Return token F1 with the best gold answer; solved if it matches exactly."""
    scores = best_match(answer_given, answer)
    return {"reward": scores.pop("f1"), "success": scores["em"], **scores}


@reward()
def qa_em_reward(answer_given: str | None, answer: str | float | Sequence[str | float]) -> Mapping[str, float]:
    """Return 1 if the normalised answer matches a gold answer exactly, else 0."""
    scores = best_match(answer_given, answer)
    return {"reward": scores["em"], "success": scores["em"], "f1": scores["f1"]}

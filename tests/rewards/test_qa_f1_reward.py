from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum import registry
from practicum.errors import JudgeError
from practicum.rewards.base import Score
from practicum.rewards.qa_f1_reward import compare_answers, normalise
from practicum.task import Task


def score(answer: str | None, gold: object, reward: str = "qa_f1_reward") -> Score:
    return registry.reward(reward).score(Task("t", "search", "train", {"answer": gold}), answer, ())


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The  Cat!", "cat"),
        ("An apple a day", "apple day"),
        ("theatre, another", "theatre another"),  # articles are whole words
        ("U.S.A.", "usa"),
        ("twenty-one", "twentyone"),
        ("the", ""),
        ("a\tb\nC", "b c"),
    ],
)
def test_normalisation(text: str, plain: str) -> None:
    assert normalise(text) == plain


@pytest.mark.parametrize(
    ("answer", "gold", "em", "precision", "recall", "f1"),
    [
        ("Rusko", "rusko.", 1, 1, 1, 1),
        ("the town of Rusko", "Rusko", 0, 1 / 3, 1, 1 / 2),  # town of rusko | rusko
        ("Rusko", "the old town Rusko", 0, 1, 1 / 3, 1 / 2),
        ("red red stone", "red stone stone", 0, 2 / 3, 2 / 3, 2 / 3),  # a word counts as often as both have it
        ("Dun", "Rusko", 0, 0, 0, 0),
        ("yes", "yes", 1, 1, 1, 1),
        ("yes it is", "yes", 0, 0, 0, 0),  # a closed answer is right or wrong as a whole
        ("no", "no one knows", 0, 0, 0, 0),
        ("noanswer", "noanswer", 1, 1, 1, 1),
        ("noanswer", "Rusko", 0, 0, 0, 0),
        ("", "Rusko", 0, 0, 0, 0),
    ],
)
def test_golden(answer: str, gold: str, em: float, precision: float, recall: float, f1: float) -> None:
    result = score(answer, gold)
    assert result.reward == pytest.approx(f1)
    assert result.components == pytest.approx({"em": em, "precision": precision, "recall": recall})
    assert result.success is bool(em)
    exact = score(answer, gold, "qa_em_reward")
    assert (exact.reward, exact.success) == (em, bool(em))
    assert exact.components == pytest.approx({"f1": f1})


def test_the_best_of_several_gold_answers_counts() -> None:
    result = score("New York", ["NYC", "New York City", "York"])
    assert result.reward == pytest.approx(0.8)  # New York City: precision 1, recall 2/3
    assert not result.success
    assert score("NYC!", ["NYC", "New York City"]).success


def test_no_answer_is_worth_nothing() -> None:
    assert score(None, "Rusko") == Score(0.0, {"em": 0.0, "precision": 0.0, "recall": 0.0}, False)


def test_a_gold_answer_may_be_a_number() -> None:
    assert score("42.", 42).success
    assert score("42", ["forty-two", 42]).success
    assert not score("0", 42).success
    assert score("0", 0).success


@pytest.mark.parametrize("gold", [[], [["x"]], None])
def test_a_task_without_a_usable_answer_is_the_judge_s_fault(gold: object) -> None:
    with pytest.raises(JudgeError):
        score("Rusko", gold)


WORDS = st.lists(st.sampled_from(["red", "Blue", "the", "stone,", "yes", "a", "river"]), max_size=6).map(" ".join)


@given(WORDS, WORDS)
def test_bounds_and_symmetry(first: str, second: str) -> None:
    result, swapped = compare_answers(first, second), compare_answers(second, first)
    assert 0.0 <= result["em"] <= result["f1"] <= 1.0
    assert result["f1"] == pytest.approx(swapped["f1"])
    assert (result["precision"], result["recall"]) == pytest.approx((swapped["recall"], swapped["precision"]))
    assert compare_answers(first, first)["f1"] == 1.0


@given(WORDS, WORDS)
def test_f1_is_twice_the_overlap_over_the_sum_of_lengths(first: str, second: str) -> None:
    """Dice's formula, counted by removing words one by one: another way to the same number."""
    words, other_words = normalise(first).split(), normalise(second).split()
    closed = {" ".join(words), " ".join(other_words)} & {"yes", "no", "noanswer"}
    expected = 1.0 if words == other_words else 0.0
    if words != other_words and not closed and words and other_words:
        total, common = len(words) + len(other_words), 0
        for word in words:
            if word in other_words:
                other_words.remove(word)
                common += 1
        expected = 2 * common / total
    assert compare_answers(first, second)["f1"] == pytest.approx(expected)

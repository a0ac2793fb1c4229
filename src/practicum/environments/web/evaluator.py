"""Judges a session by its state: the changes that the task asks for, all of them and no others.

A goal is a list of states: the first one, and those after each operation that solves the task. Success compares
changes: what the session changed since the first state must be exactly what the last state changed. Confirmation texts,
pages visited and changes that were undone do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from practicum.environments.web.sites.state import Facts, SiteState, StateChange, canonical, difference


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The verdict on a state."""

    success: bool
    progress: float
    """Share of sub-goals that are reached, from 0 to 1; an unrequested change counts as one more that is not reached.
    It is 1 exactly at success."""
    stage: int
    """Index of the first operation that is not done; the number of operations when all are."""
    missing: tuple[str, ...] = ()
    """Required changes that are not there."""
    unrequested: tuple[str, ...] = ()
    """Changes that no operation of the task makes."""


class Goal:
    """What a task asks of a state, and of the agent's answer where it asks a question.

    Each operation that changes something is a sub-goal, and the answer is one. An operation is done when all its
    changes are there, or have been taken back by a later operation that is done: a cart that became an order is filled.
    """

    def __init__(self, states: Sequence[SiteState], answer: str | None = None, distractors: Sequence[str] = ()) -> None:
        self.answer, self.distractors = answer, distractors
        self._first = states[0].facts()
        self._incidental = states[0].INCIDENTAL
        self._stages = [difference(self._first, state.facts()) for state in states[1:]]
        self._required: Counter[StateChange] = Counter()
        self._new_items: list[Counter[StateChange]] = []
        for stage in self._stages:
            self._new_items.append(stage - self._required)
            self._required |= stage
        self._touched = {(item.collection, item.record, item.field) for item in self._required}

    def evaluate(self, facts: Facts, answer: str | None = None) -> Evaluation:
        """Return the verdict on a snapshot of the state and on the last message to the user."""
        changes = self._changes(facts)
        is_done = self._done_operations(changes)
        sub_goals = [done for done, items in zip(is_done, self._new_items, strict=True) if items]
        if self.answer is not None:
            sub_goals.append(answer is not None and gives_answer(answer, self.answer, self.distractors))
        final = self._stages[-1] if self._stages else Counter()
        missing = tuple(sorted(map(str, (final - changes).elements())))
        unrequested = tuple(sorted(map(str, (changes - self._required).elements())))
        success = changes == final and all(sub_goals)
        # A sub-goal that was reached and then undone is a fault beside those that are still reached.
        num_faults = len(unrequested) + (all(sub_goals) and not unrequested and not success)
        progress = sum(sub_goals) / (len(sub_goals) + num_faults)
        stage = is_done.index(False) if False in is_done else len(is_done)
        return Evaluation(success, progress, stage, missing, unrequested)

    def _changes(self, facts: Facts) -> Counter[StateChange]:
        """Return what changed, without what merely looking changes."""
        items = difference(self._first, facts)
        for item in list(items):
            value = self._incidental.get((item.collection, item.field))
            is_incidental = item.kind == "set" and value is not None and item.value == canonical(value)
            if is_incidental and (item.collection, item.record, item.field) not in self._touched:
                del items[item]
        return items

    def _done_operations(self, changes: Counter[StateChange]) -> list[bool]:
        """Return for each operation whether it is done; the last one is looked at first."""
        is_done = [False] * len(self._stages)
        for index in reversed(range(len(self._stages))):
            lacking = self._new_items[index] - changes
            is_done[index] = all(self._is_superseded(item, index, is_done) for item in lacking)
        return is_done

    def _is_superseded(self, item: StateChange, index: int, is_done: Sequence[bool]) -> bool:
        """Whether the first later operation that takes a change back is done."""
        for later in range(index + 1, len(self._stages)):
            if self._stages[later][item] < self._stages[index][item]:
                return is_done[later]
        return False


def gives_answer(message: str, answer: str, distractors: Sequence[str] = ()) -> bool:
    """Whether a message gives an answer as whole words, and neither a distractor nor, if the answer has a number, any
    other number: a list of all that it might be is no answer."""
    words, answer_words = _words(message), _words(answer)
    if f" {answer_words} " not in f" {words} " or any(f" {_words(wrong)} " in f" {words} " for wrong in distractors):
        return False
    numbers = {word for word in answer_words.split() if word.isdecimal()}
    return not numbers or {word for word in words.split() if word.isdecimal()} == numbers


def _words(text: str) -> str:
    return " ".join("".join(c if c.isalnum() or c == ":" else " " for c in text.casefold()).split())

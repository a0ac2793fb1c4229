"""Scripted planners: random, heuristic, as-needed decomposition, expert, and one that only maximises a reward.

A policy is made for one episode and returns the text of each decision.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from practicum.environments.htdag.actions import EXECUTE, short_action
from practicum.environments.htdag.planning import PlanningEpisode
from practicum.environments.htdag.requests import ROOT
from practicum.environments.htdag.vocabulary import (
    PHRASES,
    RECIPES,
    STEP_SECONDS,
    TYPES,
    WORD,
    Item,
    is_step,
    mentioned_slots,
    recipe,
    slot_letters,
)

Decide = Callable[[PlanningEpisode], str]

RANDOM_PARTS = (2, 5)
"""Least and most subtasks of the random policy."""
THEN = re.compile(r",? then |; then ")
CLAUSE = re.compile(r"; also |; |, | and ")
BEFORE = re.compile(r"^before you (?P<last>.+?), (?P<first>.+)$")
AFTER = re.compile(r"^(?P<last>.+?) after you (?P<first>.+)$")


def keywords() -> Mapping[str, str]:
    """Return the words by which the heuristic recognises a task: its name, and words of its phrases only."""
    uses: dict[str, set[str]] = {}
    for type, phrases in PHRASES.items():
        for phrase in phrases:
            for word in WORD.findall(phrase.replace("{m}", "").replace("{x}", "")):
                uses.setdefault(word, set()).add(type)
    words = {word: next(iter(types)) for word, types in uses.items() if len(types) == 1 and len(word) > 3}
    return {**words, **{type: type for type in PHRASES}}


KEYWORDS = keywords()


@dataclass
class HeuristicPolicy:
    """Splits the request at its conjunctions, recognises tasks by keywords, and decomposes each by its usual recipe.

    It ignores modifiers, and plans steps that the request excludes.
    """

    sequential: bool = False
    """Whether each part comes after the one before it."""

    def __call__(self, episode: PlanningEpisode) -> str:
        dag = episode.dag
        leaf = next((leaf for leaf in _in_order(episode) if not is_step(dag[leaf].task_type)), None)
        if leaf is None:
            return EXECUTE
        items = parse_request(dag[leaf].description) if leaf == ROOT else self._parts(dag[leaf].task_type)
        if not items:
            return EXECUTE
        return lettered_action(episode, leaf, in_sequence(items) if self.sequential else items)

    def _parts(self, type: str) -> tuple[Item, ...]:
        return recipe(type) if type in RECIPES else ()


@dataclass
class AsNeededPolicy(HeuristicPolicy):
    """ADaPT: tries to execute each task and decomposes only what fails, in sequence; each try counts as a call."""

    sequential: bool = True
    tries: int = 0

    def __call__(self, episode: PlanningEpisode) -> str:
        text = super().__call__(episode)
        if text == EXECUTE:
            # Every leaf was tried once; the tasks that failed were tried before they were decomposed.
            self.tries = len(episode.dag)
            episode.state.llm_call_count += self.tries
        return text


@dataclass
class ExpertPolicy:
    """Decomposes according to the hidden requirement graph."""

    def __call__(self, episode: PlanningEpisode) -> str:
        required = episode.requirement
        for leaf in _in_order(episode):
            if leaf in required and required.children(leaf):
                return lettered_action(episode, leaf, _items_of(episode, leaf))
        return EXECUTE


@dataclass
class RandomPolicy:
    """Decomposes a random leaf with probability one half, into random types; else executes."""

    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(f"htdag-random/{self.seed}")

    def __call__(self, episode: PlanningEpisode) -> str:
        if self.rng.random() > 0.5:
            return EXECUTE
        leaf = self.rng.choice(episode.dag.leaves)
        slots = mentioned_slots(episode.state.user_request) or ("",)
        items = [
            Item(self.rng.choice(sorted(TYPES)), self.rng.choice(slots)) for _ in range(self.rng.randint(*RANDOM_PARTS))
        ]
        return lettered_action(episode, leaf, items)


@dataclass
class PublishedRewardPolicy:
    """Has all of the published reward with the same small DAG for every request: three tasks of two short steps."""

    def __call__(self, episode: PlanningEpisode) -> str:
        shortest = min(STEP_SECONDS, key=lambda step: STEP_SECONDS[step])
        if not episode.dag.children(ROOT):
            return short_action(ROOT, (Item("task"), Item("task"), Item("task")))
        leaf = next((leaf for leaf in episode.dag.leaves if not is_step(episode.dag[leaf].task_type)), None)
        return EXECUTE if leaf is None else short_action(leaf, (Item(shortest), Item(shortest)))


POLICIES: Mapping[str, Callable[[int], Decide]] = {
    "random": lambda seed: RandomPolicy(seed),
    "heuristic": lambda seed: HeuristicPolicy(),
    "adapt": lambda seed: AsNeededPolicy(),
    "expert": lambda seed: ExpertPolicy(),
    "published-reward": lambda seed: PublishedRewardPolicy(),
}
"""Makers of scripted policies by name; the seed matters to the random one."""


def parse_request(request: str) -> tuple[Item, ...]:
    """Return the tasks that keywords find in a request, in an order that `then`, `before` and `after` say."""
    for pattern in (BEFORE, AFTER):
        if match := pattern.match(request):
            request = f"{match['first']}, then {match['last']}"
    items: list[Item] = []
    before: tuple[int, ...] = ()
    for stage in THEN.split(request):
        first = len(items) + 1
        for clause in CLAUSE.split(stage):
            slots = mentioned_slots(clause)
            type = next((KEYWORDS[word] for word in WORD.findall(clause) if word in KEYWORDS), None)
            if type is None and slots and clause.split()[-1] == slots[0] and len(items) >= first:
                type = items[-1].type  # "a note to Ada and Ben"
            if type is not None:
                items.append(Item(type, slots[0] if slots else "", before))
        before = tuple(range(first, len(items) + 1)) or before
    return tuple(items)


def lettered_action(episode: PlanningEpisode, task_id: str, items: Sequence[Item]) -> str:
    """Write a decomposition in the short form, with the letters of the request's slots."""
    letters = slot_letters(episode.state.user_request)
    return short_action(task_id, tuple(replace(item, slot=letters.get(item.slot, item.slot)) for item in items))


def in_sequence(items: Sequence[Item]) -> tuple[Item, ...]:
    """Return the parts each after the one before it."""
    return tuple(replace(item, after=(position,) if position else ()) for position, item in enumerate(items))


def _in_order(episode: PlanningEpisode) -> list[str]:
    """Leaves in the order of the tree."""
    result: list[str] = []
    stack = list(reversed(episode.dag.roots))
    while stack:
        task_id = stack.pop()
        children = episode.dag.children(task_id)
        stack.extend(reversed(children))
        if not children:
            result.append(task_id)
    return result


def _items_of(episode: PlanningEpisode, task_id: str) -> tuple[Item, ...]:
    """The decomposition of a task in the requirement graph; slots only where they are not the parent's."""
    required = episode.requirement
    ids = required.children(task_id)
    slot = required[task_id].metadata.get("slot", "")
    items = []
    for child in ids:
        own = str(required[child].metadata["slot"])
        after = tuple(ids.index(before) + 1 for before in required.dependencies(child))
        items.append(Item(required[child].task_type, "" if own == slot else own, after))
    return tuple(items)

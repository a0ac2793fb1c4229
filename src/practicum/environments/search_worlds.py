"""Small invented worlds: books, people, towns, rivers and hills, and one-line facts about them.

A world is made from its name alone (`train/0/17`: split, seed, number), so a task carries the name and
not the facts. Facts are drawn afresh for every world: nothing about an answer can be known without
reading. A name of a thing belongs to the split that its own hash says, so no two splits share one.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from practicum.data.retrieval import Document, Index
from practicum.environments.math import SPLIT_OF_BUCKET
from practicum.errors import UserError
from practicum.task import content_hash

# Two syllables of letters that even a small vocabulary has tokens for: a name such as Dolke is three of tiny's.
FIRST = tuple("DFGJKLMPRSTVZ")
# fmt: off
MIDDLE = ("ac", "ad", "ag", "al", "am", "an", "ar", "as", "at", "ec", "ed", "ef", "em", "en", "ep", "er", "es", "et",
          "ex", "ic", "il", "im", "in", "ir", "it", "iz", "ok", "ol", "on", "or", "ot", "ow", "un", "up", "us", "ut")
LAST = ("ca", "da", "ge", "go", "gu", "ha", "ke", "la", "le", "lo", "pe", "re", "ri", "ro", "ru", "to", "ve")
# fmt: on
KINDS: Mapping[str, int] = {"book": 8, "person": 8, "town": 6, "river": 6, "hill": 6}
"""How many of each kind a world has."""
WORLD_NAME = re.compile(r"(train|val|test)/(-?\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Relation:
    """What is said of every thing of one kind. `fact` is the sentence, `ask` and `phrase` how it is asked for."""

    name: str
    subject: str
    object: str
    fact: str
    ask: str
    phrase: str

    def sentence(self, subject: str, object: str) -> str:
        return f"{subject} {self.fact} {object}."

    def query(self, subject: str) -> str:
        """The words that find the fact."""
        return f"{subject} {self.fact}"

    def read(self, subject: str, text: str) -> str | None:
        """The object, where the text states the fact."""
        found = re.search(rf"\b{re.escape(subject)} {self.fact} (\w+)\.", text)
        return found[1] if found else None


RELATIONS = (
    Relation("author", "book", "person", "was written by", "Who wrote {}?", "the author of {}"),
    Relation("setting", "book", "town", "is set in", "Where is {} set?", "the setting of {}"),
    Relation("birthplace", "person", "town", "was born in", "Where was {} born?", "the birthplace of {}"),
    Relation("teacher", "person", "person", "was taught by", "Who taught {}?", "the teacher of {}"),
    Relation("river", "town", "river", "lies on", "Which river does {} lie on?", "the river of {}"),
    Relation("ruler", "town", "person", "is ruled by", "Who rules {}?", "the ruler of {}"),
    Relation("source", "river", "hill", "rises at", "Where does {} rise?", "the source of {}"),
)
RELATION = {relation.name: relation for relation in RELATIONS}


@functools.cache
def names_of(split: str) -> tuple[str, ...]:
    """Every name that things of a split may have."""
    made = (first + middle + last for first in FIRST for middle in MIDDLE for last in LAST)
    return tuple(name for name in made if SPLIT_OF_BUCKET[int(content_hash(name), 16) % 10] == split)


@functools.cache
def _by_middle(split: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {middle: [] for middle in MIDDLE}
    for name in names_of(split):
        found[name[1:3]].append(name)
    return found


@dataclass(frozen=True)
class World:
    """Things by kind, and for each relation which thing leads to which."""

    name: str
    things: Mapping[str, tuple[str, ...]]
    facts: Mapping[str, Mapping[str, str]]

    def documents(self) -> Iterator[Document]:
        """Every fact as a document of one sentence, in an order that tells nothing."""
        lines = [
            RELATION[relation].sentence(subject, object)
            for relation, pairs in self.facts.items()
            for subject, object in pairs.items()
        ]
        random.Random(f"search-order/{self.name}").shuffle(lines)
        for number, line in enumerate(lines):
            yield Document(f"{number:03d}", "", line)

    def question(self, rng: random.Random, level: int) -> dict[str, object]:
        """A question of `level` facts that lead on to one another, and its answer."""
        while True:
            relation = rng.choice(RELATIONS)
            subject = rng.choice(self.things[relation.subject])
            text, at, hops, passed = subject, subject, [relation.name], {subject}
            while True:
                at = self.facts[relation.name][at]
                if at in passed:
                    break  # in a circle: the answer would stand in the question, or take fewer facts
                passed.add(at)
                if len(hops) == level:
                    question = relation.ask.format(text)
                    return {"question": question, "answer": at, "subject": subject, "hops": hops, "level": level}
                following = [r for r in RELATIONS if r.subject == relation.object]
                if not following:
                    break  # nothing is told of hills
                text = relation.phrase.format(text)
                relation = rng.choice(following)
                hops.append(relation.name)


def world_name(split: str, seed: int, number: int) -> str:
    return f"{split}/{seed}/{number}"


@functools.lru_cache(maxsize=4096)
def make_world(name: str) -> World:
    """The world of that name: the same on every machine."""
    parts = WORLD_NAME.fullmatch(name)
    if parts is None:
        raise UserError(
            f"There is no generated world '{name}'; a world's name is SPLIT/SEED/NUMBER, such as train/0/1."
        )
    rng = random.Random(f"search-world/{name}")
    alike = _by_middle(parts[1])
    # Each name with a middle of its own, so that no two are as alike as Dolke and Molke.
    source = (rng.choice(alike[middle]) for middle in rng.sample(MIDDLE, k=sum(KINDS.values())))
    things = {kind: tuple(next(source) for _ in range(count)) for kind, count in KINDS.items()}
    facts = {relation.name: _pairs(rng, relation, things) for relation in RELATIONS}
    return World(name, things, facts)


@functools.lru_cache(maxsize=1024)
def world_index(name: str) -> Index:
    """The index over a world's facts; a few milliseconds to make, so old ones may be forgotten."""
    return Index(make_world(name).documents())


def _pairs(rng: random.Random, relation: Relation, things: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    subjects, objects = things[relation.subject], things[relation.object]
    if relation.subject != relation.object:
        return {subject: rng.choice(objects) for subject in subjects}
    # In one round, each the next one's: nobody is their own teacher or has two pupils.
    order = rng.sample(subjects, k=len(subjects))
    return dict(zip(order, order[1:] + order[:1], strict=True))

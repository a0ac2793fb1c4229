"""Small invented worlds: books, people, towns, rivers and hills, and one-line facts about them.

A world is generated from its name (`train/0/17`: split, seed, number), so a task holds the name and not the facts.
Facts are drawn independently for every world: an answer cannot be known without reading. A hash decides to which split
the name of a thing belongs, so that no two splits share one.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from practicum.data.retrieval import BM25Index, Document
from practicum.errors import UserError
from practicum.task import split_of_content

# Two syllables for which even a small vocabulary has tokens: a name such as Dolke is three tokens of `tiny`.
FIRST = tuple("DFGJKLMPRSTVZ")
# fmt: off
MIDDLE = ("ac", "ad", "ag", "al", "am", "an", "ar", "as", "at", "ec", "ed", "ef", "em", "en", "ep", "er", "es", "et",
          "ex", "ic", "il", "im", "in", "ir", "it", "iz", "ok", "ol", "on", "or", "ot", "ow", "un", "up", "us", "ut")
LAST = ("ca", "da", "ge", "go", "gu", "ha", "ke", "la", "le", "lo", "pe", "re", "ri", "ro", "ru", "to", "ve")
# fmt: on
KINDS: Mapping[str, int] = {"book": 8, "person": 8, "town": 6, "river": 6, "hill": 6}
"""Number of things of each kind in a world."""
WORLD_NAME = re.compile(r"(train|val|test)/(-?\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of all things of one kind. `fact` is its sentence; `ask` and `phrase` are its forms in questions."""

    name: str
    subject: str
    object: str
    fact: str
    ask: str
    phrase: str

    def sentence(self, subject: str, object: str) -> str:
        return f"{subject} {self.fact} {object}."

    def query(self, subject: str) -> str:
        """Return the query that finds the fact."""
        return f"{subject} {self.fact}"

    def read(self, subject: str, text: str) -> str | None:
        """Return the object if the text states the fact, else None."""
        by_middle = re.search(rf"\b{re.escape(subject)} {self.fact} (\w+)\.", text)
        return by_middle[1] if by_middle else None


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
    """Return every name that things of a split may have."""
    names = (first + middle + last for first in FIRST for middle in MIDDLE for last in LAST)
    return tuple(name for name in names if split_of_content(name) == split)


@functools.cache
def _by_middle(split: str) -> dict[str, list[str]]:
    by_middle: dict[str, list[str]] = {middle: [] for middle in MIDDLE}
    for name in names_of(split):
        by_middle[name[1:3]].append(name)
    return by_middle


@dataclass(frozen=True)
class World:
    """Things by kind, and for each relation the object of each subject."""

    name: str
    things: Mapping[str, tuple[str, ...]]
    facts: Mapping[str, Mapping[str, str]]

    def documents(self) -> Iterator[Document]:
        """Yield every fact as a document of one sentence, in random order."""
        lines = [
            RELATION[relation].sentence(subject, object)
            for relation, pairs in self.facts.items()
            for subject, object in pairs.items()
        ]
        random.Random(f"search-order/{self.name}").shuffle(lines)
        for index, line in enumerate(lines):
            yield Document(f"{index:03d}", "", line)

    def question(self, rng: random.Random, level: int) -> dict[str, object]:
        """Return a question over a chain of `level` facts, and its answer."""
        while True:
            relation = rng.choice(RELATIONS)
            subject = rng.choice(self.things[relation.subject])
            text, current, hops, visited = subject, subject, [relation.name], {subject}
            while True:
                current = self.facts[relation.name][current]
                if current in visited:
                    break  # a cycle: the answer would be in the question, or need fewer facts
                visited.add(current)
                if len(hops) == level:
                    question = relation.ask.format(text)
                    return {"question": question, "answer": current, "subject": subject, "hops": hops, "level": level}
                following = [r for r in RELATIONS if r.subject == relation.object]
                if not following:
                    break  # hills have no relations
                text = relation.phrase.format(text)
                relation = rng.choice(following)
                hops.append(relation.name)


def world_name(split: str, seed: int, number: int) -> str:
    return f"{split}/{seed}/{number}"


@functools.lru_cache(maxsize=4096)
def make_world(name: str) -> World:
    """Return the world of that name; it is the same on every machine."""
    parts = WORLD_NAME.fullmatch(name)
    if parts is None:
        raise UserError(
            f"There is no generated world '{name}'; a world's name is SPLIT/SEED/NUMBER, such as train/0/1."
        )
    rng = random.Random(f"search-world/{name}")
    names_by_middle = _by_middle(parts[1])
    # Every name has another middle, so that no two are as similar as Dolke and Molke.
    source = (rng.choice(names_by_middle[middle]) for middle in rng.sample(MIDDLE, k=sum(KINDS.values())))
    names = {kind: tuple(next(source) for _ in range(count)) for kind, count in KINDS.items()}
    facts = {relation.name: _pairs(rng, relation, names) for relation in RELATIONS}
    return World(name, names, facts)


@functools.lru_cache(maxsize=1024)
def world_index(name: str) -> BM25Index:
    """Return the index of a world's facts; it takes a few milliseconds, so a bounded cache is enough."""
    return BM25Index(make_world(name).documents())


def _pairs(rng: random.Random, relation: Relation, names: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    subjects, objects = names[relation.subject], names[relation.object]
    if relation.subject != relation.object:
        return {subject: rng.choice(objects) for subject in subjects}
    # One cycle through all: nobody is their own teacher or has two pupils.
    order = rng.sample(subjects, k=len(subjects))
    return dict(zip(order, order[1:] + order[:1], strict=True))

"""An environment of one's own: a bill to work out, from prices that have to be looked up.

    practicum envs check docs/examples/shop.py:Shop

The tool `price` fails at its first call for some articles, as services do, and works when it is called again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

from practicum.environment import Action, Observation, ScriptedPolicy, ToolCall
from practicum.environments.tool_agent import ToolEnvironment
from practicum.task import Task, content_hash, split_of_hash
from practicum.tools.base import tool

ARTICLES = ("apples", "books", "cards", "coins", "nuts", "pens", "shells", "stamps", "stones", "stickers")
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "June")
FAILURE_RATE = 0.15
"""Share of the articles whose first look-up fails."""


class Catalogue:
    """The prices of one task."""

    def reset(self, prices: dict[str, int], unavailable: list[str]) -> None:
        self.prices, self.unavailable = prices, set(unavailable)


@tool(stateful=Catalogue)
def price(catalogue: Catalogue, article: str) -> str:
    """Price of one article.

    Args:
        article: its name
    """
    if article not in catalogue.prices:
        raise ValueError("the catalogue has no such article")
    if article in catalogue.unavailable:
        catalogue.unavailable.remove(article)
        raise ConnectionError("the catalogue does not answer, try again")
    return str(catalogue.prices[article])


class Shop(ToolEnvironment):
    """Bills of one to three articles."""

    name = "shop"
    system = "Look up the prices, calculate, then give the sum."
    default_tools: ClassVar[tuple[str, ...]] = (f"{__file__}:price", "calculator")
    default_reward = "math_reward"

    def generate(self, split: str, count: int, seed: int) -> Sequence[Task]:
        rng = random.Random(f"shop/{split}/{seed}")
        tasks: list[Task] = []
        while len(tasks) < count:
            fields = make_bill(rng, level=len(tasks) % 3 + 1)
            if split_of_hash(content_hash(fields["question"])) == split:
                tasks.append(Task(f"shop-{split}-{seed}-{len(tasks)}", self.name, split, fields))
        return tasks

    def expert(self, task: Task) -> ScriptedPolicy:
        prices, counts = task.fields["prices"], task.fields["counts"]
        articles, called = list(counts), ""

        def act(observation: Observation) -> Action:
            nonlocal called
            last = observation.messages[-1].content
            if called and "Error" in last:
                return Action(calls=(ToolCall("price", {"article": called}),))
            if articles:
                called = articles.pop(0)
                return Action(calls=(ToolCall("price", {"article": called}),))
            if called:
                called = ""
                sums = "+".join(f"{counts[name]}*{prices[name]}" for name in counts)
                return Action(calls=(ToolCall("calculator", {"expression": sums}),))
            return Action(content=str(task.fields["answer"]))

        return act


def make_bill(rng: random.Random, level: int) -> dict[str, object]:
    """A bill of `level` articles."""
    counts = {name: rng.randint(2, 9) for name in rng.sample(ARTICLES, level)}
    prices = {name: rng.randint(2, 60) for name in counts}
    bought = [f"{count} {name}" for name, count in counts.items()]
    text = bought[0] if level == 1 else f"{', '.join(bought[:-1])} and {bought[-1]}"
    return {
        "question": f"{rng.choice(NAMES)} buys {text}. What is the sum?",
        "answer": str(sum(counts[name] * prices[name] for name in counts)),
        "counts": counts,
        "prices": prices,
        "unavailable": [name for name in counts if rng.random() < FAILURE_RATE],
        "level": level,
    }

"""Word problems of a few words with numbers of one digit, which the tiny model learns within a minute."""

from __future__ import annotations

import random
from collections.abc import Sequence

from practicum.environments.math import ITEMS, NAMES, MathEnvironment
from practicum.task import Task, content_hash, split_of_hash

WORDS = {"+": "more", "-": "gone"}


class ShortProblems(MathEnvironment):
    """`math` with the same tools, reward and expert, and stories of one form: "Ada: 7 nuts, 3 gone."."""

    system = "Use the calculator."

    def generate(self, split: str, count: int, seed: int) -> Sequence[Task]:
        rng = random.Random(f"short/{split}/{seed}")
        tasks: dict[str, Task] = {}
        while len(tasks) < count:
            left, right, operator = rng.randint(2, 9), rng.randint(2, 9), rng.choice("+-")
            question = f"{rng.choice(NAMES)}: {left} {rng.choice(ITEMS)}, {right} {WORDS[operator]}."
            key = content_hash(question)
            if split_of_hash(key) != split:
                continue
            answer = left + right if operator == "+" else left - right
            fields = {"question": question, "answer": str(answer), "steps": [f"{left}{operator}{right}"], "level": 1}
            tasks.setdefault(key, Task(f"short-{split}-{seed}-{len(tasks)}", self.name, split, fields))
        return list(tasks.values())

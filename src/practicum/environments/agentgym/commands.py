"""Parser of TextCraft's commands: AgentGym's sentences and Affine's brackets.

`verb[rest]` means `verb rest`. In brackets the amount may be omitted (a get takes one) and so may the ingredients of a
craft (the environment picks them); a sentence needs both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from practicum.environments.agentgym.grammar.bracket import read_bracket
from practicum.environments.agentgym.grammar.line import Refused, one_line
from practicum.environments.agentgym.recipes import Amounts

USAGE = {
    "agentgym": "get N item | craft N item using N item, N item | inventory",
    "bracket": "get[N item] | craft[item] | inventory[]",
}
MAX_AMOUNT = 1000


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed command. `ingredients` None: the environment picks them."""

    verb: str
    item: str = ""
    amount: int | None = None
    ingredients: Amounts | None = None


def read_command(text: str, grammar: str) -> Command:
    """Parse a command strictly; `Refused` says what is wrong with it."""
    plain = one_line(text)
    usage = USAGE["bracket" if grammar == "bracket" else "agentgym"]
    bracket = read_bracket(plain)
    verb, rest = (bracket.verb, bracket.rest) if bracket else plain.partition(" ")[::2]
    if verb == "inventory" and not rest:
        return Command("inventory")
    if verb not in ("get", "craft") or not rest or re.search(r"[\[\]]", rest):
        raise Refused(f"Could not execute '{plain[:80]}'. Commands: {usage}")
    if grammar not in ("both", "bracket" if bracket else "agentgym"):
        raise Refused(f"Could not execute '{plain[:80]}': write it as {usage}")
    head, using, tail = rest.partition(" using ") if verb == "craft" else (rest, "", "")
    amount, item = _read_amount(head)
    if not bracket and verb == "get" and amount is None:
        raise Refused(f"Say how many: get 1 {item[:80]}")
    if not bracket and verb == "craft" and not using:
        raise Refused("Say from what: craft N item using N item, N item")
    if not using:
        return Command(verb, item, amount)
    ingredients = []
    for part in tail.split(","):
        count, name = _read_amount(part.strip())
        if count is None:
            raise Refused(f"Wrong item format: '{part.strip()[:80]}'. Write an amount and an item, such as 2 stick.")
        ingredients.append((name, count))
    return Command(verb, item, amount, tuple(ingredients))


def _read_amount(text: str) -> tuple[int | None, str]:
    """Return a leading count, if any, and the name after it."""
    match = re.fullmatch(r"([0-9]+) (.+)", text)
    if not match:
        return None, text
    # Length first: Python refuses to read numbers of thousands of digits.
    if len(match[1]) > 9 or not 1 <= int(match[1]) <= MAX_AMOUNT:
        raise Refused(f"An amount must be from 1 to {MAX_AMOUNT}.")
    return int(match[1]), match[2]

"""TextWorld's and ALFWorld's own engine with less repeated work. For a worker process only.

The rules run in Fast Downward's library, TextWorld's grammar derives the texts, ALFWorld names the objects. The stock
environment parses the wording of every possible command again at every step, copies contexts deeply, and translates
PDDL four times per game. None of that changes the result, so here

* texts and queries are parsed once, and contexts are copied one level deep (`quicken`);
* a command's wording is derived once for each operator of a game, if the facts that it uses never change;
* a problem is translated once, and once more for the planner when a plan is needed.

Transcripts equal those of the stock package byte for byte; tests check that.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import re
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.environments.agentgym.alfworld_games import Tables
from practicum.environments.agentgym.alfworld_planning import relevant

GOAL = re.compile(r"(Your task is to: )(.*?)(\.?\"\s*\})", re.DOTALL)
PLACEHOLDER = "UNKNOWN GOAL"
WORDS = {
    "goto": "go to {}", "open": "open {}", "take": "take {} from {}", "move": "move {} to {}", "use": "use {}",
    "clean": "clean {} with {}", "heat": "heat {} with {}", "cool": "cool {} with {}",
}  # fmt: skip
QUERY = re.compile(r"([a-z_]+)\(")


@functools.cache
def stock() -> types.SimpleNamespace:
    """The packages' modules, imported without dependencies that are not needed here."""
    # TextWorld imports jericho (an interpreter of other games that needs spaCy) whether it is used or not.
    unused = types.ModuleType("jericho")
    for name in ("UnsupportedGameWarning", "TruncatedInputActionWarning"):
        unused.__dict__[name] = type(name, (Warning,), {})
    sys.modules.setdefault("jericho", unused)
    # alfworld creates its data folder on import, and Fast Downward's translator reads the command line.
    os.environ.setdefault("ALFWORLD_DATA", tempfile.mkdtemp(prefix="practicum-alfworld-"))
    sys.argv = ["translate.py", "domain", "task"]
    import fast_downward
    import textworld.logic
    from alfworld.agents.utils.misc import Demangler
    from alfworld.gen import constants, goal_library
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH
    from textworld.envs.pddl import logic, pddl, textgen

    return types.SimpleNamespace(
        fast_downward=fast_downward, rules=textworld.logic, Demangler=Demangler, constants=constants,
        goals=goal_library.gdict, domain_file=ALFRED_PDDL_PATH, grammar_file=ALFRED_TWL2_PATH,
        logic=logic, pddl=pddl, textgen=textgen,
    )  # fmt: skip


@functools.cache
def tables() -> Tables:
    constants = stock().constants
    return Tables(
        holds={piece: frozenset(objects) for piece, objects in constants.VAL_RECEPTACLE_OBJECTS.items()},
        able={ability: frozenset(able) for ability, able in constants.VAL_ACTION_OBJECTS.items()},
        openable=frozenset(constants.OPENABLE_CLASS_LIST),
        goals=stock().goals,
    )


@functools.cache
def alfred() -> tuple[str, str]:
    """Return ALFRED's domain and grammar from the package."""
    with open(stock().domain_file) as domain, open(stock().grammar_file) as grammar:
        return domain.read(), grammar.read()


@functools.cache
def quicken() -> None:
    """Cache the repeated work of the packages' text generation, in this process."""
    textgen, rules = stock().textgen, stock().rules
    parse = functools.lru_cache(maxsize=None)(textgen._parse_and_convert)

    def parsed(text: str, rule_name: str, trace: bool = False) -> list[Any]:
        # Contexts are set on the symbols in place, so each caller gets its own symbols.
        return [copy.copy(symbol) for symbol in parse(text, rule_name=rule_name)]

    def copy_context(context: Mapping[str, Any]) -> dict[str, Any]:
        return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}

    def copy_symbol(self: Any, context: Mapping[str, Any]) -> Any:
        other = copy.copy(self)
        other.context = copy_context(context)
        return other

    textgen._parse_and_convert = parsed
    textgen.copy_context = copy_context
    textgen.Symbol.copy = copy_symbol
    textgen.deepcopy = lambda symbols: [copy.copy(symbol) for symbol in symbols]
    rules.Rule.parse_conjunctive_query = functools.lru_cache(maxsize=None)(rules.Rule.parse_conjunctive_query)


@functools.lru_cache(maxsize=8)
def _logic_without_goal(domain: str, grammar: str) -> Any:
    return stock().logic.GameLogic(domain=domain, grammar=grammar)


def logic_of(domain: str, grammar: str) -> Any:
    """Return the game's logic; parsing a grammar is slow, and games differ in one sentence of it."""
    quicken()
    match = GOAL.search(grammar)
    if match is None:
        return _logic_without_goal(domain, grammar)
    general = grammar[: match.start(2)] + PLACEHOLDER + grammar[match.end(2) :]
    logic = copy.copy(_logic_without_goal(domain, general))
    logic.grammar = copy.copy(logic.grammar)
    logic.grammar._rules = dict(logic.grammar._rules)
    (rule,) = logic.grammar._rules["task"]
    rule = copy.copy(rule)
    sentence = json.loads(f'"{match[1]}{match[2]}{"." if match[3].startswith(".") else ""}"')
    rule.rhs = stock().textgen._parse_and_convert(sentence, rule_name="symbols")
    logic.grammar._rules["task"] = [rule]
    return logic


class LazyTranslation:
    """A translation for the planner that is computed when a plan is needed."""

    def __init__(self, domain: str, problem: str) -> None:
        self.domain, self.problem = domain, problem

    def encode(self, encoding: str) -> LazyTranslation:
        return self

    def translate(self) -> bytes:
        return _translated(self.domain, self.problem, True)[1].encode()


@functools.lru_cache(maxsize=64)  # half a megabyte each
def _translated(domain: str, problem: str, for_planner: bool) -> tuple[Any, str]:
    task, sas = stock().translate(domain, problem, optimize=for_planner)
    return task, sas


class Library:
    """Fast Downward's library, a copy per episode, because its state is global."""

    def __init__(self) -> None:
        self.raw = stock().fast_downward.load_lib()
        self._translation: LazyTranslation | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def load_sas_replan(self, translation: LazyTranslation) -> None:
        self._translation = translation

    def replan(self, verbose: bool) -> bool:
        if self._translation is not None:
            self.raw.load_sas_replan(self._translation.translate())
            self._translation = None
        return bool(self.raw.replan(verbose))


@functools.cache
def _patch_translation() -> None:
    """TextWorld requests both translations for each state; return cached ones, the planner's on demand only."""
    stock().translate = stock().fast_downward.pddl2sas

    def pddl2sas(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> tuple[Any, Any]:
        if optimize:
            return None, LazyTranslation(domain, problem)
        return _translated(domain, problem, False)

    stock().fast_downward.pddl2sas = pddl2sas


@dataclass(slots=True)
class Operator:
    """One possible action: the engine's name and the wording."""

    id: int
    name: str
    nb_effect_atoms: int
    action: Any
    command: str | None
    """None if the wording depends on facts that change."""


class Game:
    """One episode of a game."""

    def __init__(self, library: Library, data: Mapping[str, Any]) -> None:
        _patch_translation()
        pddl_logic, pddl = stock().logic, stock().pddl
        self._logic = logic_of(data["pddl_domain"], data["grammar"])
        self._state = pddl_logic.PddlState(library, data["pddl_problem"], self._logic)
        self._library = library
        named = types.SimpleNamespace(_pddl_state=self._state)
        self._infos = pddl.PddlEnv._get_entity_infos(named)
        names = stock().Demangler(game_infos=self._infos, shuffle=False)
        for info in self._infos.values():
            info.name = names.demangle_alfred_name(info.id)
        self._names = {key: info.name for key, info in self._infos.items()}
        self._changing = {effect.literal.predicate for action in self._state.task.actions for effect in action.effects}
        self._operators: dict[int, Operator] = {}
        self._valid: list[tuple[str, Operator]] = []
        self.text = self._derive("#intro#", {})
        self.legal: list[str] = []
        self.won = False
        self._look()

    def step(self, command: str) -> None:
        """Execute a command; one that is not legal changes nothing."""
        operator = next((operator for command_text, operator in self._valid if command_text == command), None)
        if operator is None:
            self.text = "Nothing happens."
            return
        self._state._operators = {operator.id: operator}
        self._state.apply(operator.action)
        self.text = self._derive(operator.action.feedback_rule, operator.action.mapping)
        self._look()

    def worded(self, plan: Sequence[Sequence[str]]) -> list[str]:
        """Translate a plan in the engine's names into commands of this game."""
        return [WORDS[verb].format(*(self._names[name.lower()] for name in names)) for verb, *names in plan]

    def plan(self, library: Library, data: Mapping[str, Any]) -> list[str]:
        """Return Fast Downward's plan for this game from its beginning, for the problem without irrelevant objects."""
        small = Game(library, {**data, "pddl_problem": relevant(data["pddl_problem"])})
        for key, info in small._infos.items():
            info.name = self._names[key]  # object numbers differ because some objects are left out
        return list(small._state.replan(small._infos))

    def _look(self) -> None:
        """Update the possible actions and whether the goal is reached."""
        self.won = bool(self._library.check_goal())
        operators = (stock().fast_downward.Operator * self._library.get_applicable_operators_count())()
        self._library.get_applicable_operators(operators)
        unknown = [operator for operator in operators if operator.id not in self._operators]
        if unknown:
            self._learn(unknown)
        self._valid, seen = [], set()
        for each in operators:
            operator = self._operators[each.id]
            if operator.name in seen:
                continue
            seen.add(operator.name)
            command_text = operator.command if operator.command is not None else self._word(operator.action)
            self._valid.append((command_text, operator))
        self.legal = sorted({command_text for command_text, _ in self._valid})

    def _learn(self, unknown: list[Any]) -> None:
        """Create the actions of operators that are new, as TextWorld does."""
        rules = stock().rules
        for each in unknown:
            name, *arguments = each.name.split()
            parameters = self._state._actions[name].parameters
            action = rules.Action(name=name, preconditions=[], postconditions=[])
            action.id = each.id
            action.mapping = {
                rules.Placeholder(parameter.name.strip("?"), parameter.type_name): rules.Variable(
                    argument, parameter.type_name
                )
                for parameter, argument in zip(parameters, arguments, strict=False)
            }
            action.command_template = self._logic.actions[name].template
            action.feedback_rule = self._logic.actions[name].feedback_rule
            predicates = set(QUERY.findall(action.command_template.partition("|")[2]))
            fixed = not {predicate.removeprefix("not_") for predicate in predicates} & self._changing
            command = self._word(action) if fixed and "#" not in action.command_template else None
            self._operators[each.id] = Operator(each.id, each.name, each.nb_effect_atoms, action, command)

    def _word(self, action: Any) -> str:
        template = action.command_template
        action.command_template = self._derive(template, action.mapping)
        command_text = str(action.format_command(self._names))
        action.command_template = template
        return command_text

    def _derive(self, rule: str, mapping: Mapping[Any, Any]) -> str:
        context = {
            "state": self._state,
            "facts": (),
            "variables": {placeholder.name: self._infos[variable.name] for placeholder, variable in mapping.items()},
            "mapping": mapping,
            "entity_infos": self._infos,
        }
        return str(self._logic.grammar.derive(rule, context))

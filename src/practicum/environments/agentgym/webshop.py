"""`agentgym:webshop`: find a product in a shop that fits an instruction, choose its options and buy it.

WebShop's pages and reward with a generated catalogue, or with WebShop's own item files. Search and click are the only
actions; both AgentGym and Affine write them in brackets.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from practicum.environment import Action, Observation, ScriptedPolicy
from practicum.environments.agentgym.base import AgentGymEnvironment, CommandResponse, ServerFields, by_hash
from practicum.environments.agentgym.grammar.bracket import Brackets, read_bracket
from practicum.environments.agentgym.grammar.line import Refused, one_line
from practicum.environments.agentgym.shaping import Shaping
from practicum.environments.agentgym.webshop_catalogue import Catalogue, Product, generated
from practicum.environments.agentgym.webshop_files import read_shop
from practicum.environments.agentgym.webshop_goals import generated_goals
from practicum.environments.agentgym.webshop_pages import (
    BACK,
    BUY,
    MAX_RESULTS,
    NEXT,
    PREVIOUS,
    RESULTS_PER_PAGE,
    TABS,
    Page,
    clickables,
    plain,
    show,
    show_shortly,
)
from practicum.environments.agentgym.webshop_reward import (
    Nouns,
    PurchaseScore,
    ShoppingGoal,
    judge,
    spacy_nouns,
    title_words,
)
from practicum.errors import UserError
from practicum.task import Task, split_of_content

OBSERVATIONS = ("full", "short")
MAX_PRODUCTS = 1_000_000
WORDS = "words"
"""The value of `nouns` that needs no tagger."""


class WebShop(AgentGymEnvironment):
    """Search a shop for a product that fits an instruction, choose options, buy: 1,000 or 10,000 products."""

    name = "agentgym:webshop"
    instruction = (
        "You are shopping on the web. Buy what the instruction asks for. Commands: {usage}\n"
        "Search where there is a search bar; click what is on the page: a product's number, an option, a button. "
        "Buy Now ends the visit."
    )
    usage = "search[keywords] | click[value]"
    brackets = Brackets({"search": ("search[{}]",), "click": ("click[{}]",)})
    # Search and click are rewarded once each; a purchase is rewarded by its grade.
    shaping = Shaping(kinds={"search": 0.1, "click": 0.3}, completion=1.0, once=True)
    server_fields = ServerFields(
        id="env_idx",
        index="session_id",
        text="state",
        bare=True,
        facts=("available_actions", "instruction_text", "state"),
    )

    def __init__(
        self,
        format: str = "react",
        grammar: str = "both",
        reward: str = "native",
        products: int = 1000,
        catalogue: str | None = None,
        observation: str = "full",
        actions: bool = False,
        protocol: str = "system",
        nouns: str = WORDS,
        instruction: str | None = None,
    ) -> None:
        super().__init__(format, grammar, reward, protocol, instruction)
        self.check("observation", observation, OBSERVATIONS)
        self._nouns: Nouns = title_words if nouns == WORDS else spacy_nouns(nouns)
        if isinstance(products, bool) or not isinstance(products, int) or not 1 <= products <= MAX_PRODUCTS:
            raise UserError(f"webshop needs a number of products from 1 to {MAX_PRODUCTS}; got {products}.")
        self.products, self.folder = products, catalogue
        self.observation, self.actions = observation, actions
        self._page = Page()
        self._goal: ShoppingGoal | None = None
        self._bought: float | None = None

    @property
    def catalogue(self) -> Catalogue:
        return generated(self.products) if self.folder is None else read_shop(self.folder, self.products)[0]

    @property
    def goals(self) -> tuple[ShoppingGoal, ...]:
        """The goals of all customers, by session number."""
        return generated_goals(self.products) if self.folder is None else read_shop(self.folder, self.products)[1]

    async def begin(self, task: Task, seed: int) -> CommandResponse:
        """Open the shop at its search bar. The environment is deterministic; the seed has no effect."""
        self._goal, self._page, self._bought = read_goal(task), Page(), None
        if self._goal.asin not in self.catalogue.by_asin:
            raise UserError(
                f"Task '{task.id}' is about a product that the catalogue '{self.catalogue.name}' lacks; "
                "set 'products' or 'catalogue' to the one that it was made from."
            )
        return CommandResponse(self._text(first=True), legal=self._legal())

    def read(self, text: str) -> str:
        """Parse a bracket command: the only grammar here, for all settings of `grammar`."""
        line = one_line(text)
        call = read_bracket(line)
        if call is None or call.verb not in ("search", "click") or not call.rest:
            raise Refused(self._nothing(f"'{line[:80]}' is no command; write {self.usage}"))
        return f"{call.verb}[{call.rest}]"

    async def act(self, command: str) -> CommandResponse:
        verb, _, rest = command.removesuffix("]").partition("[")
        if verb == "search":
            if not self._page.has_search_bar:
                raise Refused(self._nothing("there is no search bar on this page"))
            self._page = Page(tuple(self.catalogue.search(rest, MAX_RESULTS)), rest)
        else:
            if rest not in clickables(self._page):
                raise Refused(self._nothing(f"'{rest[:80]}' cannot be clicked on this page"))
            if rest == BUY:
                return self._buy()
            self._page = self._clicked(rest)
        return CommandResponse(self._text(), kind=verb, legal=self._legal())

    def write(self, sentence: str) -> str:
        return sentence

    def progress(self) -> float:
        """Return the reward that a purchase would have now, or had."""
        if self._bought is not None:
            return self._bought
        if self._page.product is None or self._goal is None:
            return 0.0
        return self._judge(self._page.product, self._page.chosen, self._goal).reward

    def _judge(self, product: Product, chosen: Mapping[str, str], goal: ShoppingGoal) -> PurchaseScore:
        return judge(product, chosen, goal, self._nouns)

    def fact(self, name: str) -> Any:
        assert self._goal is not None
        if name == "available_actions":
            return {"has_search_bar": self._page.has_search_bar, "clickables": list(clickables(self._page))}
        if name == "instruction_text":
            return self._goal.instruction
        return {"url": "", "html": show(self._page, self._goal.instruction), "instruction_text": self._goal.instruction}

    def _buy(self) -> CommandResponse:
        assert self._page.product is not None
        assert self._goal is not None
        verdict = self._judge(self._page.product, self._page.chosen, self._goal)
        self._bought = verdict.reward
        text = f"Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0): {verdict.reward:.3f}"
        return CommandResponse(
            text,
            verdict.reward,
            "buy",
            done=True,
            success=verdict.reward >= 1.0,
            worth=verdict.reward,
            info={"type": verdict.type, "matched": [verdict.attributes, verdict.options, int(verdict.price)]},
        )

    def _clicked(self, value: str) -> Page:
        """Return the page after a click on an element of this page."""
        page = self._page
        if value == BACK:
            return Page()
        if page.product is None:
            if value in (NEXT, PREVIOUS):
                return replace(page, number=page.number + (1 if value == NEXT else -1))
            return replace(
                page, product=next(product for product in page.visible_results if plain(product.asin) == value)
            )
        if value == PREVIOUS:
            return replace(page, tab="") if page.tab else replace(page, product=None, chosen={})
        # An option may have the name of a button; options come first on the page.
        for name, values in page.product.options.items():
            for option in values:
                if plain(option) == value:
                    return replace(page, chosen={**page.chosen, name: option})
        assert value in TABS
        return replace(page, tab=value)

    def _text(self, first: bool = False) -> str:
        assert self._goal is not None
        if self.observation == "full":
            text = show(self._page, self._goal.instruction)
        else:
            head = f"Instruction: {self._goal.instruction}\n" if first else ""
            text = f"{head}{show_shortly(self._page)}"
        return f"{text}\nAvailable actions: {', '.join(self._legal())}" if self.actions else text

    def _nothing(self, reason: str) -> str:
        """Return the reply to an invalid action: the same page, after the reason."""
        return f"Invalid action: {reason}.\n{self._text()}"

    def _legal(self) -> tuple[str, ...]:
        clicks = tuple(f"click[{value}]" for value in clickables(self._page))
        return ("search[keywords]",) if self._page.has_search_bar else clicks

    @property
    def num_indices(self) -> int:
        return len(self.goals)

    def task_at(self, data_idx: int) -> Task:
        """Return the task of AgentGym's session number."""
        self.check_index(data_idx)
        return self._task(data_idx)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Return tasks of a split, which a hash of the product decides, so that no product is in two splits."""
        self.check_split(split)
        numbers = [index for index, goal in enumerate(self.goals) if split_of(goal) == split]
        if len(numbers) < count:
            raise UserError(f"webshop has {len(numbers)} '{split}' goals, not {count}; raise 'products'.")
        # Session numbers are in random order already; another seed gives another order.
        return [self._task(index) for index in (by_hash(numbers, seed) if seed else numbers)[:count]]

    def _task(self, index: int) -> Task:
        goal = self.goals[index]
        fields = {"data_idx": index, "catalogue": self.catalogue.name, **asdict(goal)}
        if not goal.option_names:
            del fields["option_names"]
        return Task(f"webshop-{self.catalogue.name}-{index}", self.name, split_of(goal), fields)

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return the policy that searches for the instruction, opens the first result that fits, chooses and buys."""
        goal = read_goal(task)
        has_thoughts = self.format.name == "react"
        steps = iter([Action(content=text, thought=reason if has_thoughts else "") for reason, text in self.plan(goal)])
        return lambda observation: next(steps, Action(content=f"click[{BACK}]"))

    def plan(self, goal: ShoppingGoal) -> Iterator[tuple[str, str]]:
        for keywords in (" ".join((*goal.attributes, goal.query, *goal.options)), goal.name):
            keywords = plain(keywords.replace("[", " ").replace("]", " "))
            for rank, product in enumerate(self.catalogue.search(keywords, MAX_RESULTS)):
                chosen = choose(product, goal)
                if self._judge(product, chosen, goal).reward >= 1.0:
                    yield "I search for what is asked.", f"search[{keywords}]"
                    for _ in range(rank // RESULTS_PER_PAGE):
                        yield "None of these fits; I turn the page.", f"click[{NEXT}]"
                    yield "This one may fit.", f"click[{plain(product.asin)}]"
                    for name, value in chosen.items():
                        yield f"The {name} shall be {value}.", f"click[{plain(value)}]"
                    yield "All is as asked.", f"click[{BUY}]"
                    return

    def wrong_attempts(self, task: Task, solution: Sequence[Action]) -> Sequence[Sequence[Action]]:
        """Do not buy; buy without the options that the goal names."""
        options = {f"click[{plain(value)}]" for value in read_goal(task).options}
        without = tuple(action for action in solution if action.content not in options)
        attempts = super().wrong_attempts(task, solution)
        return attempts if len(without) == len(solution) else (*attempts, without)

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that searches for words of the instruction, then clicks random elements."""
        generator = random.Random(f"webshop-random/{task.id}/{seed}")
        words = read_goal(task).instruction.split()

        def act(observation: Observation) -> Action:
            legal = observation.legal or ("search[keywords]",)
            if legal == ("search[keywords]",):
                keywords = plain(" ".join(generator.sample(words, min(4, len(words)))))
                return Action(content=f"search[{keywords}]")
            return Action(content=generator.choice(legal))

        return act


def choose(product: Product, goal: ShoppingGoal) -> dict[str, str]:
    """Return the options of a product that the goal names."""
    required = {plain(value) for value in goal.options}
    chosen_options = {
        name: next((v for v in values if plain(v) in required), None) for name, values in product.options.items()
    }
    return {name: value for name, value in chosen_options.items() if value is not None}


def split_of(goal: ShoppingGoal) -> str:
    return split_of_content(["webshop", goal.asin])


def read_goal(task: Task) -> ShoppingGoal:
    """Return the goal of a task's fields."""
    try:
        values: dict[str, Any] = {
            name: task.fields[name]
            for name in ShoppingGoal.__dataclass_fields__
            if name != "option_names" or name in task.fields
        }
    except KeyError as error:
        raise UserError(
            f"Task '{task.id}' lacks {error} of a shopping goal; make it with webshop's own tasks."
        ) from None
    return ShoppingGoal(**values)

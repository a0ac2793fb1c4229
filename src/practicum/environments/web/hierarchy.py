"""HALO's hierarchy around a worker in the browser: recovery, a manager, macros, and a cache of verified actions.

Before each step the first of these acts: a recovery policy; the manager, in the first steps or always; the macro that
runs; the cache; the manager, where its gate opens; the worker. What acts without a model is a turn without tokens that
names its source, and is never trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from practicum.chat.formats.web import MESSAGE
from practicum.chat.formats.web_actions import write_action
from practicum.environment import Action, Observation, Step, ToolCall
from practicum.environments.web.action_cache import CACHE, ActionCache, CacheEntry, cache_key, make_entry
from practicum.environments.web.base import BrowserEnvironment, WebObservation
from practicum.environments.web.legal_actions import DONE_MESSAGE
from practicum.environments.web.macros import ActiveMacro, start_macro
from practicum.environments.web.manager import (
    FINISH,
    HIGH_STAKES,
    MANAGER,
    MAX_TEXT_CHARS,
    RETRY,
    WORKER,
    Guidance,
    goal_parts,
    manager_messages,
    read_guidance,
    subgoal_messages,
)
from practicum.environments.web.observation import Node
from practicum.environments.web.page_state import page_state
from practicum.environments.web.recovery import PastStep, is_loop, num_errors_in_a_row, recovery_action
from practicum.errors import UserError, did_you_mean
from practicum.resources import Resource
from practicum.task import Task

MANAGERS = ("none", "scripted", "model")
RETURN = "return"
MANAGER_CALLS = ("warm", "gate", "always", RETURN)
WARM_STEPS = 2
"""First steps in which the manager is asked under `manager_calls=warm`."""
NUM_ERRORS = 2
SCRIPTED_MANAGER = "scripted_manager"
"""The source of turns of the scripted manager."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Which parts of the hierarchy act; without any, the environment is that of a worker alone."""

    manager: str = "none"
    manager_calls: str = "warm"
    cache: bool | str = False
    macros: bool = False
    recovery: bool = False

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("manager", self.manager, MANAGERS),
            ("manager_calls", self.manager_calls, MANAGER_CALLS),
        ):
            if value not in allowed:
                raise UserError(f"{name} is {', '.join(allowed)}, not '{value}'.{did_you_mean(str(value), allowed)}")
        for name, flag in (("macros", self.macros), ("recovery", self.recovery)):
            if not isinstance(flag, bool):
                raise UserError(f"{name} is true or false, not '{flag}'.")
        if not isinstance(self.cache, (bool, str)):
            raise UserError("cache is true, false, or a file of verified actions such as data/cache/vac.json.")
        if self.macros and self.manager == "none":
            raise UserError("Macros are started by a manager: set manager=scripted or manager=model, or macros=false.")

    @property
    def has_subgoals(self) -> bool:
        """Whether the worker is shown sub-goals in place of the goal, and comes back to the manager after each."""
        return self.manager != "none" and self.manager_calls == RETURN

    @property
    def is_on(self) -> bool:
        return self.manager != "none" or bool(self.cache) or self.macros or self.recovery


@dataclass(slots=True)
class Counters:
    """What acted how often in an episode so far; written into `info` of every step."""

    manager_calls: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    macro_attempts: int = 0
    macro_successes: int = 0
    macro_actions: int = 0
    recoveries: int = 0
    scripted_actions: int = 0
    """Turns in which no model was asked."""


@dataclass(frozen=True, slots=True)
class ScriptedAction:
    """An action that is done without a model, its source, and the entry of the cache that it came from."""

    call: ToolCall
    source: str
    entry: CacheEntry | None = None


class HierarchyEnvironment(BrowserEnvironment):
    """A browser environment in which a hierarchy may act around the worker."""

    agent_options: ClassVar[tuple[str, ...]] = (
        *BrowserEnvironment.agent_options,
        "manager",
        "manager_calls",
        "recovery",
    )
    hierarchy = Hierarchy()

    def set_hierarchy(self, hierarchy: Hierarchy) -> None:
        """Let these parts act; called once, by `__init__`."""
        self.hierarchy = hierarchy
        if not hierarchy.is_on:
            return
        if not self.fresh:
            raise UserError(
                "manager, cache, macros and recovery need fresh=true: their actions are in no conversation."
            )
        if hierarchy.manager != "none":
            self.acting_role = WORKER
            self.roles = (WORKER, MANAGER) if hierarchy.manager == "model" else (WORKER,)

    def make_resources(self) -> Mapping[str, Resource]:
        return {**super().make_resources(), **self.cache_resource()}

    def cache_resource(self) -> dict[str, Resource]:
        """The action cache by its name, where there is one."""
        cache = self.hierarchy.cache
        return {CACHE: ActionCache(cache if isinstance(cache, str) else None)} if cache else {}

    def manager_guidance(self) -> Guidance:
        """Return what the scripted manager says about the page."""
        raise UserError(
            f"{self.name} has no scripted manager: set manager=model, and name one with --role manager=MODEL."
        )

    # -- the episode ------------------------------------------------------------------------------

    async def reset(self, task: Task, seed: int) -> Observation:
        self.guidance: Guidance | None = None
        self.guidance_text = ""
        self._is_managers_turn = False
        self._subgoals: list[str] = []
        """What the manager gave so far, under `manager_calls=return`."""
        observation = await super().reset(task, seed)
        if not self.hierarchy.is_on:
            return observation
        self.counters = Counters()
        self.past: list[PastStep] = []
        self._macro: ActiveMacro | None = None
        self._choice: ScriptedAction | None = None
        self._subgoal_start = 0
        """The index of the first action for the last of them."""
        self.report = DONE_MESSAGE
        """The worker's last message, which goes to the user when the manager says that everything is done."""
        self._acted: dict[str, CacheEntry | None] = {}
        """What was done in this episode, by key of the cache; None for something that is not cached, or failed."""
        self._ambiguous: set[str] = set()
        """Keys at which different things were done in this episode."""
        self._read_state()
        return await self._next_observation(after_manager=False)

    async def step(self, action: Action) -> Step:
        if not self.hierarchy.is_on or self.is_over:
            return await super().step(action)
        if self._is_managers_turn:
            return await self._take_guidance(action)
        is_finish = self.hierarchy.has_subgoals and self._subgoals[-1] == FINISH
        if self.hierarchy.has_subgoals and not action.calls and not is_finish:
            return self._back_to_manager(action)
        choice, self._choice = self._choice, None
        if choice is not None and action.calls != (choice.call,):
            choice = None  # the agent's own reply
        before, nodes = self.state, self.nodes
        step = await super().step(action)
        self._read_state()
        own_source = MANAGER if is_finish else "worker_guided" if self.guidance else WORKER
        source = choice.source if choice else own_source
        past = PastStep(self.last_action, bool(self.last_error), before, self.state, source)
        self.past.append(past)
        self._update_cache(choice, action, past, nodes)
        if self._macro is not None and source == "macro" and not (past.made_progress and self._macro.steps):
            self.counters.macro_successes += past.made_progress
            self._macro = None
        observation = step.observation if step.terminated else await self._next_observation(after_manager=False)
        return replace(step, observation=observation, info={**step.info, "action_source": source, **self._counts()})

    async def truncate(self) -> Step:
        step = await super().truncate()
        return replace(step, info={**step.info, **self._counts()}) if self._session is not None else step

    def shown_goal(self) -> tuple[str, int]:
        is_whole = not self.hierarchy.has_subgoals or self._is_managers_turn or not self._subgoals
        return (self.goal, 0) if is_whole else (self._subgoals[-1], self._subgoal_start)

    def _counts(self) -> dict[str, Any]:
        return asdict(self.counters) if self.hierarchy.is_on else {}

    def _read_state(self) -> None:
        self.nodes: tuple[Node, ...] = self.view.nodes
        self.state = page_state(self.key, self.nodes)

    # -- who acts next ----------------------------------------------------------------------------

    async def _next_observation(self, after_manager: bool) -> WebObservation:
        """Return what the next role is shown, with the action where no model is to be asked."""
        if self.hierarchy.has_subgoals and self._subgoals and self._subgoals[-1] == FINISH:
            self.counters.scripted_actions += 1
            return replace(await self._observation(), action=Action(content=self.report), source=MANAGER)
        choice = None if after_manager else self._recovery_choice()
        if choice is None and not after_manager and self._is_manager_first():
            is_warm = self.hierarchy.manager_calls == "warm"
            return self._manager_observation("the start of the task" if is_warm else "the next step")
        choice = choice or self._macro_choice() or self._cache_choice()
        if choice is None and not after_manager and (reason := self._gate()):
            return self._manager_observation(reason)
        observation = await self._observation()
        if choice is None:
            return observation
        self._choice = choice
        self.counters.scripted_actions += 1
        return replace(observation, action=Action(calls=(choice.call,)), source=choice.source)

    def _recovery_choice(self) -> ScriptedAction | None:
        recovery = recovery_action(self.past, self.view) if self.hierarchy.recovery else None
        if recovery is None or recovery[0].name not in self.actions:
            return None
        self.counters.recoveries += 1
        self._macro = None
        return ScriptedAction(*recovery)

    def _is_manager_first(self) -> bool:
        """Whether the manager is asked before macro and cache; while a macro runs, it is not."""
        calls = self.hierarchy.manager_calls
        is_due = calls == "always" or (calls == "warm" and len(self.past) < WARM_STEPS)
        is_due = is_due or (calls == RETURN and not self._subgoals)
        return self.hierarchy.manager != "none" and self._macro is None and is_due

    def _gate(self) -> str:
        """Why the manager is asked on this page; "" where it is not."""
        if self.hierarchy.manager == "none" or self.hierarchy.has_subgoals:
            return ""
        if num_errors_in_a_row(self.past) >= NUM_ERRORS:
            return "repeated errors"
        if self.last_error:
            return "an error"
        if is_loop(self.past):
            return "a loop"
        return f"a {self.key.page_type} page" if self.key.page_type in HIGH_STAKES else ""

    def _macro_choice(self) -> ScriptedAction | None:
        if self._macro is None:
            return None
        call = self._macro.next_call(self.nodes)
        if call is None or call.name not in self.actions:
            self.counters.macro_successes += not self._macro.steps
            self._macro = None
            return None
        self.counters.macro_actions += 1
        return ScriptedAction(call, "macro")

    def _cache_choice(self) -> ScriptedAction | None:
        """The cached action, where the agent is in no loop, its element is on the page, and nothing was done on this
        page before: a page that comes again, as it was, may hide that a part of the task is done since."""
        if not self.hierarchy.cache:
            return None
        cache: ActionCache = self.resources[CACHE]
        key = cache_key(self.state, self.shown_goal()[0])
        entry = cache.get(key)
        call = None if entry is None or key in self._acted or is_loop(self.past) else entry.bind(self.nodes)
        if call is None or call.name not in self.actions:
            self.counters.cache_misses += 1
            return None
        self.counters.cache_hits += 1
        return ScriptedAction(call, CACHE, entry)

    def _update_cache(
        self, choice: ScriptedAction | None, action: Action, past: PastStep, nodes: tuple[Node, ...]
    ) -> None:
        """Write what the observation says about the action: one of the cache, or one of the worker.

        A page on which different things were done in one episode does not say what to do: its entry is removed.
        """
        if not self.hierarchy.cache:
            return
        key = cache_key(past.before, self.shown_goal()[0])
        if choice is not None and choice.entry is not None:
            is_verified = past.made_progress and past.after == choice.entry.postcondition
            self._acted[key] = choice.entry if is_verified else None
            self.resources.write(CACHE, {"key": key, **({"entry": asdict(choice.entry)} if is_verified else {})})
            return
        is_workers = choice is None and past.made_progress and bool(action.calls)
        entry = make_entry(action.calls[0], nodes, past.after) if is_workers else None
        earlier = self._acted.get(key)
        self._acted[key] = earlier or entry
        if entry is None or key in self._ambiguous:
            return
        if earlier is None or earlier.same_action(entry):
            self.resources.write(CACHE, {"key": key, "entry": asdict(entry)})
        else:
            self._ambiguous.add(key)
            self.resources.write(CACHE, {"key": key, "is_ambiguous": True})

    # -- the manager ------------------------------------------------------------------------------

    def _manager_observation(self, reason: str) -> WebObservation:
        """What the manager is shown, with its answer where it is the scripted one."""
        self._is_managers_turn = True
        self.counters.manager_calls += 1
        text, _ = self.page_text()
        legal: tuple[str, ...] | None = None
        if self.hierarchy.has_subgoals:
            messages = subgoal_messages(text, self.goal, self._subgoals, with_rules=self.prompt != "page")
            legal = (*goal_parts(self.goal), FINISH)
        else:
            messages = manager_messages(text, self.recent_actions, self.guidance, reason, self.hierarchy.macros)

        def scripted() -> Action:
            guidance = self.manager_guidance()
            return Action(content=guidance.subgoal if self.hierarchy.has_subgoals else guidance.to_json())

        observation = WebObservation(
            messages, legal=legal, role=MANAGER, fresh=True, counted=False, next_expert_action=scripted
        )
        if self.hierarchy.manager != "scripted":
            return observation
        self.counters.scripted_actions += 1
        return replace(observation, action=scripted(), source=SCRIPTED_MANAGER)

    async def _take_guidance(self, action: Action) -> Step:
        """Keep what the manager says, start the macro that it names, and go on with the same page."""
        self._is_managers_turn = False
        read = read_guidance(action.content)
        if self.hierarchy.has_subgoals:
            read = read or Guidance(" ".join(action.content.split())[:MAX_TEXT_CHARS] or RETRY.subgoal)
            self._subgoals.append(read.subgoal)
            self._subgoal_start = len(self.done)
        self.guidance = read or RETRY
        self.guidance_text = "" if self.hierarchy.has_subgoals else self.guidance.text
        if self.hierarchy.macros and self.guidance.skill:
            self.counters.macro_attempts += 1
            self._macro = start_macro(self.guidance.skill, self.nodes)
        info = {
            **self._state_info(),
            "action_source": MANAGER,
            "guidance": asdict(self.guidance),
            "is_readable": read is not None,
        }
        observation = await self._next_observation(after_manager=True)
        return Step(observation, info={**info, **self._counts()})

    def _back_to_manager(self, action: Action) -> Step:
        """The worker says that its sub-goal is reached: nothing is done on the page, and the manager is asked."""
        self.report = action.content or DONE_MESSAGE
        info = {**self._state_info(), "action": write_action(ToolCall(MESSAGE, {"text": self.report}))}
        observation = self._manager_observation("the worker's message")
        return Step(observation, info={**info, "action_source": "worker_guided", **self._counts()})

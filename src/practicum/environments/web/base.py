"""What all web environments share: a browser session per episode, observations, actions, and a judge.

A subclass says what to serve and where to begin (`start`), and judges (`judge`). Errors of an action are observations;
a page that hangs ends the episode as a timeout, and nothing else.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from practicum.chat.formats.web import MESSAGE, WebFormat, web_tool
from practicum.chat.formats.web_actions import HALO_ACTIONS, WEB_ACTIONS, WebActionError, write_action
from practicum.environment import (
    AGENT_OPTIONS,
    DEFAULT_ROLE,
    Action,
    Environment,
    Observation,
    ScriptedPolicy,
    Step,
    ToolCall,
)
from practicum.environments.web.brief import brief_text, element_line
from practicum.environments.web.browser import EXECUTABLE, MAX_SESSIONS, VIEWPORT, Browser
from practicum.environments.web.gateway import Handler
from practicum.environments.web.legal_actions import DONE_MESSAGE, legal_calls
from practicum.environments.web.observation import (
    TOP_K,
    Node,
    PageView,
    StateKey,
    actionable_elements,
    obs_hash,
    sections,
    state_key,
    summary_text,
    tree_text,
)
from practicum.environments.web.page_actions import perform
from practicum.environments.web.prompt import NUM_RECENT_ACTIONS, RULES, build_messages
from practicum.environments.web.session import ActionFailed, BrowserSession
from practicum.errors import UserError, did_you_mean
from practicum.registry import make_format
from practicum.resources import Resource
from practicum.task import Task
from practicum.utils.concurrency import seconds_left

LEGAL_FORMAT = WebFormat()
"""In which `Observation.legal` is written."""
OBSERVE_MODES = ("axtree", "summary", "both", "brief")
PROMPTS = ("short", "halo", "page")
DEFAULT_ACTIONS = (*HALO_ACTIONS, "hover", "press", "focus")
SHARE_OF_STEP = 0.8
"""Share of the step's deadline after which a page that does not answer is given up."""
MAX_STEP_SECONDS = 30.0
LOOP_WINDOW, LOOP_VISITS = 5, 2
"""A state that was visited so often among the last ones is a loop."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where an episode begins: the hosts that exist and who answers for them, the first address, the goal."""

    handlers: Mapping[str, Handler]
    url: str
    goal: str
    site_id: str
    remote_hosts: tuple[str, ...] = ()
    """Hosts on the Internet that pages may reach by https."""


@dataclass(frozen=True, slots=True)
class WebVerdict:
    """What the judge says about the state: whether the task is solved, how much of it, and whether it is over."""

    success: bool
    progress: float | None = None
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WebObservation(Observation):
    """An observation with what scripted policies need: the elements that its text shows, and the expert's action."""

    shown: tuple[Node, ...] = ()
    next_expert_action: Callable[[], Action] | None = field(default=None, compare=False, repr=False)


class BrowserEnvironment(Environment):
    """An environment in the browser of the run."""

    formats = ("web", "web_json")
    has_one_answer = False
    agent_options: ClassVar[tuple[str, ...]] = (
        *AGENT_OPTIONS, "observe", "fresh", "screenshots", "actions", "top_k", "max_chars", "pages", "chromium",
        "element_thoughts",
    )  # fmt: skip
    rules: str = RULES
    """What the system message says before the format's instructions."""
    viewport: tuple[int, int] = VIEWPORT
    with_dom = False
    """Whether elements without a role are shown too, and boxes in pixels."""
    force_clicks = False
    element_thoughts = False
    """Whether the expert's replies, and the legal ones, begin with the line of their element."""
    acting_role: str = DEFAULT_ROLE
    """The role that acts on pages."""
    guidance_text: str = ""
    """What a manager says to it."""

    def __init__(
        self, format: str = "web", observe: str = "axtree", prompt: str = "short", fresh: bool = True,
        screenshots: bool = False, actions: Sequence[str] = DEFAULT_ACTIONS, top_k: int = TOP_K, max_chars: int = 8_000,
        pages: int = MAX_SESSIONS, chromium: str = EXECUTABLE,
    ) -> None:  # fmt: skip
        """`observe` is what is shown of a page: its accessibility tree, HALO's summary, both, or `brief`, the shortest.
        `prompt` adds the rules (`short`), these and the valid ids (`halo`), or nothing (`page`). With `fresh`, every
        prompt begins anew; otherwise it continues the conversation. `top_k` limits the summary, `max_chars` the
        tree; `pages` episodes have a page at once. `chromium` is the browser's program."""
        for name, value, allowed in (("observe", observe, OBSERVE_MODES), ("prompt", prompt, PROMPTS)):
            if value not in allowed:
                raise UserError(f"{self.name} has no {name} '{value}'.{did_you_mean(str(value), allowed)}")
        actions = as_names(actions)
        for name in actions:
            if name not in WEB_ACTIONS:
                raise UserError(f"There is no web action '{name}'.{did_you_mean(str(name), WEB_ACTIONS)}")
        if min(top_k, max_chars, pages) < 1:
            raise UserError(f"{self.name}: top_k, max_chars and pages must be at least 1.")
        self.format, self.observe, self.prompt = make_format(format), observe, prompt
        self.fresh, self.screenshots, self.top_k, self.max_chars = fresh, screenshots, top_k, max_chars
        self.tools = tuple(web_tool(name) for name in actions if name != MESSAGE)
        self.actions = frozenset(actions)
        self.browser = Browser(chromium, pages)
        self._session: BrowserSession | None = None

    def make_resources(self) -> Mapping[str, Resource]:
        return {"browser": self.browser}

    # -- what a subclass defines ------------------------------------------------------------------

    @abc.abstractmethod
    async def start(self, task: Task, seed: int) -> Start:
        """Return where the task begins."""

    @abc.abstractmethod
    async def judge(self, message: str | None) -> WebVerdict:
        """Judge the state; `message` is the agent's last message to the user, None before there is one."""

    async def prepare_page(self, session: BrowserSession) -> str | None:
        """Do what must be done on the first page; return the goal where only the page knows it."""
        return None

    async def before_first_prompt(self, seed: int) -> None:
        """Do what is to be done on pages before the agent is asked; nothing, unless a subclass says so."""
        return None

    async def wait_for_page(self) -> None:
        """Wait until the page is idle."""
        await self.session.wait_until_idle()

    def step_reward(self, verdict: WebVerdict, ends: bool, gained: float, is_new_state: bool, is_loop: bool) -> float:
        """Return the reward of a step; `gained` is what it added to the progress."""
        return float(ends and verdict.success)

    def expert_action(self, view: PageView, shown: Sequence[Node]) -> Action:
        """Return the expert's action on the page."""
        raise UserError(f"{self.name} has no expert: name another --policy.")

    # -- the episode ------------------------------------------------------------------------------

    @property
    def session(self) -> BrowserSession:
        assert self._session is not None, "reset comes before step"
        return self._session

    async def reset(self, task: Task, seed: int) -> Observation:
        await self.close()
        start = await self.start(task, seed)
        self.goal, self.site_id = start.goal, start.site_id
        self.last_action, self.last_error, self.is_over = "", "", False
        self.recent_actions: list[str] = []
        self.done: list[str] = []
        await self._open_first_page(start)
        async with self._page_timeout():
            await self.before_first_prompt(seed)
        self.progress = (await self.judge(None)).progress or 0.0
        self.visited: set[StateKey] = {self.key}
        self.recent_states: list[StateKey] = [self.key]
        return await self._observation(first=True)

    async def _open_first_page(self, start: Start) -> None:
        """Open a session of the browser, and read the page on which the task begins."""
        browser: Browser = self.resources["browser"]
        self._session = await browser.new_session(start.handlers, self.viewport, start.remote_hosts)
        async with self._page_timeout():
            await self.perform_on_page(ToolCall("goto", {"url": start.url}))
            await self._session.wait_until_idle()
            self.goal = await self.prepare_page(self._session) or self.goal
            await self._read_page()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @contextlib.asynccontextmanager
    async def _page_timeout(self) -> Any:
        """Give up a page that does not answer: well before the step's own deadline, so that the cause is known."""
        seconds = min(MAX_STEP_SECONDS, SHARE_OF_STEP * seconds_left())
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise TimeoutError(f"the page did not answer within {seconds:g} s") from None

    async def _read_page(self) -> None:
        """Read the page into `view`, and name the state that it is."""
        self.view = await self.session.view(self.with_dom)
        self.key = state_key(
            self.view.url,
            self.view.nodes,
            title=self.view.title,
            has_error=bool(self.last_error),
            site_id=self.site_id,
        )
        self.elements = actionable_elements(self.view.nodes, self.top_k)

    async def step(self, action: Action) -> Step:
        if self.is_over:
            return Step(terminated=True, success=False)
        call = action.calls[0] if action.calls else ToolCall(MESSAGE, {"text": action.content or DONE_MESSAGE})
        before = self._state_info()
        key_before = self.key
        self.last_error = ""
        info: dict[str, Any] = {}
        async with self._page_timeout():
            try:
                self.last_action = write_action(call)
                info = {"element": self._target(call)}
                self.done.append(name_action(call, info["element"]))
                await self._perform(call)
                await self.wait_for_page()
            except (ActionFailed, WebActionError) as error:
                self.last_error = str(error)
            self.recent_actions.append(self.last_action)
            await self._read_page()
            verdict = await self.judge(call.arguments["text"] if call.name == MESSAGE else None)
        ends = call.name in (MESSAGE, "report_infeasible") or verdict.done
        self.is_over = ends
        info |= {**before, "action": self.last_action, "error": self.last_error, "next_url": self.view.url}
        info |= {"state_changed": self.key != key_before, **verdict.info}
        return await self._make_step(verdict, ends, info)

    async def _make_step(self, verdict: WebVerdict, ends: bool, info: Mapping[str, Any]) -> Step:
        success = verdict.success if ends else None
        gained = 0.0 if verdict.progress is None else verdict.progress - self.progress
        is_loop = self.recent_states.count(self.key) >= LOOP_VISITS
        reward = self.step_reward(verdict, ends, gained, self.key not in self.visited, is_loop)
        self.visited.add(self.key)
        self.recent_states = [*self.recent_states, self.key][-LOOP_WINDOW:]
        self.progress += gained
        components = {"error": float(bool(self.last_error)), **({"success": float(verdict.success)} if ends else {})}
        observation = await self._observation()
        return Step(observation, reward, components, ends, success=success, progress=verdict.progress, info=info)

    async def truncate(self) -> Step:
        if self._session is None:
            return Step(truncated=True)
        verdict = await self.judge(None)
        return Step(truncated=True, progress=verdict.progress)

    async def _perform(self, call: ToolCall) -> None:
        if call.name not in self.actions and call.name != MESSAGE:
            raise ActionFailed(f"The action {call.name} is not part of this task.")
        if call.name not in (MESSAGE, "report_infeasible"):
            await self.perform_on_page(call)

    async def perform_on_page(self, call: ToolCall) -> None:
        """Carry out an action in the browser; ActionFailed where that cannot be done."""
        await perform(self.session, call, self.force_clicks)

    def _target(self, call: ToolCall) -> dict[str, str] | None:
        """Role and name of the element that an action is about: ids are others in another load of the page."""
        node = self.session.tab.nodes.get(str(call.arguments.get("bid", call.arguments.get("from_bid"))))
        return None if node is None else {"role": node.role, "name": node.name}

    def _state_info(self) -> dict[str, Any]:
        """The state in which the next action is chosen."""
        nodes = self.view.nodes
        return {
            "url": self.view.url,
            "state_key": str(self.key),
            "obs_hash": obs_hash(self.view.url, self.last_action, self.last_error, nodes),
            "page_type": self.key.page_type,
        }

    # -- what the agent sees ----------------------------------------------------------------------

    def shown_goal(self) -> tuple[str, int]:
        """Return the goal that the next role is shown, and the index of the first action that was done for it."""
        return self.goal, 0

    def page_text(self) -> tuple[str, tuple[Node, ...]]:
        """Return the text of the page, and the nodes with an id that it shows."""
        view, shown = self.view, {element.bid for element in self.elements}
        notes = (*view.notes, *self._tabs())
        goal, start = self.shown_goal()
        if self.observe == "brief":
            done = self.done[start:][-NUM_RECENT_ACTIONS:]
            text = brief_text(goal, view.title, view.nodes, done, self.last_error, notes, self.with_dom)
            return text, tuple(node for node in view.nodes if node.bid and (self.with_dom or node.role != "option"))
        summary = summary_text(goal, view.url, self.elements, self.last_action, self.last_error, notes)
        if self.observe == "summary":
            return summary, tuple(node for node in view.nodes if node.bid in shown)
        tree = tree_text(view.nodes, self.max_chars)
        shown |= set(re.findall(r"^\t*\[(\w+)\]", tree, re.M))
        nodes = tuple(node for node in view.nodes if node.bid in shown)
        if self.observe == "both":
            return f"{summary}\n\n# Accessibility Tree\n{tree}", nodes
        parts = sections(goal, view.url, self.last_action, self.last_error, notes)
        return "\n\n".join([*parts, f"# Accessibility Tree\n{tree}"]), nodes

    def _tabs(self) -> tuple[str, ...]:
        """Return one line per tab; none where there is a single tab."""
        view = self.view
        if len(view.tabs) < 2:
            return ()
        return tuple(f"Tab {n}{' (active)' if n == view.active_tab else ''}: {u}" for n, u in enumerate(view.tabs))

    async def _observation(self, first: bool = False) -> WebObservation:
        text, shown = self.page_text()
        images: tuple[str, ...] = ()
        if self.screenshots:
            async with self._page_timeout():
                images = (await self.session.screenshot(),)
        messages = build_messages(
            text,
            self.format,
            self.tools,
            recent_actions=self._shown_actions() if self.fresh and self.observe != "brief" else (),
            guidance=self.guidance_text,
            listed_ids=[node.bid for node in shown] if self.prompt == "halo" else (),
            images=images,
            rules=self.rules if (first or self.fresh) and self.prompt != "page" else None,
        )
        return WebObservation(
            messages,
            self.tools if first or self.fresh else (),
            legal=self._legal(shown),
            role=self.acting_role,
            fresh=self.fresh and not first,
            shown=shown,
            next_expert_action=lambda: self._with_thought(self.expert_action(self.view, shown), shown),
        )

    def _shown_actions(self) -> list[str]:
        return self.recent_actions[self.shown_goal()[1] :]

    def _with_thought(self, action: Action, shown: Sequence[Node]) -> Action:
        """Return an action whose thought is the line of its element, where replies begin with that."""
        if not self.element_thoughts or not action.calls:
            return action
        bid = action.calls[0].arguments.get("bid")
        node = next((node for node in shown if node.bid == bid), None)
        return action if node is None else replace(action, thought=element_line(node))

    def _legal(self, shown: Sequence[Node]) -> tuple[str, ...]:
        """What can be done without typing, as replies of the format `web`."""
        calls = legal_calls(self.view.nodes, {node.bid for node in shown}, self.actions)
        actions = [self._with_thought(Action(calls=(call,)), shown) for call in calls]
        return tuple(LEGAL_FORMAT.write(action, has_tools=True) for action in actions)

    # -- scripted policies ------------------------------------------------------------------------

    def wrong_attempts(self, task: Task, solution: Sequence[Action]) -> Sequence[Sequence[Action]]:
        """Say that it is done without doing anything, and without the last action, the one that reaches the goal."""
        done = Action(content=DONE_MESSAGE)
        return ((done,), (*[action for action in solution if action.calls][:-1], done))

    def expert(self, task: Task) -> ScriptedPolicy:
        def act(observation: Observation) -> Action:
            if not isinstance(observation, WebObservation) or observation.next_expert_action is None:
                raise UserError(f"The expert of {self.name} acts in its own environment only.")
            return observation.next_expert_action()

        return act

    def null(self, task: Task) -> ScriptedPolicy:
        """Return the policy that says at once that it is done."""
        return lambda observation: Action(content=DONE_MESSAGE)

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that clicks on random elements; now and then it says that it is done."""
        rng = random.Random(f"{self.name}-random/{seed}")

        def act(observation: Observation) -> Action:
            legal = [LEGAL_FORMAT.parse(text, has_tools=True) for text in observation.legal or ()]
            actions = [action for action in legal if action.calls]
            if not actions or rng.random() < 0.1:
                return Action(content=DONE_MESSAGE)
            return Action(calls=rng.choice(actions).calls)

        return act


def name_action(call: ToolCall, element: Mapping[str, str] | None) -> str:
    """Return an action in words, its element by name: `select_option Colour blue`. Ids are others on the next page."""
    arguments = [str(value) for key, value in call.arguments.items() if key not in ("bid", "from_bid")]
    named = [] if element is None else [element["name"] or element["role"]]
    return " ".join([call.name, *named, *arguments])


def as_names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return an option that is a list of names; a name alone is a list of one."""
    return (value,) if isinstance(value, str) else tuple(value)


def find_element(shown: Sequence[Node], role: str, name: str) -> Node | None:
    """Return the first shown node of a role and an accessible name."""
    return next((node for node in shown if node.role.lower() == role and node.name == name), None)

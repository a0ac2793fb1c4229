"""`web`: tasks on small web applications (a shop, a mail client, a calendar) in a real browser.

Each episode has a session of its own. The state of the site is the judge, when the agent sends its message to the user.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlsplit

from practicum.chat.formats.web import MESSAGE
from practicum.chat.formats.web_actions import checked_call, parse_action
from practicum.environment import Action, Observation, ScriptedPolicy, ToolCall
from practicum.environments.web.base import (
    DEFAULT_ACTIONS,
    Start,
    WebObservation,
    WebVerdict,
    as_names,
    find_element,
)
from practicum.environments.web.browser import EXECUTABLE, MAX_SESSIONS
from practicum.environments.web.experts import ExpertElement, ExpertView, PageAction, next_action
from practicum.environments.web.gateway import Handler, HttpRequest, HttpResponse
from practicum.environments.web.hierarchy import Hierarchy, HierarchyEnvironment
from practicum.environments.web.legal_actions import DONE_MESSAGE
from practicum.environments.web.manager import FINISH, MANAGER, Guidance, scripted_guidance
from practicum.environments.web.observation import TOP_K, Node, PageView
from practicum.environments.web.sites.site import SiteSession
from practicum.environments.web.sites.variation import Faults
from practicum.environments.web.tasks import LEVELS, SITES, SiteTask, make_tasks, select_templates
from practicum.errors import UserError, did_you_mean
from practicum.task import Task

HOST = "web.test"
"""The host of every site: addresses are the same in every episode."""
MAX_FIELDS = 100
FAULTS = ("slow", "error", "vanish", "popup")
REWARDS = ("success", "progress", "dense")
ERROR_PENALTY, LOOP_PENALTY, NOVELTY_BONUS, VALIDITY_BONUS = 0.2, 0.5, 0.2, 0.1
"""The parts of the dense reward beside progress and success."""
CARELESS = "careless"
MISTAKE_SHARE = 0.25
"""Share of the careless policy's actions that are mistakes."""
MISSING_BID = "99999"
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'"


class WebEnvironment(HierarchyEnvironment):
    """Tasks on web applications, judged by their state."""

    name = "web"
    scripted_policies = (CARELESS,)

    def __init__(
        self, format: str = "web", observe: str = "axtree", prompt: str = "short", fresh: bool = True,
        screenshots: bool = False, actions: Sequence[str] = DEFAULT_ACTIONS, top_k: int = TOP_K, max_chars: int = 8_000,
        pages: int = MAX_SESSIONS, chromium: str = EXECUTABLE, sites: Sequence[str] = tuple(SITES),
        levels: Sequence[int] = LEVELS, text: bool = True, templates: Sequence[str] = (), vary: Sequence[str] = (),
        faults: Mapping[str, float] | None = None, reward: str = "success", manager: str = "none",
        manager_calls: str = "warm", cache: bool | str = False, macros: bool = False, recovery: bool = False,
        element_thoughts: bool = False, wander: int = 0,
    ) -> None:  # fmt: skip
        """`sites`, `levels`, `text` (tasks that need typing) and `templates` (all, or those named) choose the tasks,
        `vary` the axes on which pages vary, `faults` the shares of requests that go wrong.
        `reward` is 1 for success, or the progress of each step, or HALO's dense reward. `manager`, `manager_calls`,
        `cache`, `macros` and `recovery` are the parts of HALO's hierarchy that act. With `element_thoughts` the
        expert's replies begin with the line of their element. At most `wander` links are followed at random before the
        first prompt, so that demonstrations begin on any page."""
        super().__init__(format, observe, prompt, fresh, screenshots, actions, top_k, max_chars, pages, chromium)
        self.set_hierarchy(Hierarchy(manager, manager_calls, cache, macros, recovery))
        if reward not in REWARDS:
            raise UserError(f"web has no reward '{reward}'.{did_you_mean(str(reward), REWARDS)}")
        self.element_thoughts = element_thoughts
        self.sites, self.levels, self.text, self.vary = as_names(sites), tuple(levels), text, as_names(vary)
        self.templates, self.reward = as_names(templates), reward
        if not isinstance(wander, int) or wander < 0:
            raise UserError(f"wander is a number of links, 0 or more, not {wander!r}.")
        self.wander = wander
        self.faults = dict(faults or {})
        for name, share in self.faults.items():
            if name not in FAULTS:
                raise UserError(f"web has no fault '{name}'.{did_you_mean(str(name), FAULTS)}")
            if not isinstance(share, (int, float)) or not 0 <= share <= 1:
                raise UserError(f"The fault '{name}' is a share from 0 to 1, not {share}.")

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        templates = select_templates(split, self.sites, self.levels, self.text, self.templates)
        return make_tasks(templates, count, seed, self.vary)

    async def start(self, task: Task, seed: int) -> Start:
        self.site_task = SiteTask(task, Faults(**self.faults, seed=seed) if self.faults else None)
        session = self.site_task.session
        return Start(
            handlers={HOST: site_handler(session)},
            url=f"http://{HOST}{session.start_path}",
            goal=str(task.fields["question"]),
            site_id=str(task.fields["site"]),
        )

    async def before_first_prompt(self, seed: int) -> None:
        """Follow links at random; a link changes nothing on a site."""
        rng = random.Random(f"web-wander/{seed}")
        for _ in range(rng.randint(0, self.wander)):
            links = [node.bid for node in self.view.nodes if node.role == "link" and node.bid]
            if not links:
                return
            await self._perform(ToolCall("click", {"bid": rng.choice(links)}))
            await self.wait_for_page()
            await self._read_page()

    async def judge(self, message: str | None) -> WebVerdict:
        evaluation = self.site_task.evaluate(message)
        info = {"unrequested": list(evaluation.unrequested)} if evaluation.unrequested else {}
        return WebVerdict(evaluation.success, evaluation.progress, info=info)

    def step_reward(self, verdict: WebVerdict, ends: bool, gained: float, is_new_state: bool, is_loop: bool) -> float:
        success = float(ends and verdict.success)
        if self.reward == "success":
            return success
        if self.reward == "progress":
            return gained
        penalty = ERROR_PENALTY * bool(self.last_error) + LOOP_PENALTY * is_loop
        bonus = VALIDITY_BONUS * (not self.last_error) + NOVELTY_BONUS * is_new_state
        return gained + bonus - penalty + success

    def expert_action(self, view: PageView, shown: Sequence[Node]) -> Action:
        action = next_action(self.site_task, expert_view(view, shown))
        if self.hierarchy.has_subgoals and self.guidance and self.guidance.subgoal != self.manager_guidance().subgoal:
            action = None  # the sub-goal is reached, or is none of those to be done next
        if action is None:
            return Action(content=DONE_MESSAGE)
        return resolve(action, shown)

    def scripted(self, name: str, task: Task, seed: int) -> ScriptedPolicy:
        """Return the policy `careless`: the expert with mistakes, which knows the task and no faults.

        Mistakes are a scroll, a wait, and a click on a link or on an id that is not there. At a dialog, an error page
        or a missing element it clicks on an id that is not there, as if the page were the usual one.
        """
        rng = random.Random(f"web-careless/{seed}")

        def act(observation: Observation) -> Action:
            assert isinstance(observation, WebObservation)
            assert observation.next_expert_action is not None
            action = observation.next_expert_action()
            if observation.role == MANAGER:
                return action
            links = [ToolCall("click", {"bid": node.bid}) for node in observation.shown if node.role == "link"]
            missing = ToolCall("click", {"bid": MISSING_BID})
            mistakes = [missing, parse_action("scroll(0, 300)"), parse_action("noop(1)"), *links[:1]]
            mistake = rng.choice(mistakes) if rng.random() < MISTAKE_SHARE else None
            is_fault = (action.calls and action.calls[0].name == "goto") or any(
                node.name in ("No thanks", "Try again") for node in observation.shown
            )
            wrong = missing if is_fault else mistake
            return action if wrong is None else Action(calls=(wrong,))

        return act

    def manager_guidance(self) -> Guidance:
        if self.hierarchy.has_subgoals and self.site_task.evaluate(self.report).success:
            return Guidance(FINISH)  # a question is answered by the worker's message
        return scripted_guidance(self.site_task, expert_view(self.view, self.nodes), self.goal, self.key.page_type)


def expert_view(view: PageView, shown: Sequence[Node]) -> ExpertView:
    """Return a page as the experts read it."""
    parts = urlsplit(view.url)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    elements = tuple(
        ExpertElement(node.role.lower(), node.name, node.value, "checked=true" in node.properties) for node in shown
    )
    return ExpertView(path, elements)


def resolve(action: PageAction, shown: Sequence[Node]) -> Action:
    """Return an expert's action with the id of its element, which must be among the shown ones."""
    if action.verb == MESSAGE:
        return Action(content=action.text)
    if action.verb == "goto":
        return Action(calls=(ToolCall("goto", {"url": f"http://{HOST}{action.text}"}),))
    node = find_element(shown, action.role, action.name)
    if node is None:
        raise UserError(f"The expert wants the {action.role} '{action.name}', which the observation does not show.")
    arguments = {"bid": node.bid}
    if action.verb == "fill":
        arguments["value"] = action.text
    elif action.verb == "select_option":
        arguments["options"] = action.text
    return Action(calls=(checked_call(action.verb, arguments),))


def site_handler(session: SiteSession) -> Handler:
    """Return the handler that answers requests with a session's pages."""

    async def handle(request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "POST"):
            return HttpResponse(405)
        form = request.body.decode() if request.method == "POST" else ""
        response = session.handle(
            request.method,
            request.path,
            dict(parse_qsl(request.query, keep_blank_values=True, max_num_fields=MAX_FIELDS)),
            dict(parse_qsl(form, keep_blank_values=True, max_num_fields=MAX_FIELDS)),
        )
        if response.delay_seconds:
            await asyncio.sleep(response.delay_seconds)
        headers = {"Cache-Control": "no-store", "Content-Security-Policy": CONTENT_POLICY}
        if response.location:
            headers["Location"] = response.location
        return HttpResponse(response.status, response.body.encode(), headers=headers)

    return handle

"""`HTDAGPlanner`: a request becomes a TaskDAG, by a language model, a trained policy, or heuristics.

Whatever the model does, a plan comes out: a failing model is tried again, then left out for a while, and heuristics
take its place; unsafe output is replaced by one generic task. Limits hold for every DAG. The graph's root is the
request; tasks are decomposed only while they are leaves.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from practicum.environment import Message
from practicum.environments.htdag.planning import (
    MAX_RECURSION_DEPTH,
    MAX_STEPS_PER_EPISODE,
    MAX_SUBTASKS_PER_UPDATE,
    MAX_TOTAL_TASKS,
    PlanningEpisode,
)
from practicum.environments.htdag.policies import HeuristicPolicy, parse_request
from practicum.environments.htdag.requests import ROOT
from practicum.environments.htdag.task_dag import DEFAULT_TYPE, GraphError, TaskDAG, TaskNode
from practicum.errors import UserError
from practicum.planner.llm_client import JSON_REPLY, CircuitBreaker, LLMClient, with_retries
from practicum.planner.promoted_model import PromotedModel
from practicum.planner.prompts import SYSTEM_PROMPT, subtasks_prompt, top_level_prompt, update_prompt
from practicum.planner.sanitise import ATOMIC_TYPES, SecurityError, check_tasks, sanitise_request

logger = logging.getLogger(__name__)

MAX_UPDATES_PER_DAG = 10
TRAINED_POLICY_FLAG = "HTDAG_USE_TRAINED_POLICY"
FLAG_ON, FLAG_OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
RUN_FOLDER = Path("checkpoints/htdag_rl")
"""Where `practicum train recipe=htdag` leaves its run."""


def trained_policy_wanted(dotenv: Path = Path(".env")) -> bool:
    """Whether HTDAG_USE_TRAINED_POLICY is true in the environment or, where it is not set there, in `.env`."""
    value = os.environ.get(TRAINED_POLICY_FLAG)
    if value is None and dotenv.is_file():
        for line in dotenv.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, text = line.removeprefix("export ").partition("=")
            if name.strip() == TRAINED_POLICY_FLAG:
                value = text.partition(" #")[0].strip().strip("'\"")
    word = (value or "").strip().lower()
    if word not in (*FLAG_ON, *FLAG_OFF):
        raise UserError(f"{TRAINED_POLICY_FLAG} is '{value}'; set it to true or false.")
    return word in FLAG_ON


def local_client(model: str) -> LLMClient:
    """Return the client of a model on this machine."""
    from practicum.planner.local_client import LocalClient  # imports torch: only for those who have a model here

    return LocalClient(model)


class HTDAGPlanner:
    """Breaks requests into DAGs of tasks within limits; works without a model."""

    def __init__(
        self,
        llm_client: LLMClient | None = None,
        use_trained_policy: bool = False,
        policy: LLMClient | None = None,
        retries: int = 3,
        first_wait: float = 1.0,
    ) -> None:
        """`policy` is a trained planner, called with the short prompt where `use_trained_policy` is set.

        None is the promoted one: the current version of `htdag` in the registry that HTDAG_REGISTRY names, by default
        the folder `registry`. A later switch of `current` is seen by the next plan. A model is loaded when it is first
        asked.
        """
        self._promoted = PromotedModel() if use_trained_policy and policy is None else None
        if self._promoted is not None:
            policy = local_client(str(self._promoted.version.model))
        self._num_plans: Counter[int] = Counter()
        """By the identity of a policy: plans that it is making."""
        self.llm_client, self.policy = llm_client, policy if use_trained_policy else None
        self.retries, self.first_wait = retries, first_wait
        self.breaker = CircuitBreaker()
        self.llm_calls = 0
        """Calls of a model that were answered."""
        self._num_updates: WeakKeyDictionary[TaskDAG, int] = WeakKeyDictionary()
        self._num_created: WeakKeyDictionary[TaskDAG, int] = WeakKeyDictionary()

    def load_best_checkpoint(self, run: str | Path = RUN_FOLDER) -> None:
        """Plan with the best model of a training run from now on; by default that of recipe `htdag`."""
        if not Path(run).is_dir():
            raise UserError(f"There is no run '{run}'; give the folder of a training run.")
        self._promoted, self.policy = None, local_client(str(run))

    async def decompose_task(self, request: str, context: Mapping[str, Any] | None = None) -> TaskDAG:
        """Return the DAG of a request; UserError for one that is empty, too long or an attack."""
        request = sanitise_request(request)
        dag = await self._planned_by_policy(request)
        if dag is None:
            dag = await self._planned_top_down(request, context or {})
        self._num_created[dag], self._num_updates[dag] = len(dag), 0
        return dag

    async def update_dag_dynamic(
        self, dag: TaskDAG, completed_tasks: Sequence[str], new_info: Mapping[str, Any]
    ) -> TaskDAG:
        """Mark tasks completed and add what the model finds to be missing after them; return the changed DAG.

        `dag` itself does not change. It is returned as it is where the update is rejected: an unknown task, a cycle, a
        limit, an error of the model's. UserError if it was updated too often or has no room.
        """
        num_updates, num_created = self._num_updates.get(dag, 0), self._num_created.get(dag, len(dag))
        if num_updates >= MAX_UPDATES_PER_DAG:
            raise UserError(f"This DAG was updated {MAX_UPDATES_PER_DAG} times; plan the request anew.")
        if num_created >= MAX_TOTAL_TASKS:
            raise UserError(f"This DAG has had {MAX_TOTAL_TASKS} tasks; plan the request anew.")
        changed = dag.copy()
        try:
            for task_id in completed_tasks:
                changed.mark_complete(task_id)
            for task_id in completed_tasks:
                proposed = await self._subtasks_after(changed, task_id, new_info)
                if num_created + len(proposed) > MAX_TOTAL_TASKS:
                    raise GraphError(f"{len(proposed)} more tasks would exceed {MAX_TOTAL_TASKS}")
                for node in proposed:
                    changed.add_task(node, changed.parent(task_id))
                    changed.add_dependency(task_id, node.task_id)
                num_created += len(proposed)
        except Exception as error:
            logger.error("the update of the DAG is rejected: %s", error)
            return dag
        self._num_updates[changed], self._num_created[changed] = num_updates + 1, num_created
        return changed

    async def _planned_by_policy(self, request: str) -> TaskDAG | None:
        """The DAG that the trained policy makes; None where there is none or it fails."""
        async with self.policy_of_one_plan() as policy:
            return None if policy is None else await self._asked(policy, request)

    @contextlib.asynccontextmanager
    async def policy_of_one_plan(self) -> AsyncIterator[LLMClient | None]:
        """The trained policy for a whole plan. One that was replaced is closed when its last plan is made."""
        switched = None if self._promoted is None else await self._promoted.switched()
        before = self.policy
        if switched is not None:
            logger.info("planning with version %d of '%s' from now on", switched.number, switched.name)
            self.policy = local_client(str(switched.model))
            await self._close_unused(before)
        policy = self.policy
        self._num_plans[id(policy)] += 1
        try:
            yield policy
        finally:
            self._num_plans[id(policy)] -= 1
            if policy is not self.policy:
                await self._close_unused(policy)

    async def _close_unused(self, policy: LLMClient | None) -> None:
        close = getattr(policy, "close", None)
        if close is not None and not self._num_plans[id(policy)]:
            del self._num_plans[id(policy)]
            await close()

    async def _asked(self, policy: LLMClient, request: str) -> TaskDAG | None:
        episode = PlanningEpisode()
        prompt = episode.reset(request)
        try:
            for _ in range(MAX_STEPS_PER_EPISODE):
                reply = await policy.reply([Message("user", prompt)])
                self.llm_calls += 1
                step = episode.step(reply.text)
                if step.done:
                    break
                prompt = step.prompt
        except Exception as error:
            logger.error("the trained policy failed (%s); planning without it", error)
            return None
        if len(episode.dag) == 1:
            logger.warning("the trained policy made no plan; planning without it")
            return None
        if not episode.done:
            logger.warning("the trained policy did not end its plan within %d steps; it is used as far as it is",
                           MAX_STEPS_PER_EPISODE)  # fmt: skip
        return episode.dag

    async def _planned_top_down(self, request: str, context: Mapping[str, Any]) -> TaskDAG:
        answer = await self._ask(top_level_prompt(request, context), "tasks")
        if answer is None and parse_request(request):
            return self._planned_by_keywords(request)
        nodes = _nodes(answer, "task", DEFAULT_TYPE) if answer else published_top_level(request)
        try:
            check_tasks(nodes)
        except SecurityError as error:
            logger.warning("%s One generic task takes its place.", error)
            nodes = [TaskNode("task_0", DEFAULT_TYPE, request)]
        dag = TaskDAG()
        dag.add_task(TaskNode(ROOT, "request", request))
        self._insert(dag, ROOT, nodes)
        for _ in range(MAX_RECURSION_DEPTH - 1):
            leaves = [leaf for leaf in dag.leaves if leaf != ROOT and dag[leaf].task_type not in ATOMIC_TYPES]
            size = len(dag)
            for leaf in leaves:
                await self._refine(dag, leaf)
            if len(dag) == size:
                break
        return dag

    def _planned_by_keywords(self, request: str) -> TaskDAG:
        """The DAG of the keyword heuristic, for requests in the words of the closed vocabulary."""
        episode, policy = PlanningEpisode(), HeuristicPolicy()
        episode.reset(request)
        while not episode.done:
            episode.step(policy(episode))
        return episode.dag

    async def _refine(self, dag: TaskDAG, leaf: str) -> None:
        """Decompose one leaf; one that the model has nothing safe for stays as it is."""
        answer = await self._ask(subtasks_prompt(dag[leaf]), "subtasks")
        nodes = published_subtasks(dag[leaf]) if answer is None else _nodes(answer, leaf, DEFAULT_TYPE)
        try:
            check_tasks(nodes)
        except SecurityError as error:
            logger.warning("%s Task '%s' is not decomposed.", error, leaf)
            return
        self._insert(dag, leaf, nodes)

    def _insert(self, dag: TaskDAG, parent: str, nodes: Sequence[TaskNode]) -> None:
        num_allowed = min(MAX_SUBTASKS_PER_UPDATE, MAX_TOTAL_TASKS - len(dag))
        for node in nodes[: max(0, num_allowed)]:
            try:
                dag.add_task(node, parent)
                for before in node.metadata.get("after", ()):
                    dag.add_dependency(before, node.task_id)
            except GraphError as error:
                logger.warning("left out of the plan: %s", error)

    async def _subtasks_after(self, dag: TaskDAG, task_id: str, new_info: Mapping[str, Any]) -> list[TaskNode]:
        answer = await self._ask(update_prompt(dag[task_id], new_info), "subtasks")
        nodes = _nodes(answer or (), f"{task_id}_discovered", DEFAULT_TYPE)[:MAX_SUBTASKS_PER_UPDATE]
        check_tasks(nodes)
        return nodes

    async def _ask(self, prompt: str, key: str) -> list[Any] | None:
        """Return the list that a JSON reply has under `key`; None without a model or where it fails."""
        client = self.llm_client
        if client is None or not self.breaker.allows:
            return None

        async def ask() -> list[Any]:
            messages = [Message("system", SYSTEM_PROMPT), Message("user", prompt)]
            reply = await client.reply(messages, response_format=JSON_REPLY)
            begin, end = reply.text.find("{"), reply.text.rfind("}")
            value = json.loads(reply.text[begin : end + 1])
            if not isinstance(value, dict) or not isinstance(value.get(key), list):
                raise ValueError(f"the reply has no list '{key}'")
            found: list[Any] = value[key]
            return found

        try:
            answer: list[Any] = await with_retries(ask, self.retries, self.first_wait)
        except UserError:
            raise
        except Exception as error:
            self.breaker.failed()
            logger.warning("the planner's model failed (%s); heuristics take its place", error)
            return None
        self.breaker.succeeded()
        self.llm_calls += 1
        return answer


def _nodes(answer: Sequence[Any], prefix: str, default_type: str) -> list[TaskNode]:
    """Read tasks of a reply; what is no object is left out, missing ids are made from the prefix."""
    nodes = []
    for index, task in enumerate(answer):
        if isinstance(task, Mapping):
            after = [str(name) for name in task.get("after") or () if isinstance(task.get("after"), list)]
            nodes.append(
                TaskNode(
                    str(task.get("task_id") or f"{prefix}_{index}")[:64],
                    str(task.get("task_type") or default_type)[:64],
                    str(task.get("description") or "")[:1000],
                    metadata={"after": after} if after else {},
                )
            )
    return nodes


def published_top_level(request: str) -> list[TaskNode]:
    """Return HTDAG's heuristic phases: three for a business or a SaaS product, else one generic task."""
    if "business" in request.lower() or "saas" in request.lower():
        return [
            TaskNode("spec", "design", "Create the specification"),
            TaskNode("build", "implement", "Build the core functions", metadata={"after": ["spec"]}),
            TaskNode("deploy", "deploy", "Deploy to production", metadata={"after": ["build"]}),
        ]
    return [TaskNode("task_0", DEFAULT_TYPE, request)]


def published_subtasks(task: TaskNode) -> list[TaskNode]:
    """Return HTDAG's heuristic subtasks of designs and implementations; none for other types."""
    parts = {
        "design": (("requirements", "api_call", "Gather requirements"), ("architecture", "file_write", "Architecture")),
        "implement": (("code", "file_write", "Write code"), ("test", "test_run", "Run tests")),
    }.get(task.task_type, ())
    ids = [f"{task.task_id}_{name}" for name, _, _ in parts]
    return [
        TaskNode(ids[index], type, description, metadata={"after": ids[:index]} if index else {})
        for index, (_, type, description) in enumerate(parts)
    ]

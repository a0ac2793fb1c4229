"""One planning episode: a request, the DAG so far, decisions as text, a reward whose every part is named.

The DAG begins with the request as its root. A decision decomposes one leaf or executes the plan, which ends the
episode. Whatever a reply contains, nothing raises, no limit is exceeded and the DAG stays acyclic: a part that cannot
be carried out is refused, counted and penalised, the rest is carried out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from practicum.environments.htdag import rewards
from practicum.environments.htdag.actions import HTDAGAction, ProposedTask, UnreadableAction, parse_action
from practicum.environments.htdag.executor import Execution, execute
from practicum.environments.htdag.plan_text import PROMPTS
from practicum.environments.htdag.requests import (
    ROOT,
    PlanGoal,
    child_id,
    plan_node,
    requirement_graph,
)
from practicum.environments.htdag.rewards import DecompositionResult
from practicum.environments.htdag.task_dag import CycleError, GraphError, TaskDAG, TaskNode
from practicum.environments.htdag.vocabulary import match_slot, match_type, mentioned_slots, slot_letters
from practicum.errors import UserError, did_you_mean

MAX_RECURSION_DEPTH = 5
MAX_TOTAL_TASKS = 1000
MAX_SUBTASKS_PER_UPDATE = 20
MAX_STEPS_PER_EPISODE = 50
REWARDS = ("default", "published")


@dataclass
class HTDAGState:
    """What a planner sees, and what it has done so far."""

    user_request: str
    current_dag: TaskDAG = field(default_factory=TaskDAG)
    decomposition_history: list[dict[str, Any]] = field(default_factory=list)
    llm_call_count: int = 0
    execution_time: float = 0.0
    """Simulated seconds of the executed plan; 0 before."""
    step_count: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "user_request": self.user_request,
            "dag_size": len(self.current_dag),
            "decomposition_history": list(self.decomposition_history),
            "llm_call_count": self.llm_call_count,
            "execution_time": self.execution_time,
            "step_count": self.step_count,
        }


@dataclass(frozen=True, slots=True)
class PlanningStep:
    """The answer to one decision. The reward of an episode is the sum over its steps and lies in [-2, 2]."""

    reward: float
    components: Mapping[str, float]
    done: bool
    prompt: str
    """The next prompt; "" at the end."""
    success: bool | None = None
    """Whether the request is solved; None before the end."""
    truncated: bool = False
    """Whether the limit of decisions ended the episode."""
    info: Mapping[str, Any] = field(default_factory=dict)


class PlanningEpisode:
    """A planning episode: `reset`, then `step` until `done`. Without goals nothing is checked: a plan is only made."""

    def __init__(self, reward: str = "default", prompt: str = "short", max_steps: int = MAX_STEPS_PER_EPISODE) -> None:
        for option, value, allowed in (("reward", reward, REWARDS), ("prompt", prompt, PROMPTS)):
            if value not in allowed:
                raise UserError(f"htdag has no {option} '{value}'.{did_you_mean(str(value), allowed)}")
        if max_steps < 1:
            raise UserError(f"htdag needs max_steps of at least 1, got {max_steps}.")
        self.reward, self.prompt_style, self.max_steps = reward, prompt, max_steps
        self.reset("", ())

    def reset(self, request: str, goals: Sequence[PlanGoal] = ()) -> str:
        """Begin with a request and what it needs; return the first prompt."""
        dag = TaskDAG()
        dag.add_task(TaskNode(ROOT, "request", request))
        self.state = HTDAGState(request, dag)
        self.requirement = requirement_graph(request, goals)
        self.slots = mentioned_slots(request)
        self.slot_of_letter = {letter: slot for slot, letter in slot_letters(request).items()}
        self.refused: Counter[str] = Counter()
        self.execution: Execution | None = None
        self.done = False
        self.total = 0.0
        self._refused_reward = self._steps_reward = 0.0
        return self.prompt()

    @property
    def dag(self) -> TaskDAG:
        return self.state.current_dag

    @property
    def needed_calls(self) -> int:
        """Decisions that the best plan takes: one per decomposed task, and the execution."""
        return len(self.requirement) - len(self.requirement.leaves) + 1

    def prompt(self) -> str:
        """Return the whole prompt of the next decision: request, DAG so far, number of decisions."""
        return PROMPTS[self.prompt_style](self.state.user_request, self.dag, self.state.step_count)

    def step(self, text: str, confidence: float = 1.0) -> PlanningStep:
        """Carry out one decision; after the end nothing happens."""
        if self.done:
            return PlanningStep(0.0, {}, True, "", self._success(), info=self.info())
        self.state.step_count += 1
        self.state.llm_call_count += 1
        refused_before = self.refused.total()
        try:
            action = parse_action(text, confidence)
        except UnreadableAction as error:
            self.refused["unreadable"] += 1
            self.state.decomposition_history.append({"unreadable": str(error)})
            action = None
        if action is not None:
            self.state.decomposition_history.append(action.to_dict())
            if not action.decompose_further:
                return self._end(self._penalties(refused_before), truncated=False)
            self.apply(action)
        components = self._penalties(refused_before)
        if self.state.step_count >= self.max_steps:
            return self._end(components, truncated=True)
        return self._answer(components, done=False)

    def truncate(self) -> PlanningStep:
        """End the episode because a limit that is not its own was reached; the plan so far is executed."""
        if self.done:
            return PlanningStep(0.0, {}, True, "", self._success(), info=self.info())
        return self._end({}, truncated=True)

    def apply(self, action: HTDAGAction) -> None:
        """Decompose a leaf of the DAG as far as the limits allow; count what is refused."""
        dag, parent = self.dag, action.task_id
        self.refused["unreadable"] += action.num_unreadable
        if parent not in dag:
            self.refused["unknown_task"] += 1
        elif dag.children(parent):
            self.refused["decomposed_already"] += 1
        elif not action.subtasks:
            self.refused["no_subtasks"] += 1
        elif dag.level(parent) + 1 > MAX_RECURSION_DEPTH:
            self.refused["too_deep"] += 1
        else:
            num_allowed = min(MAX_SUBTASKS_PER_UPDATE, MAX_TOTAL_TASKS - len(dag))
            self.refused["too_many"] += max(0, len(action.subtasks) - num_allowed)
            self._add(parent, action.subtasks[: max(0, num_allowed)])

    def _add(self, parent: str, proposed: Sequence[ProposedTask]) -> None:
        dag = self.dag
        inherited = str(dag[parent].metadata.get("slot", ""))
        ids: list[str | None] = []
        for position, task in enumerate(proposed, 1):
            task_id = task.task_id or child_id(parent, position)
            slot = match_slot(task.description, self.slots) if task.slot is None else self._slot(task.slot)
            type = match_type(task.description, task.task_type) or task.task_type
            node = plan_node(task_id, type, slot or inherited, task.description if task.slot is None else "")
            try:
                dag.add_task(node, parent)
                ids.append(task_id)
            except GraphError:
                self.refused["repeated_id"] += 1
                ids.append(None)
        for after, task in zip(ids, proposed, strict=True):
            if after is not None:
                for name in task.after:
                    self._add_order(name, after, ids)

    def _slot(self, name: str) -> str:
        """Return the slot that a reply in the short form names, by its letter or by itself."""
        return self.slot_of_letter.get(name, name)

    def _add_order(self, name: str, after: str, siblings: Sequence[str | None]) -> None:
        before: str | None = name if name in siblings else None
        if before is None and name.isdecimal() and len(name) < 4 and 1 <= int(name) <= len(siblings):
            before = siblings[int(name) - 1]
        elif before is None and name in self.dag:
            before = name
        try:
            self.dag.add_dependency(before or "", after)
        except CycleError:
            self.refused["cycle"] += 1
        except GraphError:
            self.refused["unknown_order"] += 1

    def result(self) -> DecompositionResult:
        """What the published reward looks at. Orders that were refused as cyclic count as cycles."""
        valid = 1 <= len(self.dag) <= MAX_TOTAL_TASKS
        cycles = self.refused["cycle"] > 0
        single = sum(len(self.dag.children(task_id)) == 1 for task_id in self.dag.task_ids)
        return DecompositionResult(
            task_completed=valid and not cycles,
            dag_valid=valid,
            has_cycles=cycles,
            decomposition_depth=self.dag.depth,
            parallel_ratio=self.dag.parallelism,
            execution_time=self.dag.makespan(),
            llm_calls=self.state.llm_call_count,
            unnecessary_steps=single,
        )

    def _penalties(self, refused_before: int) -> dict[str, float]:
        """The reward of a decision that is not the last; the default also counts what was refused."""
        if self.reward == "published":
            return {"step": rewards.STEP_REWARD}
        refused = (self.refused.total() - refused_before) * rewards.REFUSED_REWARD
        refused = max(refused, rewards.MIN_REFUSED_REWARD - self._refused_reward)
        step = max(rewards.STEP_REWARD, rewards.MIN_STEPS_REWARD - self._steps_reward)
        self._refused_reward += refused
        self._steps_reward += step
        return {"step": step, "refused": refused}

    def _end(self, components: dict[str, float], truncated: bool) -> PlanningStep:
        self.execution = execute(self.dag, self.requirement)
        self.state.execution_time = self.execution.seconds
        if self.reward == "published":
            end = (
                {"timeout": rewards.PUBLISHED_TIMEOUT_REWARD}
                if truncated
                else rewards.published_components(self.result())
            )
            components = end
        else:
            calls = self.state.llm_call_count
            components |= rewards.default_components(self.execution, calls, self.needed_calls)
            if truncated:
                components["timeout"] = rewards.TIMEOUT_REWARD
        self.done = True
        return self._answer(components, done=True, truncated=truncated)

    def _answer(self, components: dict[str, float], done: bool, truncated: bool = False) -> PlanningStep:
        """The reward of this step, cut so that the sum of the episode stays in range; `clip` is what was cut."""
        target = self.total + sum(components.values())
        total = rewards.clipped({"total": target})
        if total != target:
            components["clip"] = total - target
        reward, self.total = total - self.total, total
        prompt = "" if done else self.prompt()
        success = self._success() if done else None
        return PlanningStep(reward, components, done, prompt, success, truncated, self.info())

    def _success(self) -> bool:
        return self.execution is not None and self.execution.success

    def info(self) -> dict[str, Any]:
        """Figures of the episode so far, as JSON."""
        figures: dict[str, Any] = {
            "dag_size": len(self.dag),
            "depth": self.dag.depth,
            "parallelism": self.dag.parallelism,
            "steps": len(self.dag.leaves),
            "llm_calls": self.state.llm_call_count,
            "cycles": self.refused["cycle"],
            "refused": {kind: count for kind, count in sorted(self.refused.items()) if count},
        }
        if self.execution is not None:
            figures |= {
                "coverage": self.execution.coverage,
                "order": self.execution.order,
                "waste": self.execution.waste,
                "feasibility": self.execution.feasibility,
                "execution_time": self.execution.seconds,
                "optimal_time": self.execution.optimal_seconds,
            }
        return figures

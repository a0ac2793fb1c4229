"""Single replies to the prompts of a log, rewarded by a table: HALO's GRPO from trajectories, a contextual bandit.

Of each task's logged episodes the `top_percent` that came furthest fill a table: for every state the actions that
worked there, each with the largest progress of an episode that took it. Then the policy replies to the logged prompts,
`chains` replies each; the reward of a reply is -1 where it cannot be parsed, the table's value of its action where the
table has it, and 0 elsewhere.

An action that the table does not hold has value 0, good or not; and where a state has one action, all that can be
learnt is to take it, as SFT would. `practicum.training.logged_source` has neither limit.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from practicum.agent import Agent
from practicum.data.export import role_tools, successful_episodes
from practicum.data.state_index import failed, prompt_ids, visits
from practicum.engines.base import Generation, Sampling
from practicum.environment import DEFAULT_ROLE, Action, Observation
from practicum.errors import EngineError, UserError
from practicum.policy import Conversation, Policy
from practicum.task import Task, canonical_json, content_hash
from practicum.training.estimators import ESTIMATORS
from practicum.training.logged_source import LogStream, TrajectoryLog
from practicum.training.rollout_batch import RolloutBatch
from practicum.training.rollout_source import (
    OnEpisode,
    TaskStream,
    check_error_budget,
    group_scored,
    has_signal,
    rollout_metrics,
)
from practicum.training.settings import RLSettings
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, Trajectory, Turn, derive_seed

UNPARSABLE_REWARD = -1.0
"""The reward of a reply that cannot be parsed."""


@dataclass(frozen=True)
class LoggedState:
    """A prompt of the log and the value of each logged action."""

    task: Task
    prompt: tuple[int, ...]
    has_tools: bool
    action_values: Mapping[str, float]
    role: str = DEFAULT_ROLE

    @property
    def best_value(self) -> float:
        return max(self.action_values.values())


def action_key(action: Action) -> str:
    """Return a key of an action: its calls and content, without the reasoning and however they were written."""
    return canonical_json([[[call.name, dict(call.arguments)] for call in action.calls], action.content.strip()])


def tabulate_actions(
    log: TrajectoryLog, top_percent: float, seed: int = 0, roles: Collection[str] | None = None
) -> list[LoggedState]:
    """The states of the best episodes, in an order drawn from the seed; those without a valuable action are left out.

    A state is the task and all that the role was shown before the reply. `roles`: whose replies; None: those in
    training, as the episodes record them.
    """
    states = []
    best = successful_episodes(log.episodes, "progress_ranked", top_percent)
    for state, state_visits in visits(best, roles).items():
        values: dict[str, float] = {}
        for visit in state_visits:
            if not failed(visit.episode, visit.number) and visit.turn.reply.strip():
                key = action_key(visit.turn.action)
                values[key] = max(values.get(key, -float("inf")), visit.progress)
        if values and max(values.values()) > 0:
            episode, index = state_visits[0].episode, state_visits[0].number
            name = f"{state.key}_{state.seed}" if state.seed is not None else state.key
            task = Task(name, state.task, "train", {"history": state.history, "content": state.content})
            tools = bool(role_tools(episode, state_visits[0].turn.role))
            states.append(LoggedState(task, prompt_ids(episode, index), tools, values, state_visits[0].turn.role))
    if not states:
        raise UserError(
            f"No action below '{log.folder}' worked in an episode that came anywhere, so the table is empty; "
            "collect better episodes, or raise algorithm.offline.top_percent."
        )
    random.Random(f"bandit/{seed}").shuffle(states)
    return states


def single_action_warning(states: Sequence[LoggedState]) -> str | None:
    """A warning where states have one logged action, so that there is nothing to compare; else None."""
    num_single = sum(len(state.action_values) == 1 for state in states)
    if not num_single:
        return None
    return (
        f"{num_single} of {len(states)} logged states have a single action: there the bandit can only learn to repeat "
        "it, as SFT does; algorithm.offline.method=grpo also learns from what went wrong."
    )


class BanditSource(LogStream):
    """Samples `chains` replies to each of a step's logged prompts."""

    from_engine = True
    metric_names: Mapping[str, str] = {}

    def __init__(
        self,
        policy: TrainablePolicy,
        states: Sequence[LoggedState],
        agent: Agent,
        settings: RLSettings,
        say: Callable[[str], None] = print,
    ) -> None:
        self.estimator = ESTIMATORS[settings.adv_estimator]
        if self.estimator.needs_greedy_rollout:
            raise UserError(
                f"The bandit compares replies to one prompt; {settings.adv_estimator} needs whole greedy episodes: "
                "set algorithm.adv_estimator=grpo."
            )
        self.policy, self.agent, self.settings = policy, agent, settings
        self.states = {state.task.id: state for state in states}
        self.stream = TaskStream([state.task for state in states], settings.curriculum, settings.train_batch_size)
        self.fingerprint = content_hash([[s.task.id, list(s.prompt), dict(s.action_values)] for s in states])
        self.policies = policy.policies(agent)
        warning = single_action_warning(states)
        if warning is not None:
            say(warning)

    async def collect(self, step: int, on_episode: OnEpisode | None = None) -> RolloutBatch:
        """One episode per reply; the replies to one prompt are a group."""
        started, settings, label = time.perf_counter(), self.settings, f"step-{step}/"
        await self.policy.refresh()
        tasks = self.stream.take(settings.train_batch_size)
        async with asyncio.TaskGroup() as task_group:
            pending = [
                task_group.create_task(self._sample_reply(self.states[task.id], attempt, label))
                for task in tasks
                for attempt in range(settings.num_chains)
            ]
        episodes = [reply.result() for reply in pending]
        for episode in episodes:
            if on_episode is not None:
                on_episode(episode)
        check_error_budget(step, episodes, settings.error_budget)
        groups = group_scored(episodes, self.estimator.min_group_size)
        num_with_signal = sum(has_signal(group, {}) for group in groups)
        metrics = rollout_metrics(episodes)
        metrics["rollout/dead_groups"] = 1.0 - num_with_signal / len(groups) if groups else 1.0
        metrics["bandit/matched"] = sum(e.reward > 0 for e in episodes) / len(episodes)
        seconds = time.perf_counter() - started
        return RolloutBatch(step, episodes, groups, {}, metrics, self.stream.metrics(), seconds)

    async def _sample_reply(self, state: LoggedState, attempt: int, label: str) -> Trajectory:
        """One reply to a logged prompt, rewarded by the table."""
        seed = derive_seed("sampling", self.settings.seed, label, state.task.id, attempt)
        conversation = Conversation(self._policy_of(state.role), f"{label}{state.task.id}#{attempt}")
        conversation.context_ids = list(state.prompt)
        conversation.tools = ({},) if state.has_tools else ()  # the prompt lists them; the format checks for any
        request = conversation.request(state.task, Observation(), derive_seed(seed, 0), final=True)
        engine = conversation.policy.engine
        try:
            async with asyncio.timeout(self.agent.deadlines.generate):
                reply = await engine.generate(request)
        except (EngineError, TimeoutError) as error:
            outcome = Outcome.TIMEOUT if isinstance(error, TimeoutError) else Outcome.ENGINE_ERROR
            message = str(error) or "engine: time was up"
            return self._episode(state, attempt, label, seed, outcome, (), 0.0, message)
        finally:
            engine.end_session(request.session)
        turn = self._turn(state, conversation, reply, request.sampling)
        reward = UNPARSABLE_REWARD
        if turn.action.error is None:
            reward = state.action_values.get(action_key(turn.action), 0.0)
        outcome = Outcome.SUCCESS if reward == state.best_value else Outcome.FAILURE
        return self._episode(state, attempt, label, seed, outcome, (replace(turn, reward=reward),), reward, None)

    def _policy_of(self, role: str) -> Policy:
        agent, policy = self.agent, self.policy
        own = self.policies.get(role)
        return own or Policy(
            policy.engine, policy.renderer, agent.format, agent.sampling, role=role,
            response_format=agent.response_format,
        )  # fmt: skip

    def _turn(self, state: LoggedState, conversation: Conversation, reply: Generation, sampling: Sampling) -> Turn:
        text, action = conversation.parse(reply)
        spans = (Span(Origin.OBSERVATION, state.prompt), Span(Origin.SAMPLED, reply.ids, reply.logprobs, reply.kept))
        return Turn(
            spans, True, (), text, action, ActionSource.POLICY, reply.policy_version, reply.stop_reason, sampling.seed,
            role=state.role,
            temperature=None if sampling.temperature == self.agent.sampling.temperature else sampling.temperature,
            response_format=reply.response_format,
        )  # fmt: skip

    def _episode(
        self,
        state: LoggedState,
        attempt: int,
        label: str,
        seed: int,
        outcome: Outcome,
        turns: tuple[Turn, ...],
        reward: float,
        error: str | None,
    ) -> Trajectory:
        return Trajectory(
            task=state.task,
            attempt=attempt,
            group=f"{label}{state.task.id}",
            outcome=outcome,
            turns=turns,
            reward=reward,
            components={},
            seeds=Seeds(0, seed),
            error=error,
            provenance={"model": self.policy.loaded.source, "temperature": self.agent.sampling.temperature},
        )

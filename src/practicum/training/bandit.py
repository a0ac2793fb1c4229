"""Founding paper 002's GRPO from trajectories: a contextual bandit over the states of a log.

Of each task's logged episodes the furthest `top_percent` fill a table: for every state the actions that worked there,
each worth the furthest that an episode came that took it. Then the policy answers the logged prompts, `chains`
replies each, and a reply is paid -1 where it cannot be read, its action's worth where the table has it, 0 elsewhere.

What the table does not hold is worth 0, good or not; and where a state has one action, all that can be learnt is to
take it, as imitation would. `practicum.training.offline` has neither limit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.agent import Agent
from practicum.chat import reasoning
from practicum.data.attempts import derive_seed
from practicum.data.export import successful_episodes
from practicum.data.state_index import failed, progress, prompt_ids, visits
from practicum.engines.base import Generation, Request
from practicum.environment import Action, Observation
from practicum.errors import EngineError, UserError
from practicum.rollout import MakeEnvironment
from practicum.task import Task, canonical_json, content_hash
from practicum.training.monitor.rollout_metrics import rollout_metrics
from practicum.training.offline import TrajectoryLog, check_same_log
from practicum.training.rl_trainer import RLSettings, RLTrainer, Scored, group_scored, has_signal
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn

UNREADABLE = -1.0
"""What a reply that cannot be read is paid."""


@dataclass(frozen=True)
class LoggedState:
    """A prompt of the log and what its logged actions are worth."""

    task: Task
    prompt: tuple[int, ...]
    has_tools: bool
    worth: Mapping[str, float]

    @property
    def best(self) -> float:
        return max(self.worth.values())


def action_key(action: Action) -> str:
    """What was done, however it was written: calls and plain content, without the reasoning."""
    return canonical_json([[[call.name, dict(call.arguments)] for call in action.calls], action.content.strip()])


def tabulate(log: TrajectoryLog, top_percent: float, seed: int = 0) -> list[LoggedState]:
    """The states of the best episodes in an order drawn by the seed; one without an action worth anything is left out.

    A state is the task and all that was shown before the reply, as everywhere.
    """
    states = []
    for state, found in visits(successful_episodes(log.episodes, "progress_ranked", top_percent)).items():
        worth: dict[str, float] = {}
        for visit in found:
            if not failed(visit.episode, visit.number) and visit.turn.reply.strip():
                key = action_key(visit.turn.action)
                worth[key] = max(worth.get(key, -float("inf")), progress(visit.episode))
        if worth and max(worth.values()) > 0:
            episode, number = found[0].episode, found[0].number
            name = f"{state.key}_{state.seed}" if state.seed is not None else state.key
            task = Task(name, state.task, "train", {"history": state.history, "content": state.content})
            tools = bool(episode.provenance.get("tools"))
            states.append(LoggedState(task, prompt_ids(episode, number), tools, worth))
    if not states:
        raise UserError(
            f"No action below '{log.folder}' worked in an episode that came anywhere, so the table is empty; "
            "collect better episodes, or raise algorithm.offline.top_percent."
        )
    random.Random(f"bandit/{seed}").shuffle(states)
    return states


def degenerate(states: Sequence[LoggedState]) -> str | None:
    """The warning that is due where the log does not say what else could have been done."""
    alone = sum(len(state.worth) == 1 for state in states)
    if not alone:
        return None
    return (
        f"{alone} of {len(states)} logged states have a single action: there the bandit can only learn to repeat it, "
        "as imitation does; algorithm.offline.method=grpo also learns from what went wrong."
    )


class BanditTrainer(RLTrainer):
    """The RL loop over single replies to logged prompts."""

    def __init__(
        self,
        policy: TrainablePolicy,
        states: Sequence[LoggedState],
        make_environment: MakeEnvironment,
        agent: Agent,
        settings: RLSettings,
        say: Callable[[str], None] = print,
    ) -> None:
        super().__init__(policy, [state.task for state in states], make_environment, agent, settings)
        if self.estimator.needs_greedy_rollout:
            raise UserError(
                f"The bandit compares replies to one prompt; {settings.estimator} needs whole greedy episodes: "
                "set algorithm.adv_estimator=grpo."
            )
        self.states = {state.task.id: state for state in states}
        self.log = content_hash([[state.task.id, list(state.prompt), dict(state.worth)] for state in states])
        self.format = agent.make_format()
        warning = degenerate(states)
        if warning is not None:
            say(warning)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "log": self.log}

    def restore(self, state: dict[str, Any]) -> None:
        check_same_log(state, self.log)
        super().restore(state)

    async def _gather(
        self, step: int, on_episode: Callable[[Trajectory], None] | None
    ) -> tuple[list[Trajectory], Scored, dict[str, float], dict[str, float]]:
        settings, label = self.settings, f"step-{step}/"
        await self.policy.roll_out([], self.make_environment, self.agent)  # the engine takes the weights over
        tasks = self.stream.take(settings.tasks_per_step)
        async with asyncio.TaskGroup() as together:
            asked = [
                together.create_task(self._answer(self.states[task.id], number, label))
                for task in tasks
                for number in range(settings.chains)
            ]
        episodes = [one.result() for one in asked]
        for episode in episodes:
            if on_episode is not None:
                on_episode(episode)
        self._check_errors(step, episodes)
        groups = group_scored(episodes, self.estimator.min_group_size)
        alive = sum(has_signal(group, {}) for group in groups)
        metrics = rollout_metrics(episodes)
        metrics["rollout/dead_groups"] = 1.0 - alive / len(groups) if groups else 1.0
        metrics["bandit/matched"] = sum(e.reward > 0 for e in episodes) / len(episodes)
        return episodes, groups, {}, metrics

    async def _answer(self, state: LoggedState, number: int, label: str) -> Trajectory:
        """One reply to a logged prompt, paid by the table."""
        seed = derive_seed("sampling", self.settings.seed, label, state.task.id, number)
        sampling = self.agent.sampling.with_seed(derive_seed(seed, 0))
        session = f"{label}{state.task.id}#{number}"
        request = Request(state.prompt, sampling, state.task, Observation(), (), session=session)
        try:
            async with asyncio.timeout(self.agent.deadlines.generate):
                reply = await self.policy.engine.generate(request)
        except (EngineError, TimeoutError) as error:
            outcome = Outcome.TIMEOUT if isinstance(error, TimeoutError) else Outcome.ENGINE_ERROR
            return self._episode(state, number, label, seed, outcome, (), 0.0, str(error) or "engine: time was up")
        finally:
            self.policy.engine.end_session(session)
        action, turn = self._read(state, reply, sampling.seed)
        paid = UNREADABLE if action.error is not None else state.worth.get(action_key(action), 0.0)
        outcome = Outcome.SUCCESS if paid == state.best else Outcome.FAILURE
        return self._episode(state, number, label, seed, outcome, (turn,), paid, None)

    def _read(self, state: LoggedState, reply: Generation, seed: int) -> tuple[Action, Turn]:
        text = self.policy.renderer.decode(reply.ids)
        divided = reasoning.split(text)
        if divided is None:
            action = Action(text, error=f"the {reasoning.OPEN} needs its {reasoning.CLOSE}.")
        else:
            action = self.format.parse(divided[1], state.has_tools)
        if reply.stop_reason is StopReason.LENGTH and not action.calls and action.error is None:
            action = Action(text, error=f"it was cut off after {len(reply.ids)} tokens; be shorter.")
        spans = (Span(Origin.OBSERVATION, state.prompt), Span(Origin.SAMPLED, reply.ids, reply.logprobs))
        turn = Turn(
            spans, True, (), text, action, ActionSource.POLICY, reply.policy_version, reply.stop_reason, seed
        )  # fmt: skip
        return action, turn

    def _episode(
        self,
        state: LoggedState,
        number: int,
        label: str,
        seed: int,
        outcome: Outcome,
        turns: tuple[Turn, ...],
        paid: float,
        error: str | None,
    ) -> Trajectory:
        return Trajectory(
            task=state.task,
            attempt=number,
            group=f"{label}{state.task.id}",
            outcome=outcome,
            turns=turns,
            reward=paid,
            components={},
            seeds=Seeds(0, seed),
            error=error,
            provenance={"model": self.policy.loaded.source, "temperature": self.agent.sampling.temperature},
        )

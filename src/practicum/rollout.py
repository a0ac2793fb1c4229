"""The agent loop: render, generate, parse, step, until an episode ends in a typed outcome.

Many episodes run at once over one engine. An episode that fails fails alone: whatever its
environment, tool, reward or engine raises becomes its own outcome and nothing else.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from practicum.agent import Agent, ExternalAgent
from practicum.chat.console import EpisodeWatcher
from practicum.chat.renderer import Renderer
from practicum.engines.base import Engine, Generation, SampledToken
from practicum.environment import (
    DEFAULT_ROLE,
    Action,
    ChatModel,
    Environment,
    Message,
    Observation,
    Step,
)
from practicum.errors import ContextFull, EngineError, JudgeError, UserError, describe_exception, place_of, traceback_of
from practicum.policy import Conversation, Policy
from practicum.registry import make_format
from practicum.resources import NO_RESOURCES, RunResources, shared_by
from practicum.task import canonical_json
from practicum.tools.base import start_timing, timed_step, tool_seconds
from practicum.trajectory import (
    EXTERNAL_AGENT,
    TRAIN_ROLES,
    Attempt,
    Origin,
    Outcome,
    Span,
    StopReason,
    Trajectory,
    Turn,
    continued_turns,
    derive_seed,
)
from practicum.utils.concurrency import Deadline, with_timer
from practicum.utils.garbage_collection import FREEZE_GC_MIN_EPISODES, freeze_gc

WRITES = "writes"
"""Key of an episode's provenance: what it wrote to shared resources, as pairs of name and value."""
MakeEnvironment = Callable[[], Environment]


def with_models(make_environment: MakeEnvironment, models: Mapping[str, ChatModel]) -> MakeEnvironment:
    """Return a function whose environments have models to call."""

    def make() -> Environment:
        environment = make_environment()
        environment.models = models
        return environment

    return make


def agent_policy(agent: Agent, engine: Engine, renderer: Renderer) -> Policy:
    """Return the policy of the roles that have none of their own."""
    return Policy(
        engine, renderer, agent.format, agent.sampling, thoughts=agent.thoughts,
        response_format=agent.response_format,
    )  # fmt: skip


class AgentTimeout(Exception):
    """A deadline expired while programs of the agent ran: the agent has failed, the environment has not."""


class Episode:
    """One run of the agent loop. `turns` holds what is recorded so far; `policies` are those of roles that have one of
    their own, all other roles act with `agent`, `engine` and `renderer` (`policy`, where it was made before)."""

    def __init__(
        self,
        attempt: Attempt,
        make_environment: MakeEnvironment,
        agent: Agent,
        engine: Engine,
        renderer: Renderer,
        watcher: EpisodeWatcher | None = None,
        policies: Mapping[str, Policy] | None = None,
        provenance: Mapping[str, Any] | None = None,
        resources: RunResources | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.attempt, self.engine, self.provenance = attempt, engine, provenance
        self.run_resources = resources if resources is not None else RunResources()
        self.resources = NO_RESOURCES
        """What this episode shares with others."""
        self.watcher = watcher
        self.make_environment = make_environment
        self.agent = agent
        self.policy = policy or agent_policy(agent, engine, renderer)
        self.policies = policies or {}
        self.session = f"{attempt.group}#{attempt.number}#{attempt.seeds.sampling}"
        self.conversations: dict[str, Conversation] = {}
        """What each role was shown, by its name."""
        self.turns: list[Turn] = []
        self.closing: tuple[Message, ...] = ()
        self.phase = "reset"
        self.agent_seconds = 0.0
        """Seconds in which programs of the agent ran."""
        self.traceback: str | None = None
        """Traceback of the exception that ended the episode."""
        self.train_roles = agent.train_roles
        self._environment: Environment | None = None

    @property
    def environment(self) -> Environment:
        assert self._environment is not None, "the environment is made when the episode begins"
        return self._environment

    async def close(self) -> None:
        environment, self._environment = self._environment, None  # the environment refers to the episode: no cycle
        if environment is not None:
            await environment.close()

    async def run(self) -> tuple[Outcome, str | None]:
        """Run to the end and return the outcome, with the error where there was one."""
        try:
            await self._make_environment()
            async with asyncio.timeout(self.agent.deadlines.episode):
                outcome = await self._run_turns()
            if self.resources is not NO_RESOURCES:
                await self.resources.check()  # an agent whose browser crashed has not failed
            return outcome, None
        except AgentTimeout as error:
            return Outcome.FAILURE, str(error)
        except TimeoutError as error:
            if self.agent_seconds > self.agent.deadlines.episode / 2:
                return Outcome.FAILURE, f"the agent's own programs took {self.agent_seconds:.0f} s of the episode"
            return Outcome.TIMEOUT, str(error) or f"{self.phase}: the episode's time was up"
        except asyncio.CancelledError:
            return Outcome.CANCELLED, "cancelled"
        except EngineError as error:
            return Outcome.ENGINE_ERROR, str(error)
        except JudgeError as error:
            self.traceback = traceback_of(error) if error.__cause__ is not None else None
            location = place_of(error) if error.__cause__ is not None else ""
            return Outcome.JUDGE_ERROR, f"{error} ({location})" if location else str(error)
        except UserError:
            raise  # a wrong setting is wrong for every episode: stop with its message
        except Exception as error:  # whatever an environment raises ends its own episode only
            self.traceback = traceback_of(error)
            return Outcome.ENV_ERROR, f"{self.phase}: {describe_exception(error)}"
        finally:
            for conversation in self.conversations.values():
                conversation.policy.engine.end_session(conversation.session)

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools of the role that acted first."""
        return next((conversation.tools for conversation in self.conversations.values()), ())

    def _tools_of_other_roles(self) -> dict[str, list[dict[str, Any]]]:
        """The tools of the roles that did not act first, of those that have any."""
        others = list(self.conversations.items())[1:]
        return {role: [dict(tool) for tool in own.tools] for role, own in others if own.tools}

    def conversation(self, role: str) -> Conversation:
        """What a role was shown so far; a role without a policy of its own acts with the agent's."""
        if role not in self.conversations:
            session = self.session if role == DEFAULT_ROLE else f"{self.session}/{role}"
            policy = self.policies.get(role, self.policy)
            if policy.role != role:
                policy = replace(policy, role=role)
            self.conversations[role] = Conversation(policy, session)
        return self.conversations[role]

    async def _make_environment(self) -> None:
        """Make the environment and open what it shares with others; that time is not the episode's."""
        self._environment = self.make_environment()
        self._environment.trajectory_so_far = self.trajectory  # type: ignore[method-assign]
        if self.agent.deadlines.tool is not None:
            self._environment.tool_seconds = self.agent.deadlines.tool
        if self.agent.train_roles is None and self._environment.roles != (DEFAULT_ROLE,):
            self.train_roles = self._environment.roles[:1]
        resources = self.run_resources.bind(self._environment.make_resources)
        if resources is not NO_RESOURCES:
            self.phase = "resources"
            self.resources = self._environment.resources = resources
            await resources.ready(self._environment.resource_names(self.attempt.task))
            self.phase = "reset"

    async def _run_turns(self) -> Outcome:
        deadlines, task, seeds = self.agent.deadlines, self.attempt.task, self.attempt.seeds
        resetting = self.environment.reset(task, seeds.environment)
        observation = await Deadline(deadlines.reset, "environment reset").of(resetting)
        check_returned("reset", observation, Observation)
        if self.agent.external is not None:
            return await self._run_external(self.agent.external, observation)
        num_left, counted = self.agent.max_turns, True
        while num_left > 0:
            counted = observation.counted or not counted
            num_left -= counted
            seed, last = derive_seed(seeds.sampling, len(self.turns)), num_left == 0
            if observation.action is not None:
                action = self._record_environment_action(observation, observation.action, seed)
            else:
                role = self.conversation(observation.role)
                if role.policy.max_turns is not None and role.num_turns >= role.policy.max_turns:
                    return await self._truncate(observation)
                try:
                    action, context_full = await self._reply(role, observation, seed, last)
                except ContextFull:
                    if not self.turns:
                        raise  # a first prompt that does not fit is the task's fault, not the agent's
                    return await self._truncate(observation)
                last = last or context_full
            if action.error is not None:
                step = Step(role.error_observation(action.error), reward=self.environment.invalid_reward)
            else:
                working = self._within_step("environment step", self.environment.step(action))
                step = await timed_step([call.name for call in action.calls], working)
                check_returned("step", step, Step)
            self._add_to_last_turn(step)
            if last and not step.terminated and not step.truncated:
                return await self._truncate(step.observation)
            self.closing = step.observation.messages
            if step.terminated:
                success = step.success if step.success is not None else step.reward > 0
                return Outcome.SUCCESS if success else Outcome.FAILURE
            if step.truncated:
                return Outcome.TRUNCATED
            observation = step.observation
        raise UserError("agent.max_turns must be at least 1.")

    async def _reply(self, role: Conversation, observation: Observation, seed: int, final: bool) -> tuple[Action, bool]:
        """Ask a role's policy and record its turn; return the action and whether the context is full with it."""
        reason = self._branch_reason(role, observation)  # the prompt changes what it depends on
        spans, restart = role.next_prompt(observation, self.turns)
        self.phase = "generate"
        if self.watcher is not None:
            self.watcher.on_messages(observation.messages)
        request = role.request(self.attempt.task, observation, seed, final)
        if self.watcher is not None:
            request = replace(request, on_tokens=self._show_tokens)
        waiting = role.policy.engine.generate(request)
        generation = await Deadline(self.agent.deadlines.generate, "engine").of(waiting)
        self.phase = "step"
        action = self._record_turn(role, spans, restart, observation, generation, seed, reason)
        return action, generation.stop_reason is StopReason.CONTEXT

    def _record_environment_action(self, observation: Observation, action: Action, seed: int) -> Action:
        """Append the turn of an action that the environment chose itself: no prompt, no tokens, nothing to train."""
        role = observation.role
        text = make_format(self.policies.get(role, self.policy).format).write(action, bool(action.calls))
        self.phase, action = "step", replace(action, text=text, turn=len(self.turns))
        self.turns.append(
            Turn((), True, observation.messages, text, action, observation.source, 0, StopReason.END, seed, role=role)
        )
        if self.watcher is not None:
            self.watcher.on_messages(observation.messages)
            self.watcher.on_reply(self.turns[-1])
        return action

    async def _run_external(self, external: ExternalAgent, observation: Observation) -> Outcome:
        """Let the agent's own program act; what its requests sampled is the record."""
        from practicum.serving.episode_recorder import EpisodeRecorder  # a web server: not for every run
        from practicum.serving.external_agent import ExternalRun

        policies = {role: self.conversation(role).policy for role in self.environment.roles}
        recorder = EpisodeRecorder(policies, self.attempt.seeds.sampling, self.session, external, self.agent.max_turns)
        run = ExternalRun(recorder)
        self.phase = "agent"
        try:
            await run.run(external, self.attempt.task.id, observation)
        finally:
            self.turns += recorder.turns()
            for role, tools in recorder.tools.items():
                self.conversations[role].tools = tools
        if not self.turns:
            run.check_ended_well()
            raise JudgeError("the agent made no model call: there is nothing to score")
        if external.reward_from != "environment":
            step = run.reported_step(external)
        else:
            run.check_ended_well()
            action = replace(self.turns[-1].action, turn=len(self.turns) - 1)
            if recorder.answer is not None:
                action = Action(recorder.answer, recorder.answer, turn=action.turn)
            if action.calls or action.error is not None:  # it ended without an answer
                return await self._truncate(Observation())
            step = await self._within_step("environment step", self.environment.step(action))
            check_returned("step", step, Step)
        self._add_to_last_turn(step)
        self.closing = step.observation.messages
        if not step.terminated:
            return Outcome.TRUNCATED if step.truncated else await self._truncate(step.observation)
        return Outcome.SUCCESS if (step.reward > 0 if step.success is None else step.success) else Outcome.FAILURE

    def _show_tokens(self, tokens: Sequence[SampledToken]) -> None:
        if self.watcher is not None:
            for token in tokens:
                self.watcher.on_token(token.id)

    async def _within_step(self, subject: str, answer: Awaitable[Step]) -> Step:
        """Await an answer of the environment; AgentTimeout if the agent's own programs have used up the time for it."""
        deadline = Deadline(self.agent.deadlines.step, subject)
        try:
            return await deadline.of(answer)
        except TimeoutError as error:
            if deadline.expired_on_agent:
                raise AgentTimeout(f"the agent's own programs took {deadline.agent_seconds:.0f} s: {error}") from None
            raise
        finally:
            self.agent_seconds += deadline.agent_seconds

    async def _truncate(self, observation: Observation) -> Outcome:
        """End the episode at one of the loop's own limits; the environment may still score what was done.

        The observation that the agent was to answer next is recorded: a critic values the episode's rest there.
        """
        self.phase = "truncate"
        step = await self._within_step("environment truncate", self.environment.truncate())
        self._add_to_last_turn(step)
        self.closing = (*observation.messages, *step.observation.messages)
        return Outcome.TRUNCATED

    def _branch_reason(self, role: Conversation, observation: Observation) -> str:
        """Why the next prompt of a role does not go on from its last turn; "" where it does, or is the role's first."""
        continues = observation.continues
        if observation.branch_reason:
            return observation.branch_reason
        if role.last_turn is None or (not observation.fresh and continues in (None, role.last_turn)):
            return ""
        parents = continued_turns(self.turns)
        for turn, parent in zip(self.turns, parents, strict=True):
            if turn.role == observation.role and parent == continues and turn.messages == observation.messages:
                return "another reply to the same prompt"
        return "fresh prompt" if observation.fresh else f"other messages after turn {continues}"

    def _record_turn(
        self,
        role: Conversation,
        spans: tuple[Span, ...],
        restart: bool,
        observation: Observation,
        generation: Generation,
        seed: int,
        branch_reason: str,
    ) -> Action:
        """Parse the reply, append its turn without a reward, and return the action."""
        index = len(self.turns)
        text, action = role.parse(generation, index)
        if generation.sampled:
            reply = Span(Origin.SAMPLED, generation.ids, generation.logprobs, generation.kept)
        else:
            reply = Span(Origin.OBSERVATION, generation.ids)
        role.add_reply(generation.ids, text, index)
        temperature = role.policy.sampling.temperature
        self.turns.append(
            Turn(
                spans=(*spans, reply),
                restart=restart,
                messages=observation.messages,
                reply=text,
                action=action,
                source=generation.source,
                policy_version=generation.policy_version,
                stop_reason=generation.stop_reason,
                seed=seed,
                role=observation.role,
                continues=None if observation.fresh else observation.continues,
                temperature=None if temperature == self.agent.sampling.temperature else temperature,
                branch_reason=branch_reason,
                response_format=generation.response_format,
            )
        )
        if self.watcher is not None:
            self.watcher.on_reply(self.turns[-1])
        return action

    def trajectory(self, outcome: Outcome = Outcome.CANCELLED, error: str | None = None) -> Trajectory:
        """Return the record of the episode as far as it has come."""
        agent, sampling, trained, tools = self.agent, self.agent.sampling, self.train_roles, self.tools
        role_tools = self._tools_of_other_roles() if len(self.conversations) > 1 else {}
        components: dict[str, float] = {}
        for turn in self.turns:
            for name, value in turn.components.items():
                components[name] = components.get(name, 0.0) + value
        return Trajectory(
            task=self.attempt.task,
            attempt=self.attempt.number,
            group=self.attempt.group or self.attempt.task.id,
            outcome=outcome,
            turns=tuple(self.turns),
            reward=math.fsum([turn.reward for turn in self.turns]),
            components=components,
            seeds=self.attempt.seeds,
            closing=self.closing,
            error=error,
            traceback=self.traceback,
            tool_seconds=tool_seconds(),
            provenance={"engine": self.engine.name, "format": agent.format, "max_turns": agent.max_turns,
                        "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p,
                        **({"min_p": sampling.min_p} if sampling.min_p else {}),
                        "max_tokens": sampling.max_tokens,
                        **({"tools": [dict(tool) for tool in tools]} if tools else {}),
                        **({"role_tools": role_tools} if role_tools else {}),
                        **({WRITES: list(map(list, writes))} if (writes := self.resources.writes) else {}),
                        **({EXTERNAL_AGENT: agent.external.command} if agent.external else {}),
                        **({TRAIN_ROLES: list(trained)} if trained and trained != (DEFAULT_ROLE,) else {}),
                        **(self.provenance or {})},
        )  # fmt: skip

    def _add_to_last_turn(self, step: Step) -> None:
        """Add a step's reward, components, progress and info to the last turn; raise ValueError if it has NaN or
        infinity, or info that is not JSON."""
        numbers = (("reward", step.reward), ("progress", step.progress or 0.0))
        for name, value in (*numbers, *step.components.items(), *step.role_rewards.items()):
            if not math.isfinite(value):
                raise ValueError(f"the environment gave the {name} {value}")
        try:
            if step.info:
                canonical_json(dict(step.info))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the environment's info cannot be written as JSON: {error}") from None
        turn = self.turns[-1]
        if step.reward or step.components or step.info or step.role_rewards or step.progress != turn.progress:
            self.turns[-1] = turn.with_step(
                reward=turn.reward + float(step.reward),
                components=_summed(turn.components, step.components),
                progress=None if step.progress is None else float(step.progress),
                info={**turn.info, **step.info},
                role_rewards=_summed(turn.role_rewards, step.role_rewards),
            )
        if self.watcher is not None:
            self.watcher.on_step(step)


def _summed(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Numbers by name, those of the same name added."""
    result = dict(first)
    for name, value in second.items():
        result[name] = result.get(name, 0.0) + float(value)
    return result


def check_returned(method: str, value: object, expected: type) -> None:
    """Raise TypeError if a method of an environment returned something else than it must."""
    if not isinstance(value, expected):
        article = "an" if expected.__name__[0] in "AEIOU" else "a"
        raise TypeError(f"`{method}` returned a {type(value).__name__}; it must return {article} {expected.__name__}")
    observation = value.observation if isinstance(value, Step) else value
    for message in observation.messages if isinstance(observation, Observation) else ():
        if not isinstance(message, Message):
            raise TypeError(f"an Observation's messages must be Message objects, not {type(message).__name__}")


async def run_episode(
    attempt: Attempt,
    make_environment: MakeEnvironment,
    agent: Agent,
    engine: Engine,
    renderer: Renderer,
    provenance: Mapping[str, Any] | None = None,
    watcher: EpisodeWatcher | None = None,
    policies: Mapping[str, Policy] | None = None,
    resources: RunResources | None = None,
    policy: Policy | None = None,
) -> Trajectory:
    """Run one episode and return its record. Only `UserError` is raised: other failures are outcomes.

    `resources` are those of a run; without any, the episode opens and closes what its environment needs. `policy` is
    the `agent_policy` of the arguments, where many episodes share it.
    """
    error_on_close: str | None = None
    start_timing()
    episode = Episode(
        attempt, make_environment, agent, engine, renderer, watcher, policies, provenance, resources, policy
    )
    try:
        outcome, error = await episode.run()
    finally:
        try:
            await with_timer(episode.close(), asyncio.timeout(agent.deadlines.step))
        except Exception as fault:  # the episode is over; a failing close must not change its outcome
            error_on_close = f"close: {type(fault).__name__}: {fault}"
        if resources is None:
            await episode.run_resources.close()
    if outcome.scored:
        episode.run_resources.collect(attempt, episode.resources.writes)
    trajectory = episode.trajectory(outcome, error or error_on_close)
    if watcher is not None:
        watcher.on_end(outcome, error, trajectory.reward)
    return trajectory


async def run_episodes(
    planned: Iterable[Attempt],
    make_environment: MakeEnvironment,
    agent: Agent,
    engine: Engine,
    renderer: Renderer,
    *,
    concurrency: int | asyncio.Semaphore = 64,
    retries: int = 0,
    provenance: Mapping[str, Any] | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
    watcher: EpisodeWatcher | None = None,
    policies: Mapping[str, Policy] | None = None,
    resources: RunResources | None = None,
) -> list[Trajectory]:
    """Run many episodes, at most `concurrency` at once, and return them in the order of `planned`.

    An episode that ends unscored is run again up to `retries` times. `on_done` is called with each result as it
    comes; `watcher` follows the first episode. `policies` are those of roles that do not act with `engine`.
    `resources` are those of a run; without any, what the environment needs is opened for these episodes. A semaphore as
    `concurrency` limits the episodes of all rollouts that share it, those that came first before others.
    """
    planned = list(planned)
    if len(planned) >= FREEZE_GC_MIN_EPISODES:
        freeze_gc(engine)
    semaphore = asyncio.Semaphore(concurrency) if isinstance(concurrency, int) else concurrency
    policy = agent_policy(agent, engine, renderer)

    async def run_one(attempt: Attempt) -> Trajectory:
        async with semaphore:
            result = await run_with_retries(
                attempt, make_environment, agent, engine, renderer, retries, provenance,
                watcher if attempt is planned[0] else None, policies, shared, policy,
            )  # fmt: skip
            if on_done is not None:
                on_done(result)
            return result

    async with shared_by(planned, resources, agent.deadlines.open) as shared, asyncio.TaskGroup() as group:
        running = [group.create_task(run_one(attempt)) for attempt in planned]
    return [task.result() for task in running]


async def stream_episodes(
    planned: Sequence[Attempt],
    make_environment: MakeEnvironment,
    agent: Agent,
    engine: Engine,
    renderer: Renderer,
    *,
    on_done: Callable[[Trajectory], None],
    concurrency: int = 64,
    retries: int = 0,
    provenance: Mapping[str, Any] | None = None,
    watcher: EpisodeWatcher | None = None,
    policies: Mapping[str, Policy] | None = None,
    resources: RunResources | None = None,
) -> None:
    """Run many episodes as `run_episodes` does, but keep none: `on_done` gets each one as it ends, in any order."""
    if len(planned) >= FREEZE_GC_MIN_EPISODES:
        freeze_gc(engine)
    waiting, policy = iter(planned), agent_policy(agent, engine, renderer)

    async def run_next() -> None:
        for attempt in waiting:
            result = await run_with_retries(
                attempt, make_environment, agent, engine, renderer, retries, provenance,
                watcher if attempt is planned[0] else None, policies, shared, policy,
            )  # fmt: skip
            on_done(result)

    async with shared_by(planned, resources, agent.deadlines.open) as shared, asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(planned))):
            group.create_task(run_next())


async def run_with_retries(
    attempt: Attempt,
    make_environment: MakeEnvironment,
    agent: Agent,
    engine: Engine,
    renderer: Renderer,
    retries: int,
    provenance: Mapping[str, Any] | None,
    watcher: EpisodeWatcher | None,
    policies: Mapping[str, Policy] | None = None,
    resources: RunResources | None = None,
    policy: Policy | None = None,
) -> Trajectory:
    """Run one episode, again while it ends unscored and retries are left. One that is stopped half-way is not a result
    to keep: it raises CancelledError."""
    for retries_left in range(retries, -1, -1):
        result = await run_episode(
            attempt, make_environment, agent, engine, renderer, provenance, watcher, policies, resources, policy
        )
        if result.scored or result.outcome is Outcome.CANCELLED or retries_left == 0:
            break
    if result.outcome is Outcome.CANCELLED:
        raise asyncio.CancelledError
    return result

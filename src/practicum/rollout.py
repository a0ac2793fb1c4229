"""The agent loop: render, generate, parse, step, until an episode ends in a typed outcome.

Many episodes run at once over one engine. An episode that fails fails alone: whatever its
environment, tool, reward or engine raises becomes its own outcome and nothing else.
"""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from practicum.agent import Agent
from practicum.chat.console import EpisodeWatcher
from practicum.chat.renderer import Renderer
from practicum.engines.base import Engine, Generation
from practicum.environment import DEFAULT_ROLE, Action, ChatModel, Environment, Message, Observation, Step
from practicum.errors import (
    ContextFull,
    EngineError,
    JudgeError,
    UserError,
    describe_exception,
    place_of,
    traceback_of,
)
from practicum.policy import Conversation, Policy
from practicum.task import canonical_json
from practicum.trajectory import Attempt, Origin, Outcome, Span, StopReason, Trajectory, Turn, derive_seed
from practicum.utils.concurrency import Deadline, with_timer

FREEZE_GC_MIN_EPISODES = 32
"""With fewer episodes at once, freezing the garbage collector costs more than it saves."""
_gc_frozen_for: weakref.WeakSet[Engine] = weakref.WeakSet()

MakeEnvironment = Callable[[], Environment]


def with_models(make_environment: MakeEnvironment, models: Mapping[str, ChatModel]) -> MakeEnvironment:
    """Return a function whose environments have models to ask."""

    def make() -> Environment:
        environment = make_environment()
        environment.models = models
        return environment

    return make


class AgentTimeout(Exception):
    """A deadline expired while programs of the agent ran: the agent has failed, the environment has not."""


class Episode:
    """One run of the agent loop. `turns` holds what is recorded so far; `policies` are those of roles that have one of
    their own, all other roles act with `agent`, `engine` and `renderer`."""

    def __init__(
        self,
        attempt: Attempt,
        make_environment: MakeEnvironment,
        agent: Agent,
        engine: Engine,
        renderer: Renderer,
        watcher: EpisodeWatcher | None = None,
        policies: Mapping[str, Policy] | None = None,
    ) -> None:
        self.attempt = attempt
        self.watcher = watcher
        self.make_environment = make_environment
        self.agent = agent
        self.policy = Policy(engine, renderer, agent.format, agent.sampling, thoughts=agent.thoughts)
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
        self._environment: Environment | None = None

    @property
    def environment(self) -> Environment:
        assert self._environment is not None, "the environment is made when the episode begins"
        return self._environment

    async def close(self) -> None:
        if self._environment is not None:
            await self._environment.close()

    async def run(self) -> tuple[Outcome, str | None]:
        """Run to the end and return the outcome, with the error where there was one."""
        try:
            async with asyncio.timeout(self.agent.deadlines.episode):
                return await self._run_turns(), None
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
            place = place_of(error) if error.__cause__ is not None else ""
            return Outcome.JUDGE_ERROR, f"{error} ({place})" if place else str(error)
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

    def conversation(self, role: str) -> Conversation:
        """What a role was shown so far; a role without a policy of its own acts with the agent's."""
        if role not in self.conversations:
            session = self.session if role == DEFAULT_ROLE else f"{self.session}/{role}"
            policy = replace(self.policies.get(role, self.policy), role=role)
            self.conversations[role] = Conversation(policy, session)
        return self.conversations[role]

    async def _run_turns(self) -> Outcome:
        deadlines = self.agent.deadlines
        task, seeds = self.attempt.task, self.attempt.seeds
        self._environment = self.make_environment()
        observation = await Deadline(deadlines.reset, "environment reset").of(
            self.environment.reset(task, seeds.environment)
        )
        check_returned("reset", observation, Observation)
        for index in range(self.agent.max_turns):
            role = self.conversation(observation.role)
            if role.policy.max_turns is not None and role.num_turns >= role.policy.max_turns:
                return await self._truncate(observation)
            spans, restart = role.next_prompt(observation, self.turns)
            self.phase = "generate"
            if self.watcher is not None:
                self.watcher.on_messages(observation.messages)
            seed, final = derive_seed(seeds.sampling, index), index + 1 == self.agent.max_turns
            try:
                request = role.request(task, observation, seed, final)
                if self.watcher is not None:
                    request = replace(request, on_token=self.watcher.on_token)
                generation = await Deadline(deadlines.generate, "engine").of(role.policy.engine.generate(request))
            except ContextFull:
                if not self.turns:
                    raise  # a first prompt that does not fit is the task's fault, not the agent's
                return await self._truncate(observation)
            self.phase = "step"
            action = self._record_turn(role, spans, restart, observation, generation, seed)
            if action.error is not None:
                step = Step(role.error_observation(action.error), reward=self.environment.invalid_reward)
            else:
                step = await self._within_step("environment step", self.environment.step(action))
                check_returned("step", step, Step)
            last = final or generation.stop_reason is StopReason.CONTEXT
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

    def _record_turn(
        self,
        role: Conversation,
        spans: tuple[Span, ...],
        restart: bool,
        observation: Observation,
        generation: Generation,
        seed: int,
    ) -> Action:
        """Parse the reply, append its turn without a reward, and return the action."""
        text, action = role.parse(generation)
        index, policy = len(self.turns), role.policy
        if generation.sampled:
            reply = Span(Origin.SAMPLED, generation.ids, generation.logprobs)
        else:
            reply = Span(Origin.OBSERVATION, generation.ids)
        role.add_reply(generation.ids, text, index)
        temperature = policy.sampling.temperature
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
                continues=None if restart else observation.continues,
                temperature=None if temperature == self.agent.sampling.temperature else temperature,
            )
        )
        if self.watcher is not None:
            self.watcher.on_reply(self.turns[-1])
        return replace(action, turn=index)

    def _add_to_last_turn(self, step: Step) -> None:
        """Add a step's reward, components, progress and info to the last turn; raise ValueError if it has NaN or
        infinity, or info that is not JSON."""
        numbers = {"reward": step.reward, "progress": step.progress or 0.0, **step.components, **step.role_rewards}
        for name, value in numbers.items():
            if not math.isfinite(value):
                raise ValueError(f"the environment gave the {name} {value}")
        try:
            if step.info:
                canonical_json(dict(step.info))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the environment's info cannot be written as JSON: {error}") from None
        turn = self.turns[-1]
        self.turns[-1] = replace(
            turn,
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
) -> Trajectory:
    """Run one episode and return its record. Only `UserError` is raised: other failures are outcomes."""
    error_on_close: str | None = None
    episode = Episode(attempt, make_environment, agent, engine, renderer, watcher, policies)
    try:
        outcome, error = await episode.run()
    finally:
        try:
            await with_timer(episode.close(), asyncio.timeout(agent.deadlines.step))
        except Exception as fault:  # the episode is over; a failing close must not change its outcome
            error_on_close = f"close: {type(fault).__name__}: {fault}"
    components: dict[str, float] = {}
    for turn in episode.turns:
        for name, value in turn.components.items():
            components[name] = components.get(name, 0.0) + value
    reward = math.fsum(turn.reward for turn in episode.turns)
    if watcher is not None:
        watcher.on_end(outcome, error, reward)
    return Trajectory(
        task=attempt.task,
        attempt=attempt.number,
        group=attempt.group or attempt.task.id,
        outcome=outcome,
        turns=tuple(episode.turns),
        reward=reward,
        components=components,
        seeds=attempt.seeds,
        closing=episode.closing,
        error=error or error_on_close,
        traceback=episode.traceback,
        provenance={"engine": engine.name, "format": agent.format, "max_turns": agent.max_turns,
                    "temperature": agent.sampling.temperature, "top_k": agent.sampling.top_k,
                    "top_p": agent.sampling.top_p, "max_tokens": agent.sampling.max_tokens,
                    **({"tools": [dict(tool) for tool in episode.tools]} if episode.tools else {}),
                    **(provenance or {})},
    )  # fmt: skip


def freeze_gc(engine: Engine) -> None:
    """Exclude the objects that exist now from garbage collection, once per engine.

    When an engine's first episodes begin, about a million objects (modules, a model) exist that stay as long as the
    engine does. Episodes trigger the collector several times per training step; it need not traverse these each time.
    """
    try:
        if engine in _gc_frozen_for:
            return
        _gc_frozen_for.add(engine)
    except TypeError:  # an engine without weak references would be frozen for on every call
        return
    gc.unfreeze()
    gc.collect()
    gc.freeze()


async def run_episodes(
    planned: Iterable[Attempt],
    make_environment: MakeEnvironment,
    agent: Agent,
    engine: Engine,
    renderer: Renderer,
    *,
    concurrency: int = 64,
    retries: int = 0,
    provenance: Mapping[str, Any] | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
    watcher: EpisodeWatcher | None = None,
    policies: Mapping[str, Policy] | None = None,
) -> list[Trajectory]:
    """Run many episodes, at most `concurrency` at once, and return them in the order of `planned`.

    An episode that ends unscored is run again up to `retries` times. `on_done` is called with each result as it
    comes; `watcher` follows the first episode. `policies` are those of roles that do not act with `engine`.
    """
    planned = list(planned)
    if len(planned) >= FREEZE_GC_MIN_EPISODES:
        freeze_gc(engine)
    semaphore = asyncio.Semaphore(concurrency)

    async def run_one(attempt: Attempt) -> Trajectory:
        async with semaphore:
            result = await run_with_retries(
                attempt, make_environment, agent, engine, renderer, retries, provenance,
                watcher if attempt is planned[0] else None, policies,
            )  # fmt: skip
            if on_done is not None:
                on_done(result)
            return result

    async with asyncio.TaskGroup() as group:
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
) -> None:
    """Run many episodes as `run_episodes` does, but keep none: `on_done` gets each one as it ends, in any order."""
    if len(planned) >= FREEZE_GC_MIN_EPISODES:
        freeze_gc(engine)
    waiting = iter(planned)

    async def run_next() -> None:
        for attempt in waiting:
            own_watcher = watcher if attempt is planned[0] else None
            on_done(
                await run_with_retries(
                    attempt, make_environment, agent, engine, renderer, retries, provenance, own_watcher, policies
                )
            )

    async with asyncio.TaskGroup() as group:
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
) -> Trajectory:
    """Run one episode, again while it ends unscored and retries are left. One that is stopped half-way is not a result
    to keep: it raises CancelledError."""
    for retries_left in range(retries, -1, -1):
        result = await run_episode(attempt, make_environment, agent, engine, renderer, provenance, watcher, policies)
        if result.scored or result.outcome is Outcome.CANCELLED or retries_left == 0:
            break
    if result.outcome is Outcome.CANCELLED:
        raise asyncio.CancelledError
    return result

"""The agent loop: render, generate, parse, step, until an episode ends in a typed outcome.

Many episodes run at once over one engine. An episode that fails fails alone: whatever its
environment, tool, reward or engine raises becomes its own outcome and nothing else.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from practicum.agent import Agent
from practicum.chat import reasoning
from practicum.chat.renderer import Renderer
from practicum.engines.base import Engine, Generation, Request
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.errors import ContextFull, EngineError, JudgeError, UserError
from practicum.task import Task, canonical_json
from practicum.trajectory import Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn
from practicum.utils.console import EpisodeWatcher
from practicum.utils.deadline import Deadline, clocked

MANY = 32
"""Episodes at once from which on it pays to tidy up first."""
_spared: weakref.WeakSet[Engine] = weakref.WeakSet()

MakeEnvironment = Callable[[], Environment]


@dataclass(frozen=True)
class Attempt:
    """One episode to run: a task, which try at it, and the seeds it runs under."""

    task: Task
    number: int
    seeds: Seeds
    group: str = ""


def derive_seed(*names: object) -> int:
    """A 63-bit seed from names and numbers, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def attempts(tasks: Iterable[Task], each: int, seed: int, label: str = "") -> list[Attempt]:
    """`each` attempts at every task. Attempts at one task share the environment's seed, not the sampling's."""
    planned = []
    for task in tasks:
        world = derive_seed("environment", seed, label, task.id)
        for number in range(each):
            sampling = derive_seed("sampling", seed, label, task.id, number)
            planned.append(Attempt(task, number, Seeds(world, sampling), f"{label}{task.id}"))
    return planned


class Episode:
    """One run of the loop; its state is what has been recorded so far."""

    def __init__(
        self,
        attempt: Attempt,
        make_environment: MakeEnvironment,
        agent: Agent,
        engine: Engine,
        renderer: Renderer,
        watcher: EpisodeWatcher | None = None,
    ) -> None:
        self.attempt = attempt
        self.watcher = watcher
        self.make_environment = make_environment
        self.made: Environment | None = None
        self.agent = agent
        self.engine = engine
        self.renderer = renderer
        reasoning.check(agent.thoughts)
        self.format = agent.make_format()
        self.session = f"{attempt.group}#{attempt.number}#{attempt.seeds.sampling}"
        self.turns: list[Turn] = []
        self.held: list[int] = []
        self.history: list[Span] = []
        """The last prompt, as it would be shown from nothing; earlier replies in it are not trained again."""
        self.conversation: list[Message] = []
        self.tools: tuple[Mapping[str, Any], ...] = ()
        self.closing: tuple[Message, ...] = ()
        self.phase = "reset"

    @property
    def environment(self) -> Environment:
        assert self.made is not None, "the environment is made when the episode begins"
        return self.made

    async def close(self) -> None:
        if self.made is not None:
            await self.made.close()

    async def run(self) -> tuple[Outcome, str | None]:
        """Play to the end: an outcome, and what went wrong where something did."""
        try:
            async with asyncio.timeout(self.agent.deadlines.episode):
                return await self._play(), None
        except TimeoutError as error:
            return Outcome.TIMEOUT, str(error) or f"{self.phase}: the episode's time was up"
        except asyncio.CancelledError:
            return Outcome.CANCELLED, "cancelled"
        except EngineError as error:
            return Outcome.ENGINE_ERROR, str(error)
        except JudgeError as error:
            return Outcome.JUDGE_ERROR, str(error)
        except UserError:
            raise  # a wrong setting is wrong for every episode: stop and say so
        except Exception as error:  # whatever a world raises is its own episode's end
            return Outcome.ENV_ERROR, f"{self.phase}: {type(error).__name__}: {error}"
        finally:
            self.engine.end_session(self.session)

    async def _play(self) -> Outcome:
        limits = self.agent.deadlines
        task, seeds = self.attempt.task, self.attempt.seeds
        self.made = self.make_environment()
        observation = await Deadline(limits.reset, "environment reset").of(
            self.environment.reset(task, seeds.environment)
        )
        self.tools = observation.tools
        for number in range(self.agent.max_turns):
            spans, restart = self._prompt(observation)
            if restart:
                self.held = []
            for span in spans:
                self.held.extend(span.ids)
            self.conversation.extend(observation.messages)
            self.phase = "generate"
            if self.watcher is not None:
                self.watcher.shown(observation.messages)
            seed, final = derive_seed(seeds.sampling, number), number + 1 == self.agent.max_turns
            try:
                request = self._request(observation, seed, final)
                reply = await Deadline(limits.generate, "engine").of(self.engine.generate(request))
            except ContextFull:
                if not self.turns:
                    raise  # a first prompt that does not fit is the task's fault, not the agent's
                return await self._cut_off()
            self.phase = "step"
            action = self._record(spans, restart, observation, reply, seed)
            if action.error is not None:
                step = Step(self._complain(action.error), reward=self.environment.invalid_reward)
            else:
                step = await Deadline(limits.step, "environment step").of(self.environment.step(action))
            out_of_room = reply.stop_reason is StopReason.CONTEXT
            last = final or out_of_room
            self._score(step)
            if last and not step.terminated and not step.truncated:
                return await self._cut_off()
            self.closing = step.observation.messages
            if step.terminated:
                success = step.success if step.success is not None else step.reward > 0
                return Outcome.SUCCESS if success else Outcome.FAILURE
            if step.truncated:
                return Outcome.TRUNCATED
            observation = step.observation
        raise UserError("agent.max_turns must be at least 1.")

    async def _cut_off(self) -> Outcome:
        """The loop ends the episode; the world has the last word on what was done."""
        self.phase = "truncate"
        limit = self.agent.deadlines.step
        step = await Deadline(limit, "environment truncate").of(self.environment.truncate())
        self._score(step)
        self.closing = step.observation.messages
        return Outcome.TRUNCATED

    def _prompt(self, observation: Observation) -> tuple[tuple[Span, ...], bool]:
        """The next prompt's spans: only what is new, or all of them where the history is no longer what it was."""
        if not self.turns:
            listed = self.tools if self.format.schema_in_template else ()
            self.history = list(self.renderer.start(observation.messages, listed))
            return tuple(self.history), True
        new = self.renderer.extend(self.held, observation.messages)
        reply = self.turns[-1].spans[-1].ids
        kept = reasoning.stripped(self.renderer, reply) if self.agent.thoughts == "strip" else reply
        self.history.append(Span(Origin.OBSERVATION, kept))
        self.history.extend(new)
        # Up to the reply, history and ids held are the same.
        return (new, False) if kept == reply else (tuple(self.history), True)

    def _request(self, observation: Observation, seed: int, final: bool) -> Request:
        sampling = replace(self.agent.sampling, seed=seed, stop=self.agent.sampling.stop + self.format.stop)
        return Request(
            ids=tuple(self.held),
            sampling=sampling,
            task=self.attempt.task,
            observation=observation,
            conversation=tuple(self.conversation),
            tools=self.tools,
            session=self.session,
            final=final,
            listen=None if self.watcher is None else self.watcher.token,
        )

    def _record(
        self, spans: tuple[Span, ...], restart: bool, observation: Observation, reply: Generation, seed: int
    ) -> Action:
        text = self.renderer.decode(reply.ids)
        action = self._parse(text)
        if reply.stop_reason is StopReason.LENGTH and not action.calls and action.error is None:
            # Half an answer is not an answer: "47" cut to "4" must not be judged.
            action = replace(action, error=f"it was cut off after {len(reply.ids)} tokens; be shorter.")
        self.held.extend(reply.ids)
        said = reasoning.split(text) if self.agent.thoughts == "strip" else None
        self.conversation.append(Message("assistant", said[1] if said else text))
        sampled = Span(Origin.SAMPLED, reply.ids, reply.logprobs)
        self.turns.append(
            Turn(
                spans=(*spans, sampled),
                restart=restart,
                messages=observation.messages,
                reply=text,
                action=action,
                source=reply.source,
                policy_version=reply.policy_version,
                stop_reason=reply.stop_reason,
                seed=seed,
            )
        )
        if self.watcher is not None:
            self.watcher.replied(self.turns[-1])
        return action

    def _parse(self, text: str) -> Action:
        """The reply, understood; its reasoning is not part of what the format reads."""
        divided = reasoning.split(text)
        if divided is None:
            return Action(text, error=f"the {reasoning.OPEN} needs its {reasoning.CLOSE}.")
        thought, rest = divided
        action = self.format.parse(rest, bool(self.tools))
        if not thought and rest == text:
            return action
        return replace(action, text=text, thought="\n".join(t for t in (thought, action.thought) if t))

    def _complain(self, error: str) -> Observation:
        text = f"Your reply could not be used: {error}"
        return Observation((self.format.observe("error", text) if self.tools else Message("user", text),))

    def _score(self, step: Step) -> None:
        """Add what the world said of the last turn to it."""
        for name, value in {"reward": step.reward, "progress": step.progress or 0.0, **step.components}.items():
            if not math.isfinite(value):
                raise ValueError(f"the environment gave the {name} {value}")
        try:
            if step.info:
                canonical_json(dict(step.info))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the environment's info cannot be written as JSON: {error}") from None
        turn = self.turns[-1]
        components = dict(turn.components)
        for name, value in step.components.items():
            components[name] = components.get(name, 0.0) + float(value)
        self.turns[-1] = replace(
            turn,
            reward=turn.reward + float(step.reward),
            components=components,
            progress=None if step.progress is None else float(step.progress),
            info={**turn.info, **step.info},
        )
        if self.watcher is not None:
            self.watcher.stepped(step)


async def run_episode(
    attempt: Attempt,
    make_environment: MakeEnvironment,
    agent: Agent,
    engine: Engine,
    renderer: Renderer,
    provenance: Mapping[str, Any] | None = None,
    watcher: EpisodeWatcher | None = None,
) -> Trajectory:
    """Run one episode to its record, whatever happens in it."""
    error_on_close: str | None = None
    episode = Episode(attempt, make_environment, agent, engine, renderer, watcher)
    try:
        outcome, error = await episode.run()
    finally:
        try:
            await clocked(episode.close(), asyncio.timeout(agent.deadlines.step))
        except Exception as fault:  # the episode is over; a failing close must not change its outcome
            error_on_close = f"close: {type(fault).__name__}: {fault}"
    components: dict[str, float] = {}
    for turn in episode.turns:
        for name, value in turn.components.items():
            components[name] = components.get(name, 0.0) + value
    if watcher is not None:
        watcher.ended(outcome, error, math.fsum(turn.reward for turn in episode.turns))
    return Trajectory(
        task=attempt.task,
        attempt=attempt.number,
        group=attempt.group or attempt.task.id,
        outcome=outcome,
        turns=tuple(episode.turns),
        reward=math.fsum(turn.reward for turn in episode.turns),
        components=components,
        seeds=attempt.seeds,
        closing=episode.closing,
        error=error or error_on_close,
        provenance={"engine": engine.name, "format": agent.format, "max_turns": agent.max_turns,
                    "temperature": agent.sampling.temperature, "top_k": agent.sampling.top_k,
                    "top_p": agent.sampling.top_p, "max_tokens": agent.sampling.max_tokens,
                    **({"tools": [dict(tool) for tool in episode.tools]} if episode.tools else {}),
                    **(provenance or {})},
    )  # fmt: skip


def freeze_gc(engine: Engine) -> None:
    """What is there when an engine's first episodes begin (modules, a model) stays as long as it works, and there is a
    million of it: the garbage collector, which episodes wake several times a step, need not go through it each time."""
    try:
        if engine in _spared:
            return
        _spared.add(engine)
    except TypeError:  # one that cannot be remembered would be tidied up for every time
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
) -> list[Trajectory]:
    """Run many episodes at once; results come back in the order they were planned.

    An episode that ends unscored is tried again up to `retries` times. A `watcher` hears of the first one.
    """
    planned = list(planned)
    if len(planned) >= MANY:
        freeze_gc(engine)
    gate = asyncio.Semaphore(concurrency)

    async def one(attempt: Attempt) -> Trajectory:
        async with gate:
            for left in range(retries, -1, -1):
                watched = watcher if attempt is planned[0] else None
                result = await run_episode(attempt, make_environment, agent, engine, renderer, provenance, watched)
                if result.scored or result.outcome is Outcome.CANCELLED or left == 0:
                    break
            if result.outcome is Outcome.CANCELLED:
                raise asyncio.CancelledError  # an episode that was stopped half-way is not a result to keep
            if on_done is not None:
                on_done(result)
            return result

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(attempt)) for attempt in planned]
    return [task.result() for task in running]

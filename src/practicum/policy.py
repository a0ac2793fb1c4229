"""A policy: an engine, a renderer, a reply format and sampling settings, which together turn messages into a reply.

The agent loop acts with one policy per role. The same object answers outside of an episode (`Policy.reply`): a judge, a
simulated user, a planner or a server calls it. `Conversation` is what one role was shown in one episode, as ids.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from practicum.chat.formats.base import Format
from practicum.chat.renderer import (
    REASONING_CLOSE,
    REASONING_OPEN,
    Renderer,
    check_thoughts,
    split_reasoning,
    strip_reasoning,
)
from practicum.chat.response_format import resolve_response_format
from practicum.engines.base import Engine, Generation, Request, Sampling
from practicum.environment import DEFAULT_ROLE, Action, ChatModel, Message, Observation, Reply, Usage
from practicum.errors import EngineError, JudgeError
from practicum.registry import make_format
from practicum.task import Task, canonical_json
from practicum.trajectory import (
    Origin,
    Span,
    StopReason,
    Turn,
    continued_turns,
    derive_seed,
    path_to,
    reply_confidence,
)
from practicum.utils.concurrency import Deadline

MAX_CACHED_ANSWERS = 10_000
NO_TASK = Task("policy.reply", "", "train", {})
"""The task of a request that belongs to no episode."""
_sessions = itertools.count()


@dataclass(frozen=True)
class Policy:
    """The policy of a role: `engine` samples, `renderer` turns messages into ids, `format` reads the reply.

    `adapter` names one of the engine's LoRA adapters; "" is its own model. `thoughts` says whether the reasoning of
    earlier replies stays in the prompt (keep, strip). `max_turns` limits the role's turns in an episode.
    """

    engine: Engine
    renderer: Renderer
    format: str = "hf"
    sampling: Sampling = field(default_factory=Sampling)
    adapter: str = ""
    role: str = DEFAULT_ROLE
    thoughts: str = "keep"
    max_turns: int | None = None
    response_format: Mapping[str, Any] | None = None
    """The form that its replies must have (`chat/response_format.py`); None: any text."""
    reply_format: Format = field(init=False, compare=False, repr=False)
    """The reply format named `format`."""

    def __post_init__(self) -> None:
        check_thoughts(self.thoughts)
        object.__setattr__(self, "reply_format", make_format(self.format))

    async def reply(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        response_format: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> Reply:
        """Return the reply to messages, outside of any episode.

        Without a `seed` the sampling seed is made of the messages, so the same question gets the same answer.
        `response_format` is that of the chat completions API ({"type": "json_object"}, a JSON schema) or one of
        `chat/response_format.py`; None: the policy's own. A local engine samples among the tokens that it allows, a
        server gets it as a parameter, and `Reply.data` is the JSON of a reply that has it.
        """
        response_format = self.response_format if response_format is None else response_format
        conversation = Conversation(self, f"reply#{next(_sessions)}")
        observation = Observation(tuple(messages), tuple(tools))
        if seed is None:
            seed = self.content_seed(messages, response_format)
        conversation.next_prompt(observation, [])
        request = conversation.request(NO_TASK, observation, seed, True, response_format)
        try:
            generation = await self.engine.generate(request)
        finally:
            self.engine.end_session(conversation.session)
        text, action = conversation.parse(generation)
        return Reply(
            text=text,
            action=action,
            ids=generation.ids,
            logprobs=generation.logprobs,
            usage=Usage(len(request.ids), len(generation.ids), generation.prompt_cached),
            stop_reason=generation.stop_reason.value,
            policy_version=generation.policy_version,
            data=None if response_format is None else json_of(text),
        )

    def content_seed(self, messages: Sequence[Message], response_format: Mapping[str, Any] | None = None) -> int:
        """A sampling seed derived from the policy's own seed and the messages."""
        content = canonical_json([message_values(messages), response_format])
        return derive_seed("reply", self.role, self.sampling.seed, content)


def message_values(messages: Sequence[Message]) -> list[list[Any]]:
    """The fields of messages as JSON values, by which two questions are compared."""
    return [[message.role, message.content, message.name, list(message.images)] for message in messages]


class Judge:
    """A policy that scores: an engine that fails is a `JudgeError`, and the same question is sent once.

    So is a reply that takes longer than `seconds`; None: the caller's limit alone.
    """

    def __init__(self, model: ChatModel, seconds: float | None = None) -> None:
        self.model, self.seconds = model, seconds
        self._answers: OrderedDict[str, asyncio.Future[Reply]] = OrderedDict()

    async def reply(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        response_format: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> Reply:
        """Return the judge's reply; see `Policy.reply`."""
        key = canonical_json([message_values(messages), list(map(dict, tools)), response_format, seed])
        while (cached := self._answers.get(key)) is not None:
            if not cached.done() and cached.get_loop() is not asyncio.get_running_loop():
                break  # the event loop that it was asked in has ended
            self._answers.move_to_end(key)
            try:
                return await asyncio.shield(cached)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not cached.cancelled() or (task is not None and task.cancelling()):
                    raise
                # Whoever asked was cancelled, this one was not: ask again.
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller that waits gets it
        self._answers[key] = answer
        try:
            reply = self.model.reply(messages, tools=tools, response_format=response_format, seed=seed)
            result = await (reply if self.seconds is None else Deadline(self.seconds, "the model").of(reply))
        except BaseException as error:
            self._answers.pop(key, None)
            if isinstance(error, EngineError | TimeoutError):
                fault = JudgeError(f"the judge's engine failed: {error}")
                answer.set_exception(fault)
                raise fault from None
            answer.cancel()
            raise
        answer.set_result(result)
        if len(self._answers) > MAX_CACHED_ANSWERS:
            self._answers.popitem(last=False)
        return result


def json_of(text: str) -> Any:
    """Return the JSON value of a reply, also of one in a Markdown code block; None where it is not JSON."""
    inner = text.strip()
    if inner.startswith("```"):
        inner = inner.strip("`").removeprefix("json").strip()
    try:
        return json.loads(inner)
    except (ValueError, RecursionError):
        return None


class Conversation:
    """What one role was shown and replied in one episode, as messages and as the ids that the engine sees."""

    def __init__(self, policy: Policy, session: str) -> None:
        self.policy, self.session = policy, session
        self.renderer = policy.renderer
        self.format = policy.reply_format
        self.context_ids: list[int] = []
        """Ids of the conversation as the engine sees it: prompts and replies since the last restart."""
        self.messages: list[Message] = []
        self.tools: tuple[Mapping[str, Any], ...] = ()
        self.num_turns = 0
        self.last_turn: int | None = None
        """Index of the role's last turn that has spans."""
        self._tools: dict[int, tuple[Mapping[str, Any], ...]] = {}
        """The tools in force at each of the role's turns, by its index."""
        self._history: list[Span] = []
        """The last prompt rendered from the beginning, in which earlier replies are observations: they are trained in
        the turn that sampled them, and not again."""
        self._reply: tuple[int, ...] = ()

    def next_prompt(self, observation: Observation, turns: Sequence[Turn]) -> tuple[tuple[Span, ...], bool]:
        """Return the new spans of the next prompt and whether it restarts: then they are all of its spans.

        It restarts in a role's first turn, where the observation is fresh, and where reasoning was stripped from the
        history. `turns` are those of the episode so far, for an observation that continues one of them.
        """
        if observation.continues is not None:
            self._go_back_to(observation.continues, turns)
        spans, restart = self._spans(observation)
        if restart:
            self.context_ids = []
        for span in spans:
            self.context_ids.extend(span.ids)
        self.messages.extend(observation.messages)
        return spans, restart

    def _spans(self, observation: Observation) -> tuple[tuple[Span, ...], bool]:
        if self.last_turn is None or observation.fresh:
            self.messages, self.tools = [], observation.tools or (() if observation.fresh else self.tools)
            listed = self.tools if self.format.schema_in_template else ()
            self._history = list(self.renderer.start(observation.messages, listed))
            return tuple(self._history), True
        new = self.renderer.extend(self.context_ids, observation.messages)
        kept = self._kept(self._reply)
        self._history.append(Span(Origin.OBSERVATION, kept))
        self._history.extend(new)
        # Up to the reply, `_history` and `context_ids` are the same ids.
        return (new, False) if kept == self._reply else (tuple(self._history), True)

    def _kept(self, reply: tuple[int, ...]) -> tuple[int, ...]:
        """What stays of a reply in later prompts."""
        return strip_reasoning(self.renderer, reply) if self.policy.thoughts == "strip" else reply

    def _go_back_to(self, index: int, turns: Sequence[Turn]) -> None:
        """Make a turn of the episode the last one of this conversation."""
        if not 0 <= index < len(turns) or not turns[index].spans:
            raise ValueError(f"an Observation continues turn {index}, which is no turn with a prompt")
        path = [turns[turn_index] for turn_index in path_to(continued_turns(turns), index)]
        spans = [span for turn in path for span in turn.spans]
        self.context_ids = [token for span in spans for token in span.ids]
        self._reply = spans[-1].ids
        self._history = [Span(Origin.OBSERVATION, span.ids) for span in spans[:-1]]
        self.tools = self._tools.get(index, self.tools)
        self.messages = []
        for turn in path:
            divided = split_reasoning(turn.reply) if self.policy.thoughts == "strip" else None
            self.messages += [*turn.messages, Message("assistant", divided[1] if divided else turn.reply)]
        self.last_turn = index

    def request(
        self,
        task: Task,
        observation: Observation,
        seed: int,
        final: bool,
        response_format: Mapping[str, Any] | None = None,
    ) -> Request:
        """Return the engine's request for the reply to the last prompt; `response_format`, None: the policy's."""
        sampling = self.policy.sampling
        response_format = self.policy.response_format if response_format is None else response_format
        return Request(
            ids=tuple(self.context_ids),
            sampling=sampling_with_seed(sampling, seed, self.format.stop),
            task=task,
            observation=observation,
            conversation=tuple(self.messages),
            tools=self.tools,
            session=self.session,
            final=final,
            adapter=self.policy.adapter,
            response_format=None
            if response_format is None
            else resolve_response_format(response_format, self.format, self.tools, observation.legal),
        )

    def parse(self, generation: Generation, turn: int | None = None) -> tuple[str, Action]:
        """Return the text of a reply and its action, which the turn of that index records."""
        text = self.renderer.decode(generation.ids)
        action = self._parse(text)
        error = action.error
        if generation.stop_reason is StopReason.LENGTH and not action.calls and error is None:
            # Half an answer is not an answer: "47" cut to "4" must not be judged.
            error = f"it was cut off after {len(generation.ids)} tokens; be shorter."
        confidence = reply_confidence(generation.logprobs)
        return text, Action(action.text, action.content, action.calls, action.thought, error, confidence, turn)

    def add_reply(self, ids: tuple[int, ...], text: str, turn: int) -> None:
        """Add a reply, recorded as the turn of that index."""
        self.context_ids.extend(ids)
        self._reply = ids
        divided = split_reasoning(text) if self.policy.thoughts == "strip" else None
        self.messages.append(Message("assistant", divided[1] if divided else text))
        self.last_turn = turn
        self._tools[turn] = self.tools
        self.num_turns += 1

    def _parse(self, text: str) -> Action:
        """Parse a reply; its reasoning is no part of what the format reads."""
        divided = split_reasoning(text)
        if divided is None:
            return Action(text, error=f"the {REASONING_OPEN} needs its {REASONING_CLOSE}.")
        thought, rest = divided
        action = self.format.parse(rest, bool(self.tools))
        if not thought and rest == text:
            return action
        return replace(action, text=text, thought="\n".join(t for t in (thought, action.thought) if t))

    def error_observation(self, error: str) -> Observation:
        """Return the loop's own answer to a reply that does not parse; the environment does not see such a reply."""
        text = f"Your reply could not be used: {error}"
        message = self.format.observe("error", text) if self.tools else Message("user", text)
        return Observation((message,), role=self.policy.role)


def sampling_with_seed(sampling: Sampling, seed: int, more_stop: tuple[str, ...]) -> Sampling:
    """Return the parameters with a seed and further stop strings; faster than `dataclasses.replace`."""
    return Sampling(
        temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, max_tokens=sampling.max_tokens,
        stop=sampling.stop + more_stop, seed=seed, min_p=sampling.min_p,
    )  # fmt: skip

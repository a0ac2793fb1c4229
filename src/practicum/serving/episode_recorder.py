"""The record of an external agent's episode: each of its model calls, exactly as the engine saw and sampled it.

The agent talks to one of the server's APIs with the episode's key. How replies are sampled is the run's business: what
the agent asks for is recorded and, where it would change the distribution, not followed.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from practicum.agent import ExternalAgent
from practicum.chat.renderer import Renderer
from practicum.chat.response_format import resolve_response_format
from practicum.engines.base import Generation
from practicum.engines.local.adapters import AdapterEngine
from practicum.engines.local.engine import LocalEngine
from practicum.errors import UserError, did_you_mean
from practicum.policy import Conversation, Policy
from practicum.registry import make_format
from practicum.serving.conversation_tree import BranchPoint, ChatHistory, ConversationTree, ModelCall
from practicum.serving.errors import APIError, bad_request
from practicum.serving.service import (
    PreparedTurn,
    check_messages,
    run_in_thread_if_long,
    turn_response_format,
    turn_sampling,
)
from practicum.serving.turn import CompletionChoice, TurnRequest, template_messages
from practicum.trajectory import ABANDONED, SAME_PROMPT, Origin, Span, Turn, derive_seed

NO_LIMIT = 1 << 30


@dataclass(frozen=True)
class PostedReward:
    """A reward that the agent reported; of a turn, or of the episode."""

    reward: float
    response_id: str | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    success: bool | None = None


class EpisodeRecorder:
    """Answers the requests of one episode and records them. The first of the roles' `policies` is the default."""

    def __init__(
        self,
        policies: Mapping[str, Policy],
        sampling_seed: int,
        session: str,
        agent: ExternalAgent,
        max_turns: int,
    ) -> None:
        self.policies = dict(policies)
        self.key = f"episode-{secrets.token_hex(16)}"
        self.sampling_seed, self.session, self.max_turns = sampling_seed, session, max_turns
        self.agent = agent
        self.trees = {
            role: ConversationTree(policy.renderer, agent.keep_system) for role, policy in self.policies.items()
        }
        self.tools: dict[str, tuple[Mapping[str, Any], ...]] = {}
        """The tools of each role's first request."""
        self.rewards: list[PostedReward] = []
        self.answer: str | None = None
        self.reached_limit = ""
        """Which limit of the run a request of the agent has met."""
        self.num_retries = 0
        self.sealed = False
        self._num_unanswered: dict[str, int] = {}
        """Turns of requests that are under way, by the name of their answer; they count to the limit."""
        self._numbers = itertools.count()
        self._answers: dict[str, tuple[str, tuple[Generation, ...], tuple[int, ...]]] = {}
        """Answered requests by the hash of their body: name of the answer, replies, prompt."""

    # -- the server's side ------------------------------------------------------------------------------------------

    def renderer(self, model: str) -> Renderer:
        return self.policies[self.role_of(model)].renderer

    def context(self, model: str) -> int:
        return _context(self.policies[self.role_of(model)])

    def role_of(self, model: str) -> str:
        """The role that a model's name stands for; an agent with one role may use any name."""
        if model in self.policies:
            return model
        if len(self.policies) == 1:
            return next(iter(self.policies))
        raise APIError(
            404, f"The model '{model}' is no role of this episode.{did_you_mean(model, self.policies)}", "model",
            "model_not_found",
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def open(self, turn: TurnRequest) -> AsyncIterator[PreparedTurn]:
        if self.sealed:
            raise episode_ended()
        role = self.role_of(turn.model)
        if turn.is_retry and turn.body_hash in self._answers:
            self.num_retries += 1
            policy = self.policies[role]
            name, generations, ids = self._answers[turn.body_hash]
            yield PreparedTurn(turn.model, policy.engine, policy.renderer, ids, (), recorded=generations, id=name)
            return
        if turn.prompt_ids is not None:
            raise bad_request("An episode is recorded as chat; use a chat API.", "prompt", "unsupported_value")
        num_recorded = sum(len(tree.calls) for tree in self.trees.values())
        if num_recorded + sum(self._num_unanswered.values()) + turn.n > self.max_turns:
            self.reached_limit = "turns"
            raise APIError(409, f"The episode may have {self.max_turns} turns.", None, "turn_limit")
        name = secrets.token_hex(12)
        self._num_unanswered[name] = turn.n
        try:
            yield await self._prepare(turn, role, name)
        finally:
            self._num_unanswered.pop(name, None)

    async def _prepare(self, turn: TurnRequest, role: str, name: str) -> PreparedTurn:
        policy, tree = self.policies[role], self.trees[role]
        tools = turn.tools if turn.tool_choice.mode != "none" else ()
        conversation = ChatHistory.from_messages(turn.messages, tools)

        def find_branch_point() -> BranchPoint:
            check_messages(turn.messages, policy.renderer, _context(policy))
            return tree.find_branch_point(conversation)

        try:
            point = await run_in_thread_if_long(turn.num_characters, find_branch_point)
        except APIError as error:
            self._note_limit(error)
            raise
        self.tools.setdefault(role, tools)
        prompt = (*(point.parent.ids if point.parent else ()), *(token for span in point.spans for token in span.ids))
        pinned = replace(turn, temperature=None, top_p=None, top_k=None, seed=None, max_tokens=None)
        limit = min(policy.sampling.max_tokens, turn.max_tokens or policy.sampling.max_tokens)
        try:
            sampling = turn_sampling(pinned, replace(policy.sampling, max_tokens=limit), len(prompt), _context(policy))
        except APIError as error:
            self._note_limit(error)
            raise
        info: dict[str, Any] = {"asked": turn.requested_sampling} if turn.requested_sampling else {}
        info |= {"model": turn.model} if turn.model != role else {}
        info |= {"system": [message.text for message in conversation.system]} if point.system_changed else {}
        calls = []
        for index in range(turn.n):
            number = next(self._numbers)
            reason = point.reason if index == 0 else SAME_PROMPT
            seed = derive_seed(self.sampling_seed, number)
            calls.append(
                ModelCall(number, role, point.parent, conversation, point.new, point.spans, seed, reason, index, info)
            )

        def complete(choices: Sequence[CompletionChoice], generations: Sequence[Generation]) -> None:
            self._record(tree, calls, choices, generations, name)
            del self._num_unanswered[name]  # they count from the record
            self._answers[turn.body_hash] = (name, tuple(generations), prompt)

        form = await self._response_format(turn, policy, tools)
        return PreparedTurn(
            model=turn.model,
            engine=policy.engine,
            renderer=policy.renderer,
            ids=prompt,
            samplings=[sampling.with_seed(call.seed) for call in calls],
            adapter=policy.adapter,
            session=self.session if role == next(iter(self.policies)) else f"{self.session}/{role}",
            conversation=template_messages(turn.messages),
            id=name,
            response_format=form,
            complete=complete,
        )

    @staticmethod
    async def _response_format(
        turn: TurnRequest, policy: Policy, tools: tuple[Mapping[str, Any], ...]
    ) -> Mapping[str, Any] | None:
        """The form of the reply: what the request asks for, else the run's own for this role, with its tools."""
        form = await turn_response_format(turn, policy.renderer)
        if form is not None:
            return form
        try:
            return resolve_response_format(policy.response_format, make_format(policy.format), tools)
        except UserError as error:
            raise bad_request(f"The run's response format: {error}", "tools") from None

    def _note_limit(self, error: APIError) -> None:
        if error.code == "context_length_exceeded":
            self.reached_limit = "context"

    def _record(
        self,
        tree: ConversationTree,
        calls: Sequence[ModelCall],
        choices: Sequence[CompletionChoice],
        generations: Sequence[Generation],
        name: str,
    ) -> None:
        if self.sealed:
            raise episode_ended()
        for call, choice, generation in zip(calls, choices, generations, strict=True):
            call.reply, call.generation, call.response_id = choice.message, generation, name
            tree.add(call)

    # -- the run's side ---------------------------------------------------------------------------------------------

    def turns(self) -> list[Turn]:
        """The turns so far in the order of their requests, of one request those that were not used first.

        Rewards that were posted for a turn are in it; those of the episode are not.
        """
        calls = [call for tree in self.trees.values() for call in tree.calls]
        calls.sort(key=lambda call: (call.number - call.choice, not self._is_abandoned(call), call.number))
        index_of = {id(call): index for index, call in enumerate(calls)}
        turns: list[Turn] = []
        last_of_role: dict[str, int] = {}
        for index, call in enumerate(calls):
            parent = None if call.parent is None else index_of[id(call.parent)]
            continues = None if parent == last_of_role.get(call.role) else parent
            turns.append(self._turn(call, continues, self._is_abandoned(call)))
            last_of_role[call.role] = index
        for posted in self.rewards:
            if posted.response_id is not None:
                index = next(i for i, call in enumerate(calls) if call.response_id == posted.response_id)
                components = {**turns[index].components, **posted.components}
                turns[index] = replace(turns[index], reward=turns[index].reward + posted.reward, components=components)
        return turns

    def _is_abandoned(self, call: ModelCall) -> bool:
        """Whether the agent used another reply to the same prompt: it went on from that one, or took the first."""
        if call.children or self.agent.train_abandoned:
            return False
        others = [other for other in self.trees[call.role].calls if other is not call and _same_prompt(other, call)]
        if any(other.children for other in others):
            return True
        return call.choice > 0 and any(other.response_id == call.response_id for other in others)

    def _turn(self, call: ModelCall, continues: int | None, abandoned: bool) -> Turn:
        policy, generation = self.policies[call.role], call.generation
        assert generation is not None, "only answered calls are in the tree"
        parsing = Conversation(policy, self.session)
        parsing.tools = call.conversation.tools
        text, action = parsing.parse(generation)
        reply = Span(Origin.SAMPLED, generation.ids, generation.logprobs, generation.kept)
        info = call.info
        if abandoned or not generation.sampled:
            reply = Span(Origin.OBSERVATION, generation.ids)
            logprobs = None if generation.logprobs is None else list(generation.logprobs)
            info = {**info, ABANDONED: {"logprobs": logprobs}} if abandoned else info
        default = next(iter(self.policies.values())).sampling.temperature
        temperature = policy.sampling.temperature
        return Turn(
            spans=(*call.spans, reply),
            restart=call.parent is None,
            messages=template_messages(call.new),
            reply=text,
            action=action,
            source=generation.source,
            policy_version=generation.policy_version,
            stop_reason=generation.stop_reason,
            seed=call.seed,
            role=call.role,
            continues=continues,
            temperature=None if temperature == default else temperature,
            branch_reason=call.reason,
            response_format=generation.response_format,
            info=info,
        )

    def post_reward(self, posted: PostedReward) -> None:
        """Take a reward from the agent."""
        self._check_open("callback", "rewards")
        names = {call.response_id for tree in self.trees.values() for call in tree.calls}
        if posted.response_id is not None and posted.response_id not in names:
            raise bad_request("There is no such response in this episode.", "response_id")
        self.rewards.append(posted)

    def post_answer(self, answer: str) -> None:
        """Take the answer that the environment is to score instead of the last reply."""
        self._check_open("environment", "answers")
        self.answer = answer

    def _check_open(self, source: str, name: str) -> None:
        """Refuse what would have no effect: an episode that has ended, or a run with another source of rewards."""
        if self.sealed:
            raise episode_ended()
        if self.agent.reward_from != source:
            raise APIError(
                409, f"This run takes no {name}: agent.reward_from is {self.agent.reward_from}.", None, "reward_source"
            )


def episode_ended() -> APIError:
    return APIError(409, "The episode has ended.", None, "episode_ended")


def _same_prompt(first: ModelCall, second: ModelCall) -> bool:
    return (
        first.parent is second.parent
        and first.conversation.keys == second.conversation.keys
        and first.conversation.system_key == second.conversation.system_key
        and first.conversation.tools_key == second.conversation.tools_key
    )


def _context(policy: Policy) -> int:
    """The window of a policy's model; of one that a server has, nothing is known."""
    engine: Any = policy.engine
    if isinstance(engine, AdapterEngine):
        engine = engine.engine
    return engine.decoder.shape.context if isinstance(engine, LocalEngine) else NO_LIMIT

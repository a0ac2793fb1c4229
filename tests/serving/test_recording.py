"""Where a request belongs in an episode's record: continued, branched with a reason, repeated, abandoned."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.agent import ExternalAgent
from practicum.chat.formats.hermes import HermesFormat
from practicum.chat.renderer import Renderer
from practicum.engines.base import Request, Sampling
from practicum.models.loader import load_tokenizer
from practicum.policy import NO_TASK, Policy
from practicum.serving.app import ModelServer, make_app
from practicum.serving.episode_recorder import EpisodeRecorder
from practicum.serving.gateway import Gateway
from practicum.trajectory import (
    ABANDONED,
    Origin,
    Outcome,
    Seeds,
    Trajectory,
    Turn,
    continued_turns,
    derive_seed,
    path_to,
)
from tests.serving.script_engine import ScriptEngine
from tests.serving.streams import TOOL, events

RENDERER = Renderer(load_tokenizer("tiny"))
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": "x"}}</tool_call>'
UNIQUE_CALL = '<tool_call>{"name": "add", "arguments": {"a": %d}}</tool_call>'
Reply = Callable[[Request], str]


def by_seed(request: Request) -> str:
    """A reply that no other seed gives: a text, or a call."""
    seed = request.sampling.seed
    call = UNIQUE_CALL % seed
    return (f"fine {seed}", f"yes {seed}  ", f"Well.\n{call}", call, f"two\nlines {seed}")[seed % 5]


class Client:
    """A client of one episode, which sends requests as frameworks do."""

    def __init__(self, reply: Reply = by_seed, roles: tuple[str, ...] = ("policy",), **agent: Any) -> None:
        self.engine = ScriptEngine(RENDERER, reply)
        policies = {role: Policy(self.engine, RENDERER, sampling=Sampling(max_tokens=64), role=role) for role in roles}
        external = ExternalAgent("true", agent.pop("reward_from", "callback"), **agent)
        self.recorder = EpisodeRecorder(policies, 7, "session", external, 100)
        self.server = ModelServer(None, max_batch=64, episodes={self.recorder.key: self.recorder})
        self.transport = httpx.ASGITransport(make_app(self.server))

    def ask(self, *bodies: dict[str, Any], at_once: bool = False, **headers: str) -> list[Any]:
        """Send chat requests; their messages, or the status where it is an error."""

        async def run() -> list[Any]:
            headers["authorization"] = f"Bearer {self.recorder.key}"
            async with httpx.AsyncClient(transport=self.transport, base_url="http://t", headers=headers) as client:
                pending = [client.post("/v1/chat/completions", json={"model": "m", **body}) for body in bodies]
                answers = await asyncio.gather(*pending) if at_once else [await request for request in pending]
                return [messages_of(answer) if answer.status_code == 200 else answer.status_code for answer in answers]

        return asyncio.run(run())

    def reply(self, messages: list[Any], **more: Any) -> Any:
        return self.ask({"messages": messages, **more})[0][0]

    @property
    def turns(self) -> list[Turn]:
        return self.recorder.turns()

    def trajectory(self) -> Trajectory:
        return Trajectory(NO_TASK, 0, "g", Outcome.SUCCESS, tuple(self.turns), 0.0, {}, Seeds(0, 0))


def messages_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The messages of an answer's choices, streamed or not."""
    if answer.headers["content-type"].startswith("application/json"):
        return [choice["message"] for choice in answer.json()["choices"]]
    messages: dict[int, dict[str, Any]] = {}
    for choice in (choice for event in events(answer.text)[:-1] for choice in event["choices"]):
        message = messages.setdefault(choice["index"], {"role": "assistant", "content": "", "tool_calls": []})
        message["content"] += choice["delta"].get("content") or ""
        message["tool_calls"] += choice["delta"].get("tool_calls", ())
    return [{**messages[index], "content": messages[index]["content"] or None} for index in sorted(messages)]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def check_exact(client: Client) -> None:
    """The record holds exactly what the engine saw: every prompt with its reply is the end of a path of turns."""
    turns = client.turns
    sampled_requests = {(request.ids, request.sampling.seed) for request in client.engine.requests}
    paths = {turn.seed: index for index, turn in enumerate(turns)}
    trajectory = client.trajectory()
    continued = continued_turns(turns)
    for ids, seed in sampled_requests:
        if seed not in paths:
            continue
        path = path_to(continued, paths[seed])
        recorded = [token for index in path for span in turns[index].spans for token in span.ids]
        reply = turns[path[-1]].spans[-1].ids
        assert tuple(recorded[: len(recorded) - len(reply)]) == ids
    sampled = sum(sum(sequence.sampled) for sequence in trajectory.sequences())
    assert sampled == sum(turn.num_sampled for turn in turns), "every sampled token is in one sequence, once"


def test_the_runs_own_response_format_is_that_of_the_requests_tools() -> None:
    client = Client()
    policies = {
        role: replace(policy, response_format={"type": "tool_calls"})
        for role, policy in client.recorder.policies.items()
    }
    client.recorder.policies = policies
    tools = [{"type": "function", "function": TOOL}]
    client.reply([user("How much?")], tools=tools)
    expected = {"type": "grammar", "grammar": HermesFormat().tool_call_grammar(tools)}
    assert client.engine.requests[-1].response_format == expected
    assert client.ask({"messages": [user("Without tools?")]}) == [400], "there is nothing to call"


def test_a_conversation_is_one_sequence() -> None:
    client = Client(lambda request: CALL if len(client.engine.requests) < 3 else "done")
    tools = [{"type": "function", "function": TOOL}]
    messages: list[Any] = [{"role": "system", "content": "Add."}, user("How much?")]
    for _ in range(3):
        reply = client.reply(messages, tools=tools)
        messages.append(reply)
        for call in reply.get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "3"})
    assert [turn.restart for turn in client.turns] == [True, False, False]
    assert [turn.branch_reason for turn in client.turns] == ["", "", ""]
    assert [turn.continues for turn in client.turns] == [None] * 3
    assert [turn.seed for turn in client.turns] == [derive_seed(7, index) for index in range(3)]
    assert len(client.trajectory().sequences()) == 1
    check_exact(client)


def test_a_turn_records_the_response_format_of_its_tokens() -> None:
    client = Client(lambda request: "{}")
    request_format, policy_format = {"type": "json_object"}, {"type": "regex", "regex": "[{}]*"}
    client.reply([user("x")])
    client.reply([user("y")], response_format=request_format)
    policies = client.recorder.policies
    policies["policy"] = replace(policies["policy"], response_format=policy_format)
    client.reply([user("z")])
    assert [request.response_format for request in client.engine.requests] == [None, request_format, policy_format]
    assert [turn.response_format for turn in client.turns] == [None, request_format, policy_format]


def test_arguments_are_compared_as_values() -> None:
    client = Client(lambda request: CALL)
    tools = [{"type": "function", "function": TOOL}]
    reply = client.reply([user("x")], tools=tools)
    reply["tool_calls"][0]["function"]["arguments"] = '{ "b":"x",  "a": 1 }'  # as another JSON library writes them
    reply["content"] = ""
    client.reply([user(" x "), reply, {"role": "tool", "tool_call_id": "other", "content": "3"}], tools=tools)
    assert [turn.restart for turn in client.turns] == [True, False]


@pytest.mark.parametrize("reply", [CALL, f"{CALL} then", f"first {CALL} then {CALL}", f"{CALL}{CALL}", "text"])
def test_items_of_the_responses_api_are_one_reply(reply: str) -> None:
    client = Client(lambda request: reply)
    tools = [{"type": "function", **TOOL}]

    async def run() -> None:
        headers = {"authorization": f"Bearer {client.recorder.key}"}
        async with httpx.AsyncClient(transport=client.transport, base_url="http://t", headers=headers) as web:
            items: list[Any] = [user("x")]
            for _ in range(2):
                answer = await web.post("/v1/responses", json={"model": "m", "input": items, "tools": tools})
                output = answer.json()["output"]
                calls = [item["call_id"] for item in output if item["type"] == "function_call"]
                results = [{"type": "function_call_output", "call_id": call_id, "output": "3"} for call_id in calls]
                items += [*output, *(results or [user("go on")])]

    asyncio.run(run())
    assert [turn.restart for turn in client.turns] == [True, False]
    assert not any(turn.branch_reason for turn in client.turns)


@pytest.mark.parametrize(
    ("change", "reason", "restart"),
    [
        (lambda m: [m[0], m[1], {"role": "assistant", "content": "no"}, user("b")], "edited reply", True),
        (lambda m: [{"role": "system", "content": "Other."}, *m[1:], user("b")], "new system", True),
        (lambda m: [m[0], user("Summary: …"), *m[3:], user("b")], "compacted", True),
        (lambda m: [m[0], user("something else")], "new conversation", True),
        (lambda m: m[:2], "another reply to the same prompt", True),
        (lambda m: [*m[:3], user("another question")], "other messages after turn 0", False),
        (lambda m: [*m[:4], {"role": "assistant", "content": "no"}, user("b")], "edited reply", False),
    ],
)
def test_a_changed_history_is_a_branch_with_a_reason(change: Any, reason: str, restart: bool) -> None:
    client = Client(lambda request: f"reply {len(client.engine.requests)}")
    messages: list[Any] = [{"role": "system", "content": "Add."}, user("one")]
    for text in ("two", "three"):
        messages += [client.reply(messages), user(text)]
    client.reply(messages)
    client.reply(change(messages))
    assert [turn.branch_reason for turn in client.turns] == ["", "", "", reason]
    assert client.turns[-1].restart is restart
    check_exact(client)


def test_dropped_reasoning_and_new_tools_are_separate_branch_reasons() -> None:
    client = Client(lambda request: "<think>hm</think>Yes.")
    reply = client.reply([user("x")])
    client.reply([user("x"), {**reply, "content": "Yes."}, user("y")])
    assert client.turns[-1].branch_reason == "dropped reasoning"
    tools = [{"type": "function", "function": TOOL}]
    client.reply([user("x"), reply, user("z")], tools=tools)
    assert client.turns[-1].branch_reason == "new tools"


def test_a_system_message_that_is_rendered_anew_can_be_kept() -> None:
    client = Client(keep_system=True)
    messages: list[Any] = [{"role": "system", "content": "It is 10:00."}, user("x")]
    messages.append(client.reply(messages))
    client.reply([{"role": "system", "content": "It is 10:01."}, *messages[1:], user("y")])
    assert [turn.branch_reason for turn in client.turns] == ["", ""]
    assert client.turns[-1].info["system"] == ["It is 10:01."]
    assert len(client.trajectory().sequences()) == 1


def test_a_retry_gets_the_recorded_answer_and_an_equal_body_alone_a_new_one() -> None:
    client = Client(lambda request: str(request.sampling.seed))
    body = {"messages": [user("x")]}
    first = client.ask(body)
    assert client.ask(body, **{"x-stainless-retry-count": "1"}) == first
    assert len(client.turns) == 1
    assert client.recorder.num_retries == 1
    assert client.ask(body) != first
    assert [turn.branch_reason for turn in client.turns] == ["", "another reply to the same prompt"]


def test_choices_that_were_not_used_are_kept_and_not_trained() -> None:
    client = Client(lambda request: str(request.sampling.seed))
    [choices] = client.ask({"messages": [user("x")], "n": 3})
    client.reply([user("x"), choices[1], user("y")])
    first, *_, used_turn, last = client.turns
    assert (used_turn.reply, last.continues, last.branch_reason) == (choices[1]["content"], None, "")
    assert [ABANDONED in turn.info for turn in client.turns] == [True, True, False, False]
    assert [turn.spans[-1].origin is Origin.SAMPLED for turn in client.turns] == [False, False, True, True]
    assert first.reply == choices[0]["content"], "an alternative is in the record"
    check_exact(client)
    trained = Client(lambda request: str(request.sampling.seed), train_abandoned=True)
    trained.ask({"messages": [user("x")], "n": 3})
    assert all(turn.num_sampled for turn in trained.turns)


def test_models_are_roles() -> None:
    client = Client(roles=("planner", "worker"))
    client.ask({"model": "worker", "messages": [user("x")]}, {"model": "planner", "messages": [user("x")]})
    assert [turn.role for turn in client.turns] == ["worker", "planner"]
    assert client.ask({"model": "gpt", "messages": [user("x")]}) == [404]


def test_late_requests_and_options_that_change_the_distribution_are_refused() -> None:
    client = Client()
    assert client.ask({"messages": [user("x")], "logit_bias": {"5": 2}}) == [400]
    assert client.ask({"messages": [user("x")], "presence_penalty": 1}) == [400]
    client.reply([user("x")], temperature=0.1, max_tokens=3, top_p=0.5)
    sampling = client.engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (1.0, 1.0, 3)
    client.recorder.sealed = True
    assert client.ask({"messages": [user("x")]}) == [409]


KINDS = st.sampled_from(["go on", "edit", "again", "retry", "choices", "system"])
ROUNDS = st.lists(st.lists(st.tuples(KINDS, st.integers(0, 5), st.booleans()), min_size=1, max_size=4), max_size=5)
"""What an agent does at once, several times: the kind of each request, a number to choose by, and whether to stream."""


def changed(kind: str, messages: list[Any], index: int) -> list[Any]:
    """The messages of a request of a kind about a conversation."""
    if kind == "system":
        return [{"role": "system", "content": f"s{index}"}, *messages]
    replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if kind != "edit" or not replies:
        return messages
    edited = [
        *messages[: replies[0]],
        {"role": "assistant", "content": f"edited {index}"},
        *messages[replies[0] + 1 :],
    ]
    return [message for message in edited if message["role"] != "tool"]


@given(ROUNDS)
@settings(max_examples=40, deadline=None)
def test_random_conversations_are_recorded_exactly(rounds: list[list[tuple[str, int, bool]]]) -> None:
    """Whatever an agent does, also at once and streamed, the record is what the engine saw, and a request that goes on
    from a reply is no branch."""
    client = Client()
    tools = [{"type": "function", "function": TOOL}]
    conversations: list[list[Any]] = [[user("start")]]
    num_turns = num_fresh = num_retries = 0
    for operations in rounds:
        bodies = []
        for kind, index, stream in operations:
            messages = conversations[index % len(conversations)]
            body: dict[str, Any] = {"messages": changed(kind, messages, index), "tools": tools, "stream": stream}
            body |= {"n": 2} if kind == "choices" else {}
            bodies.append(body)
            num_turns += body.get("n", 1)
            continues = body["messages"] == messages and len(messages) > 1
            num_fresh += 0 if continues else body.get("n", 1)
        answers = client.ask(*bodies, at_once=True)
        assert len(client.turns) == num_turns
        for (kind, index, _), body, choices in zip(operations, bodies, answers, strict=True):
            if kind == "retry":
                num_retries += 1
                repeated = client.ask(body, **{"x-stainless-retry-count": "1"})[0]
                assert bodies.count(body) > 1 or repeated == choices  # of equal bodies, the last one's answer
                assert repeated in [
                    other for other, body_sent in zip(answers, bodies, strict=True) if body_sent == body
                ]
            if kind in ("go on", "retry", "choices"):
                reply = choices[index % len(choices)]
                calls = reply.get("tool_calls") or ()
                results = [{"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in calls]
                new = results or [user(f"and {index}?")]
                conversations.append([*body["messages"], reply, *new])
    assert len(client.turns) == num_turns
    assert sum(turn.restart for turn in client.turns) == num_fresh
    assert client.recorder.num_retries == num_retries
    check_exact(client)


def test_requests_at_once_do_not_mix() -> None:
    """Each reply is made of its own prompt, and each conversation goes on from its own."""
    client = Client(lambda request: hashlib.sha256(json.dumps(request.ids).encode()).hexdigest()[:12])
    starts = [[user(f"question {index}")] for index in range(8)]
    for _ in range(3):
        answers = client.ask(*({"messages": messages} for messages in starts), at_once=True)
        for messages, [reply] in zip(starts, answers, strict=True):
            messages += [reply, user("go on")]
    assert len(client.turns) == 24
    assert len(client.trajectory().sequences()) == 8
    assert sum(turn.restart for turn in client.turns) == 8
    check_exact(client)


def test_requests_at_once_do_not_pass_the_limit_of_turns() -> None:
    """Open requests count; those that failed do not."""
    client = Client()
    client.recorder.max_turns = 3
    assert client.ask({"messages": [user("x")], "stop": "y" * 40}) == [400]
    answers = client.ask(*({"messages": [user(f"question {index}")]} for index in range(6)), at_once=True)
    assert sorted(answer if isinstance(answer, int) else 200 for answer in answers) == [200] * 3 + [409] * 3
    assert len(client.turns) == 3
    assert client.recorder.reached_limit == "turns"


def test_the_gateway_keeps_no_recorder_of_an_ended_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[int]:
        gateway = Gateway()
        with monkeypatch.context() as patch:
            patch.setattr("practicum.serving.gateway.listen", lambda host, port: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await gateway.enter()
        await gateway.enter()  # a failed start is tried again
        recorder = Client().recorder
        key, reference = recorder.key, weakref.ref(recorder)
        with gateway.episode(recorder, {}):
            pass
        del recorder
        gc.collect()
        assert reference() is None
        async with httpx.AsyncClient(base_url=gateway.url, headers={"authorization": f"Bearer {key}"}) as client:
            body = {"model": "m", "messages": [user("x")]}
            answers = [await client.post("/v1/chat/completions", json=body), await client.get(f"/episodes/{key}")]
        await gateway.leave()
        return [answer.status_code for answer in answers]

    assert asyncio.run(run()) == [409, 409]

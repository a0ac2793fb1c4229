"""Episodes in which several roles act: prompts of their own, fresh prompts, branches, and what is trained of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.agent import Agent, RoleSettings
from practicum.chat.renderer import Renderer
from practicum.config.resolve import resolve_train
from practicum.data.store import decode_episode, encode_episode, wrong_field
from practicum.engines.base import Generation, Request, Sampling
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.errors import EngineError, JudgeError, UserError
from practicum.models import loader
from practicum.policy import Judge, Policy
from practicum.registry import environment_class
from practicum.report.advantages import read_advantages
from practicum.report.episode import view
from practicum.report.terminal import episode_lines
from practicum.report.tokens import Tokenizers
from practicum.rollout import run_episode
from practicum.rollout_setup import split_url
from practicum.task import Task
from practicum.training.estimators import ESTIMATORS, EstimatorSettings, OverlongBuffer, estimate, token_rewards
from practicum.training.micro_batches import unweighted_samples
from practicum.training.objective import build_samples
from practicum.training.roles import check_roles, role_settings
from practicum.training.rollout_source import EpisodeSaver
from practicum.training.settings import estimator_settings
from practicum.trajectory import Attempt, Origin, Outcome, Seeds, StopReason, Trajectory

TOY_PATH = f"{Path(__file__).parents[1]}/docs/examples/manager_worker.py:ManagerWorker"
TOY = environment_class(TOY_PATH)


class EchoEngine:
    """Replies with given texts, in their order, and keeps every prompt that it was asked with."""

    name = "echo"

    def __init__(self, renderer: Renderer, texts: Sequence[str], sampled: Sequence[bool] = ()) -> None:
        self.renderer, self.texts, self.sampled = renderer, list(texts), list(sampled)
        self.requests: list[Request] = []
        self.replies: list[tuple[int, ...]] = []

    async def generate(self, request: Request) -> Generation:
        index = len(self.requests)
        self.requests.append(request)
        ids = self.renderer.encode_reply(self.texts[index % len(self.texts)])
        self.replies.append(ids)
        sampled = self.sampled[index % len(self.sampled)] if self.sampled else True
        logprobs = tuple(-0.5 for _ in ids) if sampled else None
        return Generation(ids, logprobs, StopReason.END, 3, "policy" if sampled else "cache", sampled=sampled)

    def end_session(self, session: str) -> None: ...

    async def close(self) -> None: ...


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    loaded = loader.load("tiny")
    return Renderer(loaded.tokenizer, None, loaded.end_ids)


def play(make_environment: Any, engine: Any, renderer: Renderer, agent: Agent, **more: Any) -> Trajectory:
    task = Task("t", "toy", "train", {"digits": [4, 7, 1, 2]})
    attempt = Attempt(task, 0, Seeds(1, 2))
    return asyncio.run(run_episode(attempt, make_environment, agent, engine, renderer, **more))


def manager_and_worker(renderer: Renderer, manager: str, worker: str, **more: Any) -> Trajectory:
    return play(TOY, EchoEngine(renderer, [manager, worker]), renderer, Agent(max_turns=2), **more)


def trained(episode: Trajectory, roles: tuple[str, ...] | None, renderer: Renderer) -> list[str]:
    """The text of the tokens that are trained, one per sample."""
    return [
        renderer.decode([token for token, masked in zip(sample.ids, sample.mask, strict=True) if masked])
        for sample in unweighted_samples(episode, roles=roles)
    ]


def test_each_role_is_shown_its_own_prompt_and_the_masks_are_those_of_the_trained_roles(renderer: Renderer) -> None:
    episode = manager_and_worker(renderer, "7", "0")
    assert episode.outcome is Outcome.SUCCESS
    assert [turn.role for turn in episode.turns] == ["manager", "worker"]
    manager, worker = (renderer.decode(sequence.ids) for sequence in episode.sequences())
    assert "Second: 4 7 1 2" in manager
    assert "Add 3: 7" in worker
    assert "Second" not in worker
    assert trained(episode, ("worker",), renderer) == ["0"]
    assert trained(episode, ("manager",), renderer) == ["7"]
    assert trained(episode, ("manager", "worker"), renderer) == ["7", "0"]
    assert trained(episode, None, renderer) == ["7", "0"]


def test_a_role_keeps_its_history_while_another_acts(renderer: Renderer) -> None:
    class Interleaved(Environment):
        name = "interleaved"

        async def reset(self, task: Task, seed: int) -> Observation:
            self.count = 0
            return Observation((Message("user", "a0"),), role="a")

        async def step(self, action: Action) -> Step:
            self.count += 1
            role = "ab"[self.count % 2]
            return Step(Observation((Message("user", f"{role}{self.count}"),), role=role), terminated=self.count == 4)

    engine = EchoEngine(renderer, ["w", "x", "y", "z"])
    episode = play(Interleaved, engine, renderer, Agent(max_turns=4))
    assert [turn.restart for turn in episode.turns] == [True, True, False, False]
    sequences = episode.sequences()
    assert [sorted(set(sequence.turns)) for sequence in sequences] == [[0, 2], [1, 3]]
    for request, reply, index in zip(engine.requests, engine.replies, range(4), strict=True):
        sequence = sequences[index % 2]
        assert sequence.ids[: len(request.ids) + len(reply)] == request.ids + reply
    assert {request.session for request in engine.requests[::2]} != {
        request.session for request in engine.requests[1::2]
    }


def test_a_branch_repeats_its_beginning_and_trains_it_once(renderer: Renderer) -> None:
    class Retry(Environment):
        name = "retry"

        async def reset(self, task: Task, seed: int) -> Observation:
            self.turns: list[int | None] = []
            return Observation((Message("user", "first"),))

        async def step(self, action: Action) -> Step:
            self.turns.append(action.turn)
            if len(self.turns) == 1:
                return Step(Observation((Message("user", "second"),)))
            if len(self.turns) == 2:  # back to the end of the first turn, with the same message
                return Step(Observation((Message("user", "second"),), continues=self.turns[0]))
            return Step(terminated=True, reward=1.0)

    engine = EchoEngine(renderer, ["one", "two", "three"])
    episode = play(Retry, engine, renderer, Agent(max_turns=3))
    assert engine.requests[1].ids == engine.requests[2].ids
    first, second = episode.sequences()
    assert first.ids == engine.requests[1].ids + engine.replies[1]
    assert second.ids == engine.requests[2].ids + engine.replies[2]
    assert trained(episode, None, renderer) == ["one<|im_end|>two", "three"]
    assert episode.turns[2].continues == 0
    assert decode_episode(encode_episode(episode)) == episode
    assert wrong_field(episode) is None


def test_an_action_that_no_model_wrote_is_context_and_never_trained(renderer: Renderer) -> None:
    engine = EchoEngine(renderer, ["7", "0"], sampled=[False, True])
    episode = play(TOY, engine, renderer, Agent(max_turns=2))
    assert [turn.source for turn in episode.turns] == ["cache", "policy"]
    assert all(span.origin is not Origin.SAMPLED for span in episode.turns[0].spans)
    assert trained(episode, None, renderer) == ["0"]
    read = decode_episode(encode_episode(episode))
    assert read == episode
    assert wrong_field(read) is None


def test_roles_have_their_own_engine_sampling_and_limit_of_turns(renderer: Renderer) -> None:
    remote = EchoEngine(renderer, ["7"])
    settings = RoleSettings(temperature=0.5, max_tokens=3, max_turns=1)
    agent = Agent(max_turns=2, sampling=Sampling(1.0))
    policy = settings.policy(remote, renderer, agent, "manager")
    episode = play(TOY, EchoEngine(renderer, ["0"]), renderer, agent, policies={"manager": policy})
    assert episode.outcome is Outcome.SUCCESS
    assert remote.requests[0].sampling.temperature == 0.5
    assert remote.requests[0].sampling.max_tokens == 3
    assert [turn.temperature for turn in episode.turns] == [0.5, None]
    samples = unweighted_samples(episode, temperature=1.0)
    assert [sample.temperature for sample in samples] == [0.5, 1.0]


def test_a_role_beyond_its_turns_truncates_the_episode(renderer: Renderer) -> None:
    agent = Agent(max_turns=5)
    settings = RoleSettings(max_turns=1)
    engine = EchoEngine(renderer, ["<think>never closed"])  # an answer that does not parse is asked for again
    episode = play(
        TOY, engine, renderer, agent, policies={"manager": settings.policy(engine, renderer, agent, "manager")}
    )
    assert episode.outcome is Outcome.TRUNCATED
    assert len(episode.turns) == 1


def test_log_probs_are_needed_of_the_trained_roles_only(renderer: Renderer) -> None:
    engine = EchoEngine(renderer, ["7", "0"])
    episode = play(TOY, engine, renderer, Agent(max_turns=2))
    text = encode_episode(episode).decode().splitlines()
    manager = json.loads(text[1])
    del manager["spans"][-1]["logprobs"]  # as a chat server replies
    episode = decode_episode("\n".join([text[0], json.dumps(manager), *text[2:], ""]).encode())
    advantages = [[np.ones(episode.turns[1].num_sampled)]]
    ((only,),) = build_samples([[episode]], advantages, "token-mean", 1.0, roles=("worker",))
    assert renderer.decode([only.samples[0].ids[i] for i in np.flatnonzero(only.samples[0].mask)]) == "0"
    with pytest.raises(Exception, match="no sampling log-probs"):
        build_samples([[episode]], [[np.ones(4)]], "token-mean", 1.0)


def test_confidence_is_the_geometric_mean_of_the_token_probabilities(renderer: Renderer) -> None:
    episode = manager_and_worker(renderer, "7", "0")
    assert episode.turns[0].action.confidence == pytest.approx(np.exp(-0.5))
    assert decode_episode(encode_episode(episode)).turns[0].action.confidence == pytest.approx(np.exp(-0.5))


# -- credit ---------------------------------------------------------------------------------


def advantages_of(episodes: list[Trajectory], **settings: Any) -> list[list[float]]:
    chosen = EstimatorSettings(norm_adv_by_std_in_grpo=False, **settings)
    rewards = [[token_rewards(episode, chosen) for episode in episodes]]
    result = estimate(ESTIMATORS["grpo"], [episodes], rewards, chosen)
    return [[float(value) for value in row] for row in result.advantages[0]]


def test_shared_credit_gives_all_roles_the_reward_and_own_credit_each_its_own(renderer: Renderer) -> None:
    # Manager right, worker right; manager right, worker wrong: two tokens per reply (a digit and the end).
    episodes = [manager_and_worker(renderer, "7", "0"), manager_and_worker(renderer, "7", "1")]
    both = ("manager", "worker")
    assert advantages_of(episodes, train_roles=both) == [[0.5] * 4, [-0.5] * 4]
    assert advantages_of(episodes, train_roles=both, role_credit="own") == [
        [0.0, 0.0, 0.5, 0.5],
        [0.0, 0.0, -0.5, -0.5],
    ]
    assert advantages_of(episodes, train_roles=("manager",), role_credit="own") == [[0.0] * 2, [0.0] * 2]


def test_a_long_reply_costs_the_role_that_wrote_it(renderer: Renderer) -> None:
    episode = manager_and_worker(renderer, "7 7", "0")  # four tokens, then two; the answer is right
    settings = EstimatorSettings(
        train_roles=("manager", "worker"), role_credit="own", overlong_buffer=OverlongBuffer(1, 5.0, 4)
    )
    assert token_rewards(episode, settings).rewards.tolist() == [0.0, 0.0, 0.0, -5.0, 0.0, 0.0]
    shared = replace(settings, role_credit="shared")
    assert token_rewards(episode, shared).rewards.tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, -4.0]
    config = resolve_train(
        ["agent.train_roles=[manager,worker]", "agent.roles.worker.max_tokens_per_turn=2",
         "agent.roles.judge.max_tokens_per_turn=1", "algorithm.overlong_buffer.enable=true",
         "algorithm.overlong_buffer.len=1", "algorithm.adv_estimator=grpo", "trainer.total_training_steps=1"]
    ).config  # fmt: skip
    limits = replace(settings, overlong_buffer=estimator_settings(config).overlong_buffer)
    assert token_rewards(episode, limits).rewards.tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, -1.0]
    config.algorithm.overlong_buffer.len = 3
    with pytest.raises(UserError, match="more than a reply may have"):
        estimator_settings(config)


# -- any tree of turns ----------------------------------------------------------------------


class Planned(Environment):
    """Follows a plan: for every turn the role, whether it is fresh, and the turn that it continues."""

    name = "planned"

    def __init__(self, plan: list[tuple[str, bool, int | None]]) -> None:
        self.plan, self.index = plan, 0

    def _observe(self) -> Observation:
        role, fresh, continues = self.plan[self.index]
        return Observation((Message("user", f"{role} {self.index}"),), role=role, fresh=fresh, continues=continues)

    async def reset(self, task: Task, seed: int) -> Observation:
        return self._observe()

    async def step(self, action: Action) -> Step:
        self.index += 1
        if self.index == len(self.plan):
            return Step(terminated=True, reward=1.0)
        return Step(self._observe())


@st.composite
def plans(draw: st.DrawFn) -> list[tuple[str, bool, int | None]]:
    plan: list[tuple[str, bool, int | None]] = []
    for index in range(draw(st.integers(1, 8))):
        fresh = draw(st.booleans())
        continues = draw(st.none() | st.integers(0, index - 1)) if index and not fresh else None
        plan.append((draw(st.sampled_from(["a", "b", "c"])), fresh, continues))
    return plan


@given(
    plan=plans(),
    texts=st.lists(st.sampled_from(["x", "yes no", "<think>hm</think>y", "12"]), min_size=8, max_size=8),
    sampled=st.lists(st.booleans(), min_size=8, max_size=8),
    roles=st.none() | st.sets(st.sampled_from(["a", "b", "c"])),
    thoughts=st.sampled_from(["keep", "strip"]),
)
def test_every_path_is_what_the_engine_saw_and_each_trained_token_is_trained_once(
    renderer: Renderer,
    plan: list[tuple[str, bool, int | None]],
    texts: list[str],
    sampled: list[bool],
    roles: set[str] | None,
    thoughts: str,
) -> None:
    engine = EchoEngine(renderer, texts, sampled)
    agent = Agent(max_turns=len(plan), thoughts=thoughts)
    episode = play(lambda: Planned(plan), engine, renderer, agent)
    assert episode.outcome is Outcome.SUCCESS, episode.error
    sequences = episode.sequences()
    seen = [request.ids + reply for request, reply in zip(engine.requests, engine.replies, strict=True)]
    # Each turn's ids begin a sequence, and each sequence is one turn's ids.
    for ids in seen:
        assert any(sequence.ids[: len(ids)] == ids for sequence in sequences)
    assert all(sequence.ids in seen for sequence in sequences)
    # Each token of a trained role's reply is trained once, no other ever.
    samples = unweighted_samples(episode, roles=roles)
    positions = [int(position) for sample in samples for position in sample.positions]
    target = [turn for turn in episode.turns if roles is None or turn.role in roles]
    assert sorted(positions) == list(range(sum(turn.num_sampled for turn in target)))
    tokens = [sample.ids[index] for sample in samples for index in np.flatnonzero(sample.mask)]
    order = np.argsort(positions)
    expected = [t for turn in target for span in turn.spans if span.origin is Origin.SAMPLED for t in span.ids]
    assert [tokens[index] for index in order] == expected
    assert decode_episode(encode_episode(episode)) == episode
    assert wrong_field(episode) is None


# -- policies outside of an episode ---------------------------------------------------------


def test_a_policy_replies_outside_of_an_episode(renderer: Renderer) -> None:
    engine = EchoEngine(renderer, ['{"score": 3}'])
    policy = Policy(engine, renderer, sampling=Sampling(0.0, max_tokens=20), role="judge")
    requests = [Message("user", "How good is it?")]
    reply = asyncio.run(policy.reply(requests, response_format={"type": "json_object"}))
    assert (reply.text, reply.data) == ('{"score": 3}', {"score": 3})
    assert reply.usage.completion_tokens == len(reply.ids) == len(reply.logprobs or ())
    assert reply.confidence == pytest.approx(np.exp(-0.5))
    assert engine.requests[0].response_format == {"type": "json_object"}
    asyncio.run(policy.reply(requests))
    asyncio.run(policy.reply([Message("user", "And this?")]))
    first, again, other = (request.sampling.seed for request in engine.requests)
    assert again != other
    assert first != again  # the response format is part of the question


def test_a_judge_is_asked_once_and_its_engine_failing_is_a_judge_error(renderer: Renderer) -> None:
    engine = EchoEngine(renderer, ["4"])
    judge = Judge(Policy(engine, renderer))

    async def ask_thrice() -> list[str]:
        requests = [Message("user", "x")]
        both = await asyncio.gather(judge.reply(requests), judge.reply(requests))
        return [reply.text for reply in (*both, await judge.reply(requests))]

    assert asyncio.run(ask_thrice()) == ["4", "4", "4"]
    assert len(engine.requests) == 1

    class Broken(EchoEngine):
        async def generate(self, request: Request) -> Generation:
            raise EngineError("gone")

    with pytest.raises(JudgeError, match="gone"):
        asyncio.run(Judge(Policy(Broken(renderer, [""]), renderer)).reply([Message("user", "x")]))


def test_a_question_is_asked_again_where_whoever_asked_it_first_was_stopped(renderer: Renderer) -> None:
    class Slow(EchoEngine):
        async def generate(self, request: Request) -> Generation:
            await asyncio.sleep(0.01)
            return await super().generate(request)

    engine = Slow(renderer, ["4"])
    judge, requests = Judge(Policy(engine, renderer)), [Message("user", "x")]

    async def stop_the_first() -> list[Any]:
        tasks = [asyncio.create_task(judge.reply(requests)) for _ in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, *others = asyncio.run(stop_the_first())
    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(second, asyncio.CancelledError)
    assert [reply.text for reply in others] == ["4", "4"]
    assert len(engine.requests) == 1  # the first one was stopped before it was answered


def test_a_branch_has_the_tools_of_the_turn_that_it_continues(renderer: Renderer) -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("first", "second")]

    class Retry(Environment):
        name = "retry"

        async def reset(self, task: Task, seed: int) -> Observation:
            self.count = 0
            return Observation((Message("user", "0"),), (tools[0],))

        async def step(self, action: Action) -> Step:
            self.count += 1
            if self.count == 1:
                return Step(Observation((Message("user", "1"),), (tools[1],), fresh=True))
            return Step(Observation((Message("user", "2"),), continues=0), terminated=self.count == 3)

    engine = EchoEngine(renderer, ["w"])
    play(Retry, engine, renderer, Agent(max_turns=3))
    assert [[tool["function"]["name"] for tool in request.tools] for request in engine.requests] == [
        ["first"],
        ["second"],
        ["first"],
    ]


def test_the_printed_episode_says_who_spoke_and_what_a_prompt_continues(renderer: Renderer) -> None:
    plan: list[tuple[str, bool, int | None]] = [("a", False, None), ("b", False, None), ("a", False, None)]
    plan += [("a", True, None), ("b", False, 0)]
    engine = EchoEngine(renderer, ["x"])
    episode = play(lambda: Planned(plan), engine, renderer, Agent(max_turns=5))
    lines = episode_lines(episode, renderer.tokenizer, coloured=False, logprobs=False)
    heads = [line.partition(", policy")[0] for line in lines if line.startswith("── turn")]
    assert heads == [
        "── turn 0: a",
        "── turn 1: b, new prompt",
        "── turn 2: a, continues turn 0",
        "── turn 3: a, new prompt (fresh prompt)",
        "── turn 4: b, continues turn 0 (other messages after turn 0)",
    ]


class Retrying(Environment):
    """Two replies to the same first prompt, then two to the same second one; the environment says why of the last."""

    name = "retrying"

    async def reset(self, task: Task, seed: int) -> Observation:
        self.steps = 0
        return Observation((Message("user", "say a"),))

    async def step(self, action: Action) -> Step:
        self.steps += 1
        again = Observation((Message("user", "say a"),), fresh=True)
        more = Observation((Message("user", "say b"),))
        edited = Observation((Message("user", "say c"),), continues=1, branch_reason="edited reply")
        order = [again, more, replace(more, continues=1), edited]
        return Step(order[self.steps - 1]) if self.steps < 5 else Step(reward=1.0, terminated=True)


def test_a_branch_records_why_it_began_and_both_views_say_it(renderer: Renderer) -> None:
    episode = play(Retrying, EchoEngine(renderer, ["x"]), renderer, Agent(max_turns=5))
    same = "another reply to the same prompt"
    reasons = ["", same, "", same, "edited reply"]
    assert [turn.branch_reason for turn in episode.turns] == reasons
    data = encode_episode(episode)
    assert [turn.branch_reason for turn in decode_episode(data).turns] == reasons
    assert data.count(b'"branch_reason"') == 3
    assert "line 6: 'branch_reason'" in str(wrong_field(decode_episode(data.replace(b'"edited reply"', b"7"))))
    lines = episode_lines(episode, renderer.tokenizer, coloured=False, logprobs=False)
    heads = [line.partition(", policy")[0] for line in lines if line.startswith("── turn")]
    assert heads[1] == f"── turn 1: new prompt ({same})"
    assert heads[4] == "── turn 4: continues turn 1 (edited reply)"
    assert [turn["reason"] for turn in view(episode, Tokenizers())["turns"]] == reasons


def test_a_history_without_its_reasoning_is_shown_as_rewritten_and_records_nothing_new(renderer: Renderer) -> None:
    plan: list[tuple[str, bool, int | None]] = [("policy", False, None)] * 2
    engine = EchoEngine(renderer, ["<think>hm</think>x"])
    episode = play(lambda: Planned(plan), engine, renderer, Agent(max_turns=2, thoughts="strip"))
    assert episode.turns[1].restart
    assert b"branch_reason" not in encode_episode(episode)
    assert [turn["reason"] for turn in view(episode, Tokenizers())["turns"]] == ["", "rewritten history"]


def test_advantages_of_the_trained_roles_are_shown_and_others_have_none(tmp_path: Path, renderer: Renderer) -> None:
    episode = manager_and_worker(renderer, "7", "10")
    rows = token_rewards(episode, EstimatorSettings(train_roles=("worker",))).rewards
    saver = EpisodeSaver(tmp_path, "grpo", ("worker",))
    saver.set_advantages([[episode]], [[np.full(len(rows), 0.5)]])
    saver.save_group(1)
    (path,) = tmp_path.rglob("*__attempt_*.jsonl")
    advantages = read_advantages(path)
    assert advantages is not None
    assert advantages.mean == 0.5
    manager, worker = (turn.num_sampled for turn in episode.turns)
    assert advantages.values == [None] * manager + [0.5] * worker
    episode = replace(episode, provenance={**episode.provenance, "model": "tiny"})
    turns = view(episode, Tokenizers(), advantages)["turns"]
    shown = [span["advantages"] for turn in turns for span in turn["spans"] if span["origin"] == "sampled"]
    assert [set(values) for values in shown] == [{None}, {0.5}]


def test_logged_episodes_of_two_policies_with_one_attempt_number_keep_their_own_advantages(
    tmp_path: Path, renderer: Renderer
) -> None:
    group = [manager_and_worker(renderer, "7", "10"), manager_and_worker(renderer, "7", "10 or 11")]
    lengths = [sum(turn.num_sampled for turn in episode.turns) for episode in group]
    assert group[0].attempt == group[1].attempt
    assert lengths[0] != lengths[1]
    saver = EpisodeSaver(tmp_path, "grpo")
    saver.set_advantages([group], [[np.full(lengths[0], 0.5), np.full(lengths[1], -0.5)]])
    saver.save_group(1)
    saved = {path: read_advantages(path) for path in sorted(tmp_path.rglob("*__attempt_*.jsonl"))}
    assert [row.mean for row in saved.values() if row is not None] == [0.5, -0.5]


def test_a_role_names_a_model_by_a_path_with_an_at_sign_or_a_server() -> None:
    assert split_url("runs/a@b/model") == ("runs/a@b/model", None)
    assert split_url("qwen@http://host:8000/v1") == ("qwen", "http://host:8000/v1")


def test_a_role_has_its_temperature_in_training_and_the_agents_in_validation() -> None:
    keys = ["agent.roles.worker.temperature=0.5", "actor_rollout_ref.rollout.val_temperature=1.0"]
    config = resolve_train([f"agent.environment={TOY_PATH}", *keys]).config
    assert role_settings(config, validating=False)["worker"].temperature == 0.5
    assert role_settings(config, validating=True)["worker"].temperature is None


class Asking(TOY):  # type: ignore[misc, valid-type]
    def model_names(self) -> tuple[str, ...]:
        return ("judge",)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["agent.roles.worker.tokenizer=smollm2"], "needs agent.roles.worker.url"),
        (["agent.roles.judge.max_turns=2"], "has no earlier turns"),
        (["agent.roles.judge.thoughts=strip"], "has no earlier turns"),
        (
            ["agent.roles.worker.adapter=true", "actor_rollout_ref.model.lora_rank=4",
             "actor_rollout_ref.rollout.name=vllm"],
            "needs actor_rollout_ref.rollout.name=local",
        ),
    ],
)  # fmt: skip
def test_a_setting_of_a_role_that_would_have_no_effect_is_refused(overrides: list[str], sentence: str) -> None:
    base = ["agent.roles.judge.model=tiny", "algorithm.adv_estimator=grpo", "trainer.total_training_steps=1"]
    config = resolve_train([*base, *overrides]).config
    with pytest.raises(UserError, match=sentence):
        check_roles(config, Asking())

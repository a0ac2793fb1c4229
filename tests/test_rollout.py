"""The agent loop: what is recorded, and that a failure stays its own episode's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import pytest

from practicum.agent import Agent, Deadlines
from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.environments.math import MathEnvironment
from practicum.errors import EngineError, JudgeError, UserError
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.policy import Conversation, Policy, sampling_with_seed
from practicum.registry import make_format
from practicum.rollout import run_episode, run_episodes
from practicum.task import Task
from practicum.trajectory import ActionSource, Attempt, Origin, Outcome, StopReason, Trajectory, Turn, plan_attempts


class Says:
    """An engine that gives prepared replies, in order."""

    name = "says"

    def __init__(self, renderer: Renderer, *replies: str, delay: float = 0.0) -> None:
        self.renderer, self.replies, self.delay = renderer, list(replies), delay
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> Generation:
        self.requests.append(request)
        await asyncio.sleep(self.delay)
        if not self.replies:
            raise EngineError("nothing left to say")
        ids = self.renderer.encode_reply(self.replies.pop(0))
        return Generation(ids, tuple(-0.5 for _ in ids), StopReason.END, 3, ActionSource.POLICY)

    def end_session(self, session: str) -> None:
        self.forgotten = session

    async def close(self) -> None:
        return None


TASK = MathEnvironment().tasks("train", 2)[1]
CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "40-6"}}</tool_call>'


def play(
    renderer: Renderer,
    *replies: str,
    agent: Agent | None = None,
    make: type[Environment] = MathEnvironment,
    delay: float = 0.0,
) -> Trajectory:
    (attempt,) = plan_attempts([TASK], 1, 0)
    return asyncio.run(run_episode(attempt, make, agent or Agent(), Says(renderer, *replies, delay=delay), renderer))


def test_a_whole_episode_is_recorded(renderer: Renderer) -> None:
    episode = play(renderer, CALL, str(TASK.fields["answer"]))
    assert episode.outcome is Outcome.SUCCESS
    assert episode.reward == 1.0
    assert [m.content for m in episode.turns[1].messages] == ["34"]
    assert [turn.policy_version for turn in episode.turns] == [3, 3]
    (run,) = episode.sequences()
    texts = [i for turn in episode.turns for span in turn.spans if span.origin is Origin.SAMPLED for i in span.ids]
    assert [i for i, on in zip(run.ids, run.sampled, strict=True) if on] == texts
    assert all((value is not None) == on for value, on in zip(run.logprobs, run.sampled, strict=True))


def test_a_wrong_answer_is_a_failure(renderer: Renderer) -> None:
    assert play(renderer, "99999").outcome is Outcome.FAILURE


def test_a_reply_that_does_not_parse_is_answered_not_ended(renderer: Renderer) -> None:
    episode = play(renderer, "<tool_call>{oops</tool_call>", str(TASK.fields["answer"]))
    assert episode.outcome is Outcome.SUCCESS
    assert episode.invalid_replies == 1
    assert "not valid JSON" in episode.turns[1].messages[0].content


def test_unknown_tools_and_bad_arguments_become_observations(renderer: Renderer) -> None:
    wrong = '<tool_call>{"name": "calculater", "arguments": {}}</tool_call>'
    empty = '<tool_call>{"name": "calculator", "arguments": {}}</tool_call>'
    episode = play(renderer, wrong, empty, "1")
    assert "no tool 'calculater'. Did you mean 'calculator'?" in episode.turns[1].messages[0].content
    assert "needs the argument 'expression'" in episode.turns[2].messages[0].content


def test_running_out_of_turns_is_truncated_and_scored(renderer: Renderer) -> None:
    episode = play(renderer, CALL, CALL, CALL, agent=Agent(max_turns=2))
    assert (episode.outcome, len(episode.turns), episode.scored) == (Outcome.TRUNCATED, 2, True)


def test_an_engine_that_fails(renderer: Renderer) -> None:
    episode = play(renderer, CALL)
    assert (episode.outcome, episode.error) == (Outcome.ENGINE_ERROR, "nothing left to say")
    assert not episode.scored


class Broken(MathEnvironment):
    async def step(self, action: Action) -> Step:
        raise RuntimeError("the world broke")


class Hanging(MathEnvironment):
    async def step(self, action: Action) -> Step:
        await asyncio.sleep(60)
        return Step()


class Unjudged(MathEnvironment):
    async def step(self, action: Action) -> Step:
        raise JudgeError("the judge is ill")


class Unmakeable(MathEnvironment):
    def __init__(self) -> None:
        raise OSError("no licence for the simulator")


class Unwritable(MathEnvironment):
    async def step(self, action: Action) -> Step:
        return Step(info={"object": object()}, terminated=True)


class BadPart(MathEnvironment):
    async def step(self, action: Action) -> Step:
        return Step(components={"speed": float("inf")}, terminated=True)


class NotANumber(MathEnvironment):
    async def step(self, action: Action) -> Step:
        return Step(reward=float("nan"), terminated=True)


SHORT = Agent(deadlines=Deadlines(reset=0.2, generate=0.2, step=0.2, episode=5.0))


@pytest.mark.parametrize(
    ("make", "outcome", "message"),
    [
        (Broken, Outcome.ENV_ERROR, "RuntimeError: the world broke"),
        (Hanging, Outcome.TIMEOUT, "environment step did not answer within 0.2 s"),
        (Unjudged, Outcome.JUDGE_ERROR, "the judge is ill"),
        (NotANumber, Outcome.ENV_ERROR, "reward nan"),
        (BadPart, Outcome.ENV_ERROR, "speed inf"),
        (Unwritable, Outcome.ENV_ERROR, "cannot be written as JSON"),
        (Unmakeable, Outcome.ENV_ERROR, "no licence"),
    ],
)
def test_failures_have_their_own_outcome(
    renderer: Renderer, make: type[Environment], outcome: Outcome, message: str
) -> None:
    episode = play(renderer, CALL, agent=SHORT, make=make)
    assert episode.outcome is outcome
    assert message in (episode.error or "")
    assert not episode.scored


def test_a_slow_engine_meets_its_deadline(renderer: Renderer) -> None:
    episode = play(renderer, CALL, agent=SHORT, delay=5.0)
    assert (episode.outcome, episode.error) == (Outcome.TIMEOUT, "engine did not answer within 0.2 s")


class Talkative(MathEnvironment):
    async def step(self, action: Action) -> Step:
        return Step(Observation((Message("user", "word " * 300),)))


def test_a_conversation_that_outgrows_the_window_is_cut_and_scored(renderer: Renderer) -> None:
    async def run() -> Trajectory:
        engine = LocalEngine(Decoder(loader.load_tiny(0).model), renderer)
        (attempt,) = plan_attempts([TASK], 1, 0)
        try:
            agent = Agent(max_turns=20, sampling=Sampling(max_tokens=30, stop=("e", "a", "o")))
            return await run_episode(attempt, Talkative, agent, engine, renderer)
        finally:
            await engine.close()

    episode = asyncio.run(run())
    assert (episode.outcome, episode.error) == (Outcome.TRUNCATED, None)
    assert 1 < len(episode.turns) < 20


def test_half_an_answer_is_not_judged(renderer: Renderer) -> None:
    class Cut(Says):
        async def generate(self, request: Request) -> Generation:
            reply = await super().generate(request)
            return replace(reply, ids=reply.ids[:-1], logprobs=None, stop_reason=StopReason.LENGTH)

    (attempt,) = plan_attempts([TASK], 1, 0)
    answer = str(TASK.fields["answer"])
    episode = asyncio.run(
        run_episode(attempt, MathEnvironment, Agent(max_turns=2), Cut(renderer, answer, answer), renderer)
    )
    assert episode.outcome is Outcome.TRUNCATED
    assert episode.invalid_replies == 2
    assert "cut off" in episode.turns[1].messages[0].content


class Sometimes(MathEnvironment):
    """Raises on every third task."""

    async def reset(self, task: Task, seed: int) -> Observation:
        if int(task.id.rsplit("-", 1)[1]) % 3 == 0:
            raise OSError("no such simulator")
        return await super().reset(task, seed)


def test_one_episode_s_failure_is_nothing_to_the_others(renderer: Renderer) -> None:
    world = MathEnvironment()
    expert = ScriptedEngine.of("expert", world, make_format("hf"), renderer)
    planned = plan_attempts(world.tasks("train", 30), 1, 0)
    episodes = asyncio.run(run_episodes(planned, Sometimes, Agent(max_turns=6), expert, renderer))
    assert [e.task.id for e in episodes] == [a.task.id for a in planned]
    for number, episode in enumerate(episodes):
        assert episode.outcome is (Outcome.ENV_ERROR if number % 3 == 0 else Outcome.SUCCESS)


def test_a_wrong_setting_stops_everything(renderer: Renderer) -> None:
    class Wrong(MathEnvironment):
        async def reset(self, task: Task, seed: int) -> Observation:
            raise UserError("set it right")

    with pytest.raises(UserError, match="set it right"):
        play(renderer, CALL, make=Wrong)


def test_retries_are_for_the_unscored_only(renderer: Renderer) -> None:
    tries: list[str] = []

    class Flaky(MathEnvironment):
        async def reset(self, task: Task, seed: int) -> Observation:
            tries.append(task.id)
            if len(tries) == 1:
                raise OSError("first time unlucky")
            return await super().reset(task, seed)

    expert = ScriptedEngine.of("expert", MathEnvironment(), make_format("hf"), renderer)
    (episode,) = asyncio.run(
        run_episodes(plan_attempts([TASK], 1, 0), Flaky, Agent(max_turns=6), expert, renderer, retries=1)
    )
    assert episode.outcome is Outcome.SUCCESS
    assert len(tries) == 2


class Waiting(MathEnvironment):
    """One task's world answers only when all the others are through, in a way that blocks a thread."""

    others_done = threading.Event()

    async def step(self, action: Action) -> Step:
        if self._task is not None and self._task.id.endswith("-0"):
            assert await asyncio.to_thread(self.others_done.wait, 60)
        return await super().step(action)


def test_a_slow_tool_never_stops_the_decoding_of_others(renderer: Renderer) -> None:
    finished: list[str] = []

    def done(episode: Trajectory) -> None:
        finished.append(episode.task.id)
        if len(finished) == 11:
            Waiting.others_done.set()

    async def run() -> Sequence[Trajectory]:
        engine = LocalEngine(Decoder(loader.load_tiny(0).model), renderer)
        agent = Agent(max_turns=2, sampling=Sampling(max_tokens=12, stop=("e", "a", "o")))
        planned = plan_attempts(MathEnvironment().tasks("train", 12), 1, 0)
        try:
            return await run_episodes(planned, Waiting, agent, engine, renderer, on_done=done)
        finally:
            await engine.close()

    episodes = asyncio.run(run())
    assert finished[11:] == ["math-train-0-0"]
    assert not any(episode.outcome is Outcome.ENV_ERROR for episode in episodes)


def test_seeds_are_separate_and_kept() -> None:
    first, second = plan_attempts([TASK], 2, 7)
    assert first.seeds.environment == second.seeds.environment
    assert first.seeds.sampling != second.seeds.sampling
    assert plan_attempts([TASK], 2, 7) == [first, second]
    assert plan_attempts([TASK], 1, 8)[0].seeds.environment != first.seeds.environment


class ReplayEngine:
    """Repeats the replies of recorded episodes id for id; the environment may answer differently."""

    name = "replay"

    def __init__(self, episodes: Mapping[str, Trajectory]) -> None:
        self.episodes = episodes
        self._next_turn: dict[str, int] = {}

    async def generate(self, request: Request) -> Generation:
        index = self._next_turn.get(request.session, 0)
        recorded = self.episodes.get(request.task.id)
        if recorded is None or index >= len(recorded.turns):
            raise EngineError(f"no recorded turn {index} for task '{request.task.id}'")
        self._next_turn[request.session] = index + 1
        turn = recorded.turns[index]
        span = next(span for span in turn.spans if span.origin is Origin.SAMPLED)
        return Generation(span.ids, span.logprobs, turn.stop_reason, turn.policy_version, ActionSource.REPLAY)

    def end_session(self, session: str) -> None:
        self._next_turn.pop(session, None)

    async def close(self) -> None:
        self._next_turn.clear()


def test_recorded_replies_give_the_same_episode_again(renderer: Renderer) -> None:
    episode = play(renderer, CALL, str(TASK.fields["answer"]))
    attempt = Attempt(TASK, 0, episode.seeds)
    again = asyncio.run(run_episode(attempt, MathEnvironment, Agent(), ReplayEngine({TASK.id: episode}), renderer))
    assert again.sequences() == episode.sequences()
    assert {turn.source for turn in again.turns} == {ActionSource.REPLAY}
    assert (again.outcome, again.reward) == (episode.outcome, episode.reward)


def test_a_plain_class_in_one_file_is_an_environment(renderer: Renderer) -> None:
    class Parrot(Environment):
        async def reset(self, task: Task, seed: int) -> Observation:
            return Observation((Message("user", "Say hello."),))

        async def step(self, action: Action) -> Step:
            return Step(reward=float("hello" in action.content), terminated=True)

    (attempt,) = plan_attempts([Task("p", "parrot", "train")], 1, 0)
    engine = Says(renderer, "hello there")
    episode = asyncio.run(run_episode(attempt, Parrot, replace(Agent(), format="hf"), engine, renderer))
    assert (episode.outcome, episode.reward) == (Outcome.SUCCESS, 1.0)


def test_records_that_are_copied_field_by_field_lose_none(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {kind: [field.name for field in fields(kind)] for kind in (Turn, Sampling, Action)}
    turn = Turn(*names[Turn])  # type: ignore[arg-type]  # every field has a value of its own
    changes = {"reward": 2.0, "components": {"a": 1.0}, "progress": 0.5, "info": {}, "role_rewards": {"b": 2.0}}
    assert turn.with_step(**changes) == replace(turn, **changes)  # type: ignore[arg-type]
    sampling = replace(Sampling(*names[Sampling]), stop=("x",))  # type: ignore[arg-type]
    assert sampling_with_seed(sampling, 7, ("y",)) == replace(sampling, seed=7, stop=("x", "y"))
    action = Action(*names[Action])  # type: ignore[arg-type]
    policy = Policy(Says(renderer), renderer)
    monkeypatch.setattr(type(policy.reply_format), "parse", lambda *_: action)
    generation = Generation(renderer.encode_reply("x"), None, StopReason.END, 3, ActionSource.POLICY)
    _, parsed = Conversation(policy, "").parse(generation, 4)
    assert [getattr(parsed, name) for name in names[Action]] == [*names[Action][:5], None, 4]


def test_episodes_of_a_rollout_share_one_policy(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr("practicum.policy.make_format", lambda name: made.append(name) or make_format(name))
    attempts = plan_attempts([TASK], 4, 0)
    run = run_episodes(attempts, MathEnvironment, Agent(), Says(renderer, *"1234"), renderer)
    assert len(asyncio.run(run)) == 4
    assert len(made) == 1

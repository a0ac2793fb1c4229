"""Episodes with several roles, fresh prompts and branches as rows, samples and pairs: golden texts and masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.cli.main import main
from practicum.data import export
from practicum.data.preferences import mine_preferences
from practicum.data.state_index import Visit, branch_owners, failed, histories, prompt_ids, visits
from practicum.data.store import decode_episode, encode_episode, write_episode
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.models import loader
from practicum.task import Task
from practicum.training.micro_batches import Sample, sft_samples
from practicum.training.preference_pairs import mine_pairs
from practicum.trajectory import Trajectory, learned_roles
from tests.test_roles import TOY_PATH, EchoEngine, play

END = "<|im_end|>"
REPLIES = ["split", "one", "next", "two", "bad", "good"]


def say(text: str, **more: Any) -> Observation:
    return Observation((Message("user", text),), **more)


class Delegating(Environment):
    """A manager and a worker with fresh prompts; the worker's last question is asked twice."""

    name = "delegating"
    roles = ("worker", "manager")

    async def reset(self, task: Task, seed: int) -> Observation:
        self.steps = 0
        return say("plan", role="manager")

    async def step(self, action: Action) -> Step:
        self.steps += 1
        order = [
            say("do a", role="worker", fresh=True),
            say("a is done", role="manager"),
            say("do b", role="worker", fresh=True),
            say("check b", role="worker"),
            say("check b", role="worker", continues=3, branch_reason="retry"),
        ]
        if self.steps <= len(order):
            return Step(order[self.steps - 1], reward=-0.25 if action.content == "bad" else 0.0)
        return Step(reward=float(action.content == "good"), terminated=True)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    loaded = loader.load("tiny")
    return Renderer(loaded.tokenizer, None, loaded.end_ids)


@pytest.fixture(scope="module")
def episode(renderer: Renderer) -> Trajectory:
    return decode_episode(encode_episode(play(Delegating, EchoEngine(renderer, REPLIES), renderer, Agent(max_turns=9))))


def trained_text(sample: Sample, renderer: Renderer) -> str:
    return renderer.decode([i for i, on in zip(sample.ids, sample.mask, strict=True) if on])


def conversation(row: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(message["content"], message["train"]) for message in row["messages"]]


def test_the_record_names_the_roles_in_training(episode: Trajectory) -> None:
    assert learned_roles(episode) == ("worker",)
    assert learned_roles(episode, ["manager"]) == ["manager"]
    assert export.successful_episodes([episode], "default") == [episode]


def test_a_conversation_is_a_row_and_each_reply_is_trained_once(episode: Trajectory) -> None:
    do_b = ("do b", False)
    worker = [
        [("do a", False), ("one", True)],
        [do_b, ("two", True), ("check b", False), ("bad", True)],
        [do_b, ("two", False), ("check b", False), ("good", True)],
    ]
    manager = [("plan", False), ("split", True), ("a is done", False), ("next", True)]
    rows = list(export.sft_rows([episode]))
    assert [conversation(row) for row in rows] == worker
    assert {row["agent_role"] for row in rows} == {"worker"}
    assert [conversation(row) for row in export.sft_rows([episode], ["manager"])] == [manager]
    both = list(export.sft_rows([episode], ["manager", "worker"]))
    assert [conversation(row) for row in both] == [worker[0], manager, *worker[1:]]


def test_samples_have_the_ids_that_were_sampled_and_the_masks_of_the_rows(
    episode: Trajectory, renderer: Renderer
) -> None:
    samples = sft_samples([episode], learned_roles(episode))
    assert [trained_text(sample, renderer) for sample in samples] == ["one", f"two{END}bad", "good"]
    paths = [[1], [3, 4], [3, 5]]
    for sample, path in zip(samples, paths, strict=True):
        assert sample.ids == tuple(i for n in path for span in episode.turns[n].spans for i in span.ids)
    (manager,) = sft_samples([episode], ("manager",))
    assert trained_text(manager, renderer) == f"split{END}next"


def test_steps_are_rows_with_the_prompt_of_their_own_role(episode: Trajectory, renderer: Renderer) -> None:
    rows = list(export.bc_rows([episode], export.plain_prompt))
    assert [(row["step_idx"], row["action"]) for row in rows] == [(2, "one"), (4, "two"), (5, "bad"), (6, "good")]
    assert rows[3]["prompt"] == "[user]\ndo b\n\n[assistant]\ntwo\n\n[user]\ncheck b"
    assert prompt_ids(episode, 5) == prompt_ids(episode, 4)
    shown = renderer.decode(list(prompt_ids(episode, 2)))
    assert "plan" in shown and "a is done" in shown and "do a" not in shown  # noqa: PT018


def test_two_replies_to_one_prompt_are_a_pair_each_with_what_followed_it(
    episode: Trajectory, renderer: Renderer
) -> None:
    (pair,) = mine_pairs([episode])
    assert (pair.turn, pair.margin) == (5, 1.25)
    assert [trained_text(side, renderer) for side in (pair.chosen, pair.rejected)] == ["good", "bad"]
    assert pair.chosen.ids[: -sum(pair.chosen.mask)] == pair.rejected.ids[: -sum(pair.rejected.mask)]
    for strategy in ("default", "same_state"):
        (mined,) = mine_preferences([episode], strategy)
        assert (mined.chosen.turn.reply, mined.rejected.turn.reply) == ("good", "bad")
        assert mined.same_state
    assert mine_pairs([episode], roles=["manager"]) == []
    assert mine_pairs([episode], "trajectory") == []  # the worker has three sequences


def test_what_followed_an_alternative_is_its_own_and_what_came_before_is_everybodys(episode: Trajectory) -> None:
    assert branch_owners(episode.turns, (4, 5)) == [None, None, None, None, 4, 5]
    bad, good = Visit(episode, 4, (4, 5)), Visit(episode, 5, (4, 5))
    assert (bad.reward, good.reward) == (-0.25, 1.0)
    assert (bad.succeeded, good.succeeded) == (False, True)
    assert [visit.alternatives for own in visits([episode]).values() for visit in own] == [(), (), (4, 5), (4, 5)]


def test_another_roles_turn_follows_the_reply_before_it() -> None:
    """A manager tries twice; the worker's turn after each try belongs to that try."""

    class Twice(Environment):
        roles = ("manager", "worker")

        async def reset(self, task: Task, seed: int) -> Observation:
            self.steps = 0
            return say("plan", role="manager")

        async def step(self, action: Action) -> Step:
            self.steps += 1
            order = [
                say("do", role="worker", fresh=True),
                say("plan", role="manager", fresh=True, branch_reason="alternative"),
                say("do", role="worker", fresh=True),
            ]
            return Step(order[self.steps - 1]) if self.steps < 4 else Step(reward=1.0, terminated=True)

    loaded = loader.load("tiny")
    renderer = Renderer(loaded.tokenizer, None, loaded.end_ids)
    episode = play(Twice, EchoEngine(renderer, ["a", "x", "b", "y"]), renderer, Agent(max_turns=9))
    assert branch_owners(episode.turns, (0, 2)) == [0, 0, 2, 2]
    (pair,) = mine_preferences([episode], "same_ids")
    assert (pair.chosen.turn.reply, pair.rejected.turn.reply, pair.margin) == ("b", "a", 1.0)
    # The same prompt again without a word from the environment: the episode came back to where it was.
    assert mine_preferences([episode], "same_ids", ["worker"]) == []


def test_the_next_roles_messages_are_no_answer_to_an_action(renderer: Renderer) -> None:
    class Warned(Delegating):
        async def step(self, action: Action) -> Step:
            first = await super().step(action)
            return Step(say("Error: no", role="worker", fresh=True)) if self.steps == 1 else first

    episode = play(Warned, EchoEngine(renderer, REPLIES), renderer, Agent(max_turns=9))
    assert [failed(episode, number) for number in range(3)] == [False, False, False]


def test_the_hash_of_a_prompt_does_not_depend_on_what_other_roles_did(renderer: Renderer, episode: Trajectory) -> None:
    other = play(
        Delegating, EchoEngine(renderer, ["x", "one", "y", "two", "bad", "good"]), renderer, Agent(max_turns=9)
    )
    first, second = list(histories(episode)), list(histories(other))
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, True, False, True, True, True]
    assert len(set(first)) == 5  # turns 4 and 5 reply to one prompt
    assert {visit.episode.attempt for own in visits([episode, other]).values() for visit in own} == {0}


def test_the_commands_learn_the_roles_that_are_named(
    tmp_path: Path, renderer: Renderer, capsys: pytest.CaptureFixture[str]
) -> None:
    collect = ["collect", "--env", TOY_PATH, "--policy", "expert", "--tasks", "3", "--out", str(tmp_path / "runs")]
    assert main(collect) == 0
    rows: dict[str, list[str]] = {}
    for name, roles in (("own", []), ("both", ["--roles", "worker", "manager"])):
        flags = ["--format", "sft", "--input-dir", str(tmp_path / "runs"), "--output-dir", str(tmp_path / name)]
        assert main(["export", *flags, *roles]) == 0
        lines = (tmp_path / name / "sft.jsonl").read_text().splitlines()
        rows[name] = [json.loads(line)["agent_role"] for line in lines]
    assert rows == {"own": ["worker"] * 3, "both": ["manager", "worker"] * 3}
    train = [f"data.episodes={tmp_path / 'runs'}", "model.path=tiny", "training.num_epochs=1", "data.val_share=0"]
    small = ["training.lora_r=2", "training.bf16=false", "training.gradient_checkpointing=false"]
    assert main(["sft", *train, *small, "data.roles=[manager,worker]", f"output_dir={tmp_path / 'sft'}"]) == 0
    capsys.readouterr()
    assert main(["sft", *train, *small, "data.roles=[boss]", f"output_dir={tmp_path / 'no'}"]) == 2
    assert "data.roles: no episode has a role 'boss', their roles are manager, worker." in capsys.readouterr().err
    assert main(["export", "--input-dir", str(tmp_path / "runs"), "--roles", "bose"]) == 2
    assert "--roles: no episode has a role 'bose'" in capsys.readouterr().err


def test_preferences_are_trained_on_from_such_episodes(tmp_path: Path, renderer: Renderer) -> None:
    for number in range(2):
        engine = EchoEngine(renderer, REPLIES)
        result = play(Delegating, engine, renderer, Agent(max_turns=9), provenance={"model": "tiny", "attempt": number})
        write_episode(tmp_path / f"episodes{number}", result)
    small = ["training.lora_r=2", "training.bf16=false", "training.gradient_checkpointing=false"]
    assert main(["dpo", f"data.episodes={tmp_path}", "model.path=tiny", *small, "training.num_epochs=1",
                 f"output_dir={tmp_path / 'out'}"]) == 0  # fmt: skip
    metrics = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[0]["dpo/loss"] == pytest.approx(0.6931, abs=1e-3)

"""Which steps and pairs become rows: errors belong to the action before them, and pairs to one state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from practicum.chat.renderer import Renderer
from practicum.data import jsonl, store
from practicum.data.export import (
    BC_FIELDS,
    DPO_FIELDS,
    RenderedPrompts,
    bc_rows,
    dpo_rows,
    has_images,
    has_whole_histories,
    plain_prompt,
    sft_rows,
    site_of,
    successful_episodes,
)
from practicum.data.preferences import mine_preferences
from practicum.data.state_index import failed, histories, nondeterministic_environments, prompt_ids
from practicum.environment import Action, Message
from practicum.errors import UserError
from practicum.models import loader
from practicum.task import Task
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn

Step = tuple[str, str]


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def make(
    steps: list[Step],
    reward: float = 0.0,
    *,
    task: str = "v2.omnizon-13",
    attempt: int = 0,
    seed: int = 0,
    closing: str = "",
    outcome: Outcome | None = None,
    progress: list[float] | None = None,
    **turn: Any,
) -> Trajectory:
    """An episode of observations and replies, in which a byte is a token."""
    turns = []
    for number, (observation, message) in enumerate(steps):
        turns.append(
            Turn(
                spans=(Span(Origin.OBSERVATION, ids_of(observation)), Span(Origin.SAMPLED, ids_of(message))),
                restart=number == 0 or turn.get("restart", False),
                messages=(Message("user", observation),),
                reply=message,
                action=Action(message, message),
                source=ActionSource.POLICY,
                policy_version=0,
                stop_reason=StopReason.END,
                seed=0,
                reward=reward if number + 1 == len(steps) else 0.0,
                progress=progress[number] if progress else None,
                info=turn.get("info", {}) if number == 0 else {},
            )
        )
    ended = outcome or (Outcome.SUCCESS if reward > 0 else Outcome.FAILURE)
    last = (Message("user", closing),) if closing else ()
    result = Task(task, "shop", "train", {"question": task})
    return Trajectory(result, attempt, task, ended, tuple(turns), reward, {}, Seeds(seed, 0), last)


def test_rows_have_the_papers_fields_and_no_others() -> None:
    good, bad = make([("goal", "buy"), ("cart", "pay")], 1.0), make([("goal", "leave")], 0.0, attempt=1)
    bc = list(bc_rows(successful_episodes([good, bad], "default"), plain_prompt))
    assert [tuple(row) for row in bc] == [BC_FIELDS] * 2
    assert bc[1] == {"prompt": "[user]\ngoal\n\n[assistant]\nbuy\n\n[user]\ncart", "action": "pay",
                     "task_id": "v2.omnizon-13", "site_id": "omnizon", "step_idx": 2,
                     "action_source": "policy"}  # fmt: skip
    (row,) = dpo_rows(mine_preferences([good, bad], "default"), plain_prompt)
    assert tuple(row) == DPO_FIELDS
    assert (row["prompt"], row["chosen"], row["rejected"]) == ("[user]\ngoal", "buy", "leave")


def test_an_error_belongs_to_the_action_before_it() -> None:
    """The upstream exporter drops the step that was shown an error and keeps the one that caused it."""
    episode = make([("goal", "click 9"), ("Error: no such button", "click 1"), ("done?", "stop")], 1.0)
    assert [failed(episode, number) for number in range(3)] == [True, False, False]
    assert [row["action"] for row in bc_rows([episode], plain_prompt)] == ["click 1", "stop"]
    last = make([("goal", "click 9")], 1.0, closing="Observation: Error: too late")
    assert list(bc_rows([last], plain_prompt)) == []
    for message in ({"valid": False}, {"error": "no"}, {"last_action_error": "no"}):
        assert failed(make([("goal", "click")], 1.0, info=message), 0)
    assert not failed(make([("goal", "click")], 1.0, info={"valid": True, "error": None}), 0)


def test_pairs_are_taken_in_one_state_and_the_literal_ones_are_not() -> None:
    good = make([("goal", "search"), ("results", "open 1"), ("page 1", "buy")], 1.0)
    bad = make([("goal", "search"), ("results", "open 2"), ("page 2", "back")], 0.0, attempt=1)
    for strategy in ("default", "same_state"):
        (pair,) = mine_preferences([bad, good], strategy)
        assert (pair.chosen.turn.reply, pair.rejected.turn.reply) == ("open 1", "open 2")
        assert pair.key.startswith(f"{strategy}_v2.omnizon-13_")
        assert pair.same_state
    literal = mine_preferences([bad, good], "progress_ranked")
    assert [(p.chosen.turn.reply, p.rejected.turn.reply) for p in literal] == [("open 1", "open 2"), ("buy", "back")]
    assert [p.key for p in literal] == ["progress_ranked_v2.omnizon-13_2", "progress_ranked_v2.omnizon-13_3"]
    assert [p.same_state for p in literal] == [True, False]


def test_what_worked_goes_above_what_failed() -> None:
    """Whatever came of the episodes later; `same_state` has then nothing to say."""
    wrong = make([("goal", "clik"), ("Error: what?", "buy")], 1.0)
    right = make([("goal", "look"), ("page", "give up")], 0.0, attempt=1)
    (pair,) = mine_preferences([wrong, right], "default")
    assert (pair.chosen.turn.reply, pair.rejected.turn.reply) == ("look", "clik")
    assert mine_preferences([wrong, right], "same_state") == []


def test_replies_are_worth_the_mean_of_their_episodes() -> None:
    episodes = [
        make([("goal", "a")], 1.0),
        make([("goal", "a")], 0.0, attempt=1),
        make([("goal", "b")], 1.0, attempt=2),
        make([("goal", "b")], 0.0, attempt=3),
        make([("goal", "c")], 0.0, attempt=4),
    ]
    pairs = mine_preferences(episodes, "same_state")
    # The world answered "a" in two ways, so its seed is part of the state; here all seeds are the same.
    assert [(p.chosen.turn.reply, p.rejected.turn.reply) for p in pairs] == [("a", "c"), ("b", "c")]


def test_other_tasks_and_unscored_episodes_make_no_pairs() -> None:
    good = make([("goal", "a")], 1.0)
    other = make([("goal", "b")], 0.0, task="v2.omnizon-14")
    crashed = make([("goal", "b")], 0.0, attempt=1, outcome=Outcome.ENV_ERROR)
    for strategy in ("default", "same_state", "progress_ranked"):
        assert mine_preferences([good, other, crashed], strategy) == []
        assert successful_episodes([crashed], strategy, include_failed=True) == []


def test_in_an_unsteady_world_only_equal_seeds_meet() -> None:
    first = make([("goal", "roll"), ("six", "stay")], 1.0, seed=1)
    second = make([("goal", "roll"), ("two", "stay")], 0.0, seed=2, attempt=1)
    assert nondeterministic_environments([first, second]) == {"shop"}
    other = make([("goal", "pass")], 0.0, seed=2, attempt=2)
    assert mine_preferences([first, second, other], "same_state") == []  # seed 2: nothing was rewarded
    later = make([("goal", "pass")], 0.0, seed=1, attempt=3)
    (pair,) = mine_preferences([first, second, later], "same_state")
    assert (pair.chosen.episode.seeds.environment, pair.rejected.episode.seeds.environment) == (1, 1)
    steady = make([("goal", "roll"), ("six", "go")], 0.0, seed=2, attempt=1)
    assert nondeterministic_environments([first, steady]) == set()
    assert len(mine_preferences([first, steady, other], "same_state")) == 2


def test_ranking_and_shares() -> None:
    slow = make([("g", "a"), ("h", "b")], 0.0, progress=[0.2, 0.9])
    quick = make([("g", "c")], 0.0, attempt=1, progress=[0.9])
    far = make([("g", "d")], 0.0, attempt=2, progress=[0.1])
    won = make([("g", "e")], 1.0, attempt=3, progress=[0.5])
    episodes = [slow, far, won, quick]
    assert successful_episodes(episodes, "default") == [won]
    assert successful_episodes(episodes, "default", include_failed=True) == episodes
    assert successful_episodes(episodes, "progress_ranked") == [
        quick
    ]  # ceil(0.2 · 4) = 1: far as `near` came, in fewer steps
    assert successful_episodes(episodes, "progress_ranked", 0.5) == [slow, quick]
    assert successful_episodes(episodes, "same_state", 0.25, include_failed=True) == [quick]
    assert len(successful_episodes([make([("g", "a")], 1.0, attempt=k) for k in range(15)], "default", 0.2)) == 3
    (pair,) = mine_preferences(episodes, "progress_ranked")
    assert (pair.chosen.turn.reply, pair.rejected.turn.reply) == ("c", "d")
    for share in (0.0, 1.1, -1.0, float("nan")):
        with pytest.raises(UserError, match="top_percent"):
            successful_episodes(episodes, "default", share)
    with pytest.raises(UserError, match="Unknown pairing strategy 'best'"):
        mine_preferences(episodes, "best")


def test_states_are_prompts() -> None:
    episode = make([("goal", "a"), ("next", "b")], 1.0)
    assert prompt_ids(episode, 0) == ids_of("goal")
    assert prompt_ids(episode, 1) == ids_of("goal" + "a" + "next")
    rewritten = make([("goal", "a"), ("goal next", "b")], 1.0, restart=True)
    assert prompt_ids(rewritten, 1) == ids_of("goal next")
    assert list(histories(rewritten))[1] == next(histories(make([("goal next", "b")])))
    assert list(histories(rewritten))[1] != list(histories(episode))[1]
    assert has_whole_histories(episode)
    assert not has_whole_histories(rewritten)


def test_conversations_say_what_is_trained() -> None:
    (row,) = sft_rows([make([("goal", "a"), ("next", "b")], 1.0)])
    assert [(m["role"], m["content"], m["train"]) for m in row["messages"]] == [
        ("user", "goal", False),
        ("assistant", "a", True),
        ("user", "next", False),
        ("assistant", "b", True),
    ]
    assert "tools" not in row


def test_images_are_part_of_a_state_and_of_a_conversation() -> None:
    def with_image(image: str, reply: str, reward: float) -> Trajectory:
        episode = make([("goal", reply)], reward)
        shown = replace(episode.turns[0], messages=(Message("user", "goal", images=(image,)),))
        return replace(episode, turns=(shown,))

    red, blue = "data:image/png;base64,AA", "data:image/png;base64,BB"
    assert len(mine_preferences([with_image(red, "a", 1.0), with_image(red, "b", 0.0)], "same_state")) == 1
    assert mine_preferences([with_image(red, "a", 1.0), with_image(blue, "b", 0.0)], "same_state") == []
    (row,) = sft_rows([with_image(red, "a", 1.0)])
    assert row["messages"][0]["content"] == [
        {"type": "text", "text": "goal"},
        {"type": "image_url", "image_url": {"url": red}},
    ]
    assert has_images(with_image(red, "a", 1.0))
    assert not has_images(make([("goal", "a")]))


def test_sites() -> None:
    assert site_of(Task("v2.gomail-1", "web", "train", {})) == "gomail"
    assert site_of(Task("v2.gomail-1", "web", "train", {"site": "mail"})) == "mail"
    assert site_of(Task("math-train-0-3", "math", "train", {})) == "math"


def test_rendered_prompts_are_what_the_policy_was_shown(tokenizer: PreTrainedTokenizerBase, renderer: Renderer) -> None:
    first = renderer.start((Message("system", "Be brief."), Message("user", "2 + 2?")))
    reply = renderer.encode_reply("4")
    more = renderer.extend([i for span in first for i in span.ids] + list(reply), (Message("user", "Sure?"),))
    replies = make([("x", "4"), ("y", "4")], 1.0)
    turns = tuple(
        Turn((*shown, Span(Origin.SAMPLED, reply)), index == 0, (), "4", Action("4"), ActionSource.POLICY, 0,
             StopReason.END, 0)
        for index, shown in enumerate((first, more))
    )  # fmt: skip
    expected = {"model": "tiny", "tokenizer": loader.tokenizer_hash(tokenizer)}
    episode = Trajectory(replies.task, 0, "g", Outcome.SUCCESS, turns, 1.0, {}, Seeds(0, 0), provenance=expected)
    text = RenderedPrompts()(episode, 1)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n"
        "<|im_start|>assistant\n4<|im_end|>\n"
        "<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) == prompt_ids(episode, 1)
    foreign = Trajectory(replies.task, 0, "g", Outcome.SUCCESS, turns, 1.0, {}, Seeds(0, 0),
                         provenance={**expected, "tokenizer": "other"})  # fmt: skip
    with pytest.raises(UserError, match="another vocabulary than that of 'tiny'"):
        RenderedPrompts()(foreign, 1)
    with pytest.raises(UserError, match="do not name their model"):
        RenderedPrompts()(replies, 0)


# -- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "p", "action": ""}', "line 2: 'action' must be a text that is not empty"),
        (b'{"prompt": "p", "action": 3}', "line 2: 'action' must be a text that is not empty"),
        (b'{"prompt": "p"}', "line 2 lacks 'action' (it has: prompt)"),
        (b'{"prompt": "\xff"}', "line 2 is not UTF-8 text (byte 12)"),
        (b'{"prompt": ', "line 2 is not JSON"),
        (b"[" * 100_000, "line 2 is not JSON"),
        (b"[1]", "line 2: expected an object, found list"),
        (b'{"prompt": "' + b"p" * 5000 + b'"}', "line 2 has more than"),
    ],
)
def test_bad_rows_are_named(line: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 4096 if b"ppp" in line else 2**20)
    path = tmp_path / "bc.jsonl"
    path.write_bytes(b'{"prompt": "p", "action": "a"}\n' + line + b"\n")
    with pytest.raises(UserError) as exc_info:
        jsonl.read_rows(path, ("prompt", "action"))
    assert str(exc_info.value).startswith(f"'{path}', ")
    assert message in str(exc_info.value)


def test_good_rows_are_read_and_missing_files_named(tmp_path: Path) -> None:
    path = tmp_path / "bc.jsonl"
    path.write_bytes(b'\n{"prompt": "p", "action": "a"}')
    assert jsonl.read_rows(path, ("prompt", "action")) == [{"prompt": "p", "action": "a"}]
    path.write_bytes(b"\n")
    with pytest.raises(UserError, match="is empty"):
        jsonl.read_rows(path, ("prompt",))
    with pytest.raises(UserError, match="No such file"):
        jsonl.read_rows(tmp_path / "none.jsonl", ("prompt",))


def test_files_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"

    def broken() -> Iterator[dict[str, Any]]:
        yield {"prompt": "p"}
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        jsonl.write_files(folder, {"bc.jsonl": [{"prompt": "p"}], "dpo.jsonl": broken()})
    assert list(tmp_path.iterdir()) == []
    assert jsonl.write_files(folder, {"bc.jsonl": [{"prompt": "é\ud83d"}]}) == {"bc.jsonl": 1}
    assert json.loads((folder / "bc.jsonl").read_text()) == {"prompt": "é\ud83d"}
    with pytest.raises(RuntimeError):
        jsonl.write_files(folder, {"bc.jsonl": broken()})
    assert [path.name for path in folder.iterdir()] == ["bc.jsonl"]
    assert json.loads((folder / "bc.jsonl").read_text()) == {"prompt": "é\ud83d"}
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (folder / "sft.jsonl").symlink_to(outside)
    jsonl.write_files(folder, {"sft.jsonl": [{"prompt": "p"}]})
    assert outside.read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write to"):
        jsonl.write_files(tmp_path / "file" / "x", {"bc.jsonl": []})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"reply":"b"', b'"replie":"b"', "line 3 lacks 'reply'"),
        (b'"reply":"b"', b'"reply":7', "line 3: 'reply' is not what"),
        (b'"progress":null', b'"progress":"far"', "line 2: 'progress' is not what"),
        (b'"origin":"sampled"', b'"origin":"template"', "line 2: 'spans' is not what"),
        (b'"ids":[98]', b'"ids":["98"]', "line 3: 'spans' is not what"),
        (b'"content":"next"', b'"content":null', "line 3: 'messages' is not what"),
        (b'"reward":1.0', b'"reward":NaN', "line 3: 'reward' is not what"),
        (b'"reply":"b"', b'"reply":"\xff"', "line 3 is not UTF-8 text"),
        (b'"type":"episode_end"', b'"type":"the_end"', "line 4: 'type' is 'the_end'"),
        (b'"index":1', b'"index":5', "step records are missing"),
        (b'"error":null}\n', b'"error":null}', "the file is cut short"),
    ],
)
def test_bad_episodes_are_named(old: bytes, new: bytes, message: str, tmp_path: Path) -> None:
    path = store.write_episode(tmp_path, make([("goal", "a"), ("next", "b")], 1.0))
    full = path.read_bytes()
    assert old in full
    at = full.rindex(old) if not message.startswith("line") else full.index(old)
    path.write_bytes(full[:at] + new + full[at + len(old) :])
    with pytest.raises(UserError) as exc_info:
        store.read_episode(path, validate=True)
    assert f"'{path}' is not a whole episode file: {message}" in str(exc_info.value)

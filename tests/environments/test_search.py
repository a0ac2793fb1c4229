from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.data import retrieval
from practicum.data.retrieval import read_corpus, words
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, ToolCall
from practicum.environments.search import SearchEnvironment
from practicum.environments.search_worlds import KINDS, RELATION, RELATIONS, make_world, names_of, world_index
from practicum.errors import UserError
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.rollout_setup import make_rollout_setup
from practicum.task import Task
from practicum.trajectory import Outcome, Trajectory, plan_attempts

SPLITS = ("train", "val", "test")


def play(
    source: str, renderer: Renderer, count: int, format: str = "react", max_turns: int = 4, **options: Any
) -> list[Trajectory]:
    world = SearchEnvironment(format=format, **options)
    engine = ScriptedEngine.of(source, world, make_format(format), renderer)
    planned = plan_attempts(world.tasks("train", count), 1, 0)
    make = lambda: SearchEnvironment(format=format, **options)  # noqa: E731
    return asyncio.run(run_episodes(planned, make, Agent(format=format, max_turns=max_turns), engine, renderer))


def solved(episodes: list[Trajectory]) -> float:
    assert all(e.scored for e in episodes)
    return sum(e.outcome is Outcome.SUCCESS for e in episodes) / len(episodes)


@pytest.mark.parametrize("format", ["react", "hf"])
def test_the_expert_solves_everything_with_one_search_a_fact(renderer: Renderer, format: str) -> None:
    episodes = play("expert", renderer, 60, format)
    assert solved(episodes) == 1.0
    for episode in episodes:
        assert len(episode.turns) == episode.task.fields["level"] + 1
        assert episode.reward == episode.components["em"] == 1.0
        assert [turn.action.calls[0].name for turn in episode.turns][-2:] == ["google_search", "answer"]


def test_the_null_policy_is_at_its_floor(renderer: Renderer) -> None:
    assert sum(e.reward for e in play("null", renderer, 60)) == SearchEnvironment.floor


def test_the_random_policy_rarely_succeeds(renderer: Renderer) -> None:
    assert solved(play("random", renderer, 200)) < 0.2


@pytest.mark.parametrize("source", ["expert", "random"])
def test_without_searching_nobody_does_better_than_guessing(renderer: Renderer, source: str) -> None:
    episodes = play(source, renderer, 150, tools=["answer"])
    assert solved(episodes) <= 0.02
    assert {len(e.turns) for e in episodes} == {1}
    assert "google_search" not in str(episodes[0].turns[0].messages)


def test_prompts_are_short(renderer: Renderer) -> None:
    episodes = play("expert", renderer, 60)
    assert max(len(run.ids) for e in episodes for run in e.sequences()) < 700
    assert max(len(turn.messages[-1].content) for e in episodes for turn in e.turns) < 130


def test_brief_tells_of_each_tool_in_one_line_and_changes_nothing_else(renderer: Renderer) -> None:
    long, short = play("expert", renderer, 30, results=2), play("expert", renderer, 30, results=2, brief=True)
    assert short[0].turns[0].messages[0].content == (
        "Search for what is asked, then answer with one name.\n"
        "google_search(query): Search for facts.\n"
        "answer(answer): Give the final answer."
    )
    assert solved(short) == 1.0
    replies = [[[turn.reply for turn in episode.turns] for episode in episodes] for episodes in (long, short)]
    assert replies[0] == replies[1]
    lengths = [[len(run.ids) for e in episodes for run in e.sequences()] for episodes in (long, short)]
    assert all(full - brief > 140 for full, brief in zip(*lengths, strict=True))
    assert "google_search" not in str(play("expert", renderer, 1, brief=True, tools=["answer"])[0].turns[0].messages)


def test_brief_leaves_a_task_with_messages_of_its_own_alone() -> None:
    world = SearchEnvironment(brief=True)
    task = Task(
        "t", "search", "train", {"messages": [{"role": "user", "content": "Who wrote Dolke?"}], "answer": "Vinri"}
    )
    assert [m.content for m in asyncio.run(world.reset(task, 0)).messages] == ["Who wrote Dolke?"]


def test_the_expert_reads_its_answers_and_does_not_know_them() -> None:
    """In a world with other facts the same expert gives the other world's answer."""
    world = SearchEnvironment(levels=(2,))
    (task,) = world.tasks("train", 1)
    policy = world.expert(task)

    async def answer_after(doctored: dict[str, str]) -> str:
        observation = await world.reset(task, 0)
        while True:
            action = policy(observation)
            if action.calls[0].name == "answer":
                return str(action.calls[0].arguments["answer"])
            observation = (await world.step(action)).observation
            for old, new in doctored.items():
                text = observation.messages[-1].content.replace(f"{old}.", f"{new}.")
                observation = type(observation)((type(observation.messages[-1])("user", text),))

    assert asyncio.run(answer_after({str(task.fields["answer"]): "Elsewhere"})) == "Elsewhere"


def follow(task: Task) -> list[str]:
    """The facts a question needs, straight from the world and not from the index."""
    facts, at, lines = make_world(task.fields["world"]).facts, task.fields["subject"], []
    for hop in task.fields["hops"]:
        lines.append(RELATION[hop].sentence(at, facts[hop][at]))
        at = facts[hop][at]
    assert at == task.fields["answer"]
    return lines


def test_questions_mean_what_their_facts_say() -> None:
    for task in SearchEnvironment().tasks("train", 90):
        lines = follow(task)
        assert len(lines) == task.fields["level"] == len(set(lines))
        question = str(task.fields["question"])
        assert re.findall(r"\b[A-Z]\w+", question)[1:] == [task.fields["subject"]]
        assert task.fields["answer"] not in question
        outermost, *inner = reversed([RELATION[hop] for hop in task.fields["hops"]])
        nested = task.fields["subject"]
        for relation in reversed(inner):
            nested = relation.phrase.format(nested)
        assert question == outermost.ask.format(nested)


def test_every_fact_is_found_first_or_beside_its_mirror_image() -> None:
    for name in ("train/0/0", "val/3/1", "test/0/7"):
        world, index = make_world(name), world_index(name)
        assert len(index.documents) == sum(KINDS[relation.subject] for relation in RELATIONS)
        for relation in RELATIONS:
            for subject, object in world.facts[relation.name].items():
                results = [hit.document.text for hit in index.search(relation.query(subject), 2)]
                assert relation.sentence(subject, object) in results[: 2 if relation.name == "teacher" else 1]


def test_facts_are_drawn_afresh_for_every_world() -> None:
    """Of two worlds' facts about things both know, hardly any agree: there is nothing to learn by heart."""
    same = output = 0
    expected: dict[tuple[str, str], str] = {}
    for number in range(200):
        for relation, pairs in make_world(f"train/0/{number}").facts.items():
            for subject, object in pairs.items():
                output += (relation, subject) in expected
                same += expected.get((relation, subject)) == object
                expected[relation, subject] = object
    assert output > 500
    assert same / output < 0.02


def test_splits_share_neither_names_nor_tasks_and_are_the_same_everywhere() -> None:
    names = {split: set(names_of(split)) for split in SPLITS}
    tasks = {
        split: {t.hash for seed in range(3) for t in SearchEnvironment().tasks(split, 60, seed)} for split in SPLITS
    }
    for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
        assert not names[first] & names[second]
        assert not tasks[first] & tasks[second]
    assert min(map(len, names.values())) > 500
    for split in SPLITS:
        world = make_world(f"{split}/0/0")
        used = [thing for things in world.things.values() for thing in things]
        assert set(used) <= names[split]
        assert len({name[1:3] for name in used}) == len(used) == sum(KINDS.values())
    assert SearchEnvironment().tasks("test", 3)[2].hash == "e6ba1ad3137a3426"


def test_no_name_is_a_word_of_the_language() -> None:
    language = {word for relation in RELATIONS for word in words(f"{relation.fact} {relation.ask} {relation.phrase}")}
    assert not language & {name.lower() for split in SPLITS for name in names_of(split)}


def test_levels_take_turns_and_more_tasks_begin_with_the_same() -> None:
    world = SearchEnvironment(levels=(1, 3))
    assert [t.fields["level"] for t in world.tasks("val", 4)] == [1, 3, 1, 3]
    assert [t.hash for t in world.tasks("val", 20)][:7] == [t.hash for t in world.tasks("val", 7)]


def test_each_episode_searches_its_own_world() -> None:
    world = SearchEnvironment(levels=(1,))
    first, *_, last = world.tasks("train", 12)
    assert first.fields["world"] != last.fields["world"]

    async def search(task: Task) -> str:
        await world.reset(task, 0)
        query = RELATION[task.fields["hops"][0]].query(task.fields["subject"])
        step = await world.step(Action(calls=(ToolCall("google_search", {"query": query}),)))
        return step.observation.messages[0].content

    for task in (first, last, first):
        assert follow(task)[0] in asyncio.run(search(task))


def test_any_json_file_with_a_folder_of_documents(tmp_path: Path, renderer: Renderer) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "Oslo.txt").write_text("Oslo is the capital of Norway.")
    rows = [{"question": "What is the capital of Norway?", "answer": ["Oslo", "the city of Oslo"], "world": "ours"}]
    (tmp_path / "qa.json").write_text(json.dumps(rows))
    options: dict[str, Any] = {"files": {"train": str(tmp_path / "qa.json")}, "corpus": str(tmp_path / "corpus")}
    (episode,) = play("expert", renderer, 5, **options)
    assert episode.outcome is Outcome.SUCCESS
    assert episode.turns[1].messages[0].content == "Observation: Oslo: Oslo is the capital of Norway."
    with pytest.raises(UserError, match="no 'val' questions"):
        SearchEnvironment(**options).tasks("val", 1)


def test_the_index_of_a_corpus_is_built_once_and_off_the_event_loop(
    tmp_path: Path, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "Oslo.txt").write_text("Oslo is the capital of Norway.")
    rows = [{"question": f"What is the capital of Norway, question {number}?", "answer": "Oslo"} for number in range(4)]
    (tmp_path / "qa.json").write_text(json.dumps(rows))
    options: dict[str, Any] = {"files": {"train": str(tmp_path / "qa.json")}, "corpus": str(tmp_path / "corpus")}
    threads = []

    def noted(folder: Path) -> list[retrieval.Document]:
        threads.append(threading.current_thread())
        return read_corpus(folder)

    monkeypatch.setattr(retrieval, "read_corpus", noted)
    SearchEnvironment(**options)
    assert not threads
    assert solved(play("expert", renderer, 5, **options)) == 1.0
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_a_corpus_that_is_not_there_is_an_error_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        make_rollout_setup("search", "no/model", options={"corpus": str(tmp_path / "nowhere")}, url="http://nowhere")


def test_the_expert_of_a_file_answers_only_what_it_has_read(tmp_path: Path, renderer: Renderer) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    texts = {
        "Norway": "The seat of government is Oslo.", "Tolen": "Tolen was born in Rusko and wrote books.",
        "Rusko": "This town lies on the Sela.", "Kelan": "Kelan came from the same town.",
        **{f"noise {n}": f"what was the river of which the town {n} where born, does it lie?" for n in range(9)},
    }  # fmt: skip
    for title, text in texts.items():
        (corpus / f"{title}.txt").write_text(text)
    rows = [
        {"question": "What seat has the government?", "answer": "Oslo"},
        {"question": "On which river does the town lie where the writer Tolen was born?", "answer": "Sela"},
        {"question": "Were they from one town?", "answer": "yes", "supporting": ["Tolen", "Kelan"]},
        {"question": "What seat has the government?", "answer": "Atlantis"},
    ]
    (tmp_path / "qa.json").write_text(json.dumps(rows))
    options: dict[str, Any] = {"files": {"train": str(tmp_path / "qa.json")}, "corpus": str(corpus), "results": 1}
    episodes = play("expert", renderer, 5, max_turns=6, **options)
    assert [episode.outcome is Outcome.SUCCESS for episode in episodes] == [True, True, True, False]
    for episode, row in zip(episodes[:2], rows, strict=False):
        shown = "\n".join(message.content for turn in episode.turns[1:] for message in turn.messages)
        assert str(row["answer"]) in shown
    bridge = [turn.action.calls[0].arguments.get("query") for turn in episodes[1].turns]
    assert "Tolen" in bridge  # a name of the question; the town is read from what is found
    assert episodes[3].turns[-1].action.calls[0].arguments == {"answer": "unknown"}


def test_a_file_with_nothing_to_search_is_a_wrong_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRACTICUM_SEARCH_CORPUS", raising=False)
    monkeypatch.delenv("PRACTICUM_SEARCH_URL", raising=False)
    with pytest.raises(UserError, match="google_search has nothing to search"):
        SearchEnvironment(files={"train": "qa.json"})
    assert SearchEnvironment(files={"train": "qa.json"}, tools=["answer"]).tools.keys() == {"answer"}


def test_where_there_is_no_answer_tool_the_reply_is_the_answer(renderer: Renderer) -> None:
    episodes = play("expert", renderer, 6, tools=["google_search"])
    assert solved(episodes) == 1.0
    assert "Answer: " in episodes[0].turns[-1].reply


def test_wrong_options() -> None:
    for options in ({"levels": [4]}, {"levels": []}, {"results": 0}, {"results": 2.5}):
        with pytest.raises(UserError, match="must be"):
            SearchEnvironment(**options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="'hf' has no such text"):
        SearchEnvironment(format="hf", brief=True)
    with pytest.raises(UserError, match="no generated world"):
        make_world("train/x")


def test_a_question_never_walks_in_a_circle() -> None:
    world, rng = make_world("train/5/5"), random.Random(0)
    for level in (1, 2, 3):
        for _ in range(200):
            fields = world.question(rng, level)
            task = Task("t", "search", "train", {**fields, "world": world.name})
            seen = {fields["subject"], *(line.split()[-1].rstrip(".") for line in follow(task))}
            assert len(seen) == level + 1

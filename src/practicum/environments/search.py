"""`search`: questions that can only be answered by searching.

A question asks for a fact of a small invented world, reached over one to three facts (levels 1 to 3). The agent
searches the sentences of that world with `google_search` and answers with `answer`. Every few questions have a world of
their own, so memorising does not help; without searching, the best policy guesses one name out of hundreds.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from practicum.data.convert import NO_ANSWER_HINT
from practicum.data.retrieval import CorpusIndex
from practicum.environment import AGENT_OPTIONS, Action, Message, Observation, ScriptedPolicy, ToolCall
from practicum.environments.search_worlds import RELATION, WORLD_NAME, make_world, names_of, world_index, world_name
from practicum.environments.tool_agent import ToolEnvironment
from practicum.errors import UserError
from practicum.resources import Resource
from practicum.rewards.qa_f1_reward import CLOSED_ANSWERS, UNANSWERABLE, normalise
from practicum.task import Task
from practicum.tools.base import Tool
from practicum.tools.google_search import NUM_RESULTS, configured_search, google_search_over

MAX_LEVEL = 3
QUESTIONS_PER_WORLD = 6
SEARCH = "google_search"
CORPUS = "corpus"
"""The resource that holds the index of a corpus folder."""
NAME = re.compile(r"\b[A-Z]\w+")
NAMES = re.compile(r"\b[A-Z][\w.'-]*(?: (?:(?:of|the|and|de|von) )*[A-Z][\w.'-]*)*")
"""Names of several words in a question."""
MAX_FILE_SEARCHES = 4
"""Searches that the expert makes for a question from a file."""


class SearchEnvironment(ToolEnvironment):
    """Multi-hop questions over generated worlds, or any JSON file of questions with a folder of documents."""

    name = "search"
    formats: ClassVar[tuple[str, ...]] = ("react", "hf")
    system = "Search for what is asked, then answer with one name."
    default_tools: ClassVar[tuple[str, ...]] = (SEARCH, "answer")
    default_reward = "qa_f1_reward"

    agent_options = (*AGENT_OPTIONS, "brief")

    def __init__(
        self,
        tools: Sequence[str] | None = None,
        reward: str | None = None,
        format: str = "react",
        files: dict[str, Any] | None = None,
        system: str | None = None,
        verifier: str | None = None,
        levels: Sequence[int] = (1, 2, 3),
        corpus: str | None = None,
        results: int = NUM_RESULTS,
        brief: bool = False,
    ) -> None:
        """Create the environment. `tools=["answer"]` removes searching; `corpus` is the folder for a file's questions.

        `brief` describes each tool in one line and omits the reply format: the model learns it from demonstrations,
        and a model trained from scratch learns it sooner with a short prompt.
        """
        super().__init__(tools, reward, format, files, system, verifier)
        self.levels, self.corpus, self.results, self.brief = tuple(levels), corpus, results, brief
        if not self.levels or not all(isinstance(n, int) and 1 <= n <= MAX_LEVEL for n in self.levels):
            raise UserError(f"search levels must be whole numbers from 1 to {MAX_LEVEL}, got {list(levels)}.")
        if not isinstance(results, int) or not 1 <= results <= 10:
            raise UserError(f"search results must be a whole number from 1 to 10, got {results}.")
        if brief and self.format.schema_in_template:
            raise UserError(f"search brief=true shortens what 'react' tells of its tools; '{format}' has no such text.")
        if SEARCH in self.tools and corpus is None and self.files:
            configured_search()  # nothing to search is an error before the first episode

    def make_resources(self) -> Mapping[str, Resource]:
        return {CORPUS: CorpusIndex(self.corpus)} if SEARCH in self.tools and self.corpus is not None else {}

    def generate(self, split: str, count: int, seed: int) -> Sequence[Task]:
        if self.corpus is not None:
            raise UserError(
                f"A search corpus is given but no '{split}' questions; give a JSON file for that split too."
            )
        tasks: list[Task] = []
        world_number = 0
        while len(tasks) < count:
            name = world_name(split, seed, world_number)
            world, rng = make_world(name), random.Random(f"search-questions/{name}")
            questions: set[object] = set()
            while len(questions) < QUESTIONS_PER_WORLD and len(tasks) < count:
                fields = world.question(rng, self.levels[len(tasks) % len(self.levels)])
                if fields["question"] not in questions:
                    questions.add(fields["question"])
                    fields["world"] = name
                    tasks.append(Task(f"search-{split}-{seed}-{len(tasks)}", self.name, split, fields))
            world_number += 1
        return tasks

    async def reset(self, task: Task, seed: int) -> Observation:
        world = _world_of(task)
        if SEARCH in self.tools and self.corpus is not None:
            self.tools[SEARCH] = google_search_over(self.resources[CORPUS].index, self.results)
        elif SEARCH in self.tools and world is not None:
            self.tools[SEARCH] = google_search_over(world_index(world), self.results)
        observation = await super().reset(task, seed)
        if not self.brief or "messages" in task.fields:
            return observation
        system = "\n".join((self.prompt, *map(_signature, self.tools.values())))
        return replace(observation, messages=(Message("system", system), observation.messages[-1]))

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return the policy that searches one fact after the other and reads each from the result.

        Its thoughts repeat the fact word for word: there is much to copy, and a small model learns to copy in far
        fewer steps than from calls alone.
        """
        if SEARCH not in self.tools:
            return self._guesser(task, f"search-guess/{task.hash}")
        if _world_of(task) is None:
            return self._file_task_expert(task)
        subject, hops, position = str(task.fields["subject"]), list(task.fields["hops"]), 0

        def act(observation: Observation) -> Action:
            nonlocal subject, position
            thought = RELATION[hops[0]].ask.format(subject)
            if position:
                relation = RELATION[hops[position - 1]]
                object_name = relation.read(subject, observation.messages[-1].content)
                if object_name is None:
                    return self._answer("unknown")
                thought, subject = relation.sentence(subject, object_name), object_name
            if position == len(hops):
                return self._answer(subject, thought)
            position += 1
            return _search(RELATION[hops[position - 1]].query(subject), thought)

        return act

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that searches for names it has seen, then answers with one of them."""
        if SEARCH not in self.tools:
            return self._guesser(task, f"search-random/{seed}")
        rng = random.Random(f"search-random/{seed}")
        turns = iter(range(rng.randint(1, MAX_LEVEL)))
        seen: list[str] = []

        def act(observation: Observation) -> Action:
            nonlocal seen
            seen = NAME.findall(observation.messages[-1].content.removeprefix("Observation:")) or seen or ["nothing"]
            choice = rng.choice(seen)
            return self._answer(choice) if next(turns, None) is None else _search(choice)

        return act

    def _answer(self, text: str, thought: str = "") -> Action:
        """Return the action that answers: a call of `answer` or, without that tool, plain text."""
        if "answer" in self.tools:
            return Action(calls=(ToolCall("answer", {"answer": text}),), thought=thought)
        return Action(content=text, thought=thought)

    def _guesser(self, task: Task, seed: str) -> ScriptedPolicy:
        """Return a policy that answers with a random name of the split."""
        rng = random.Random(seed)
        return lambda observation: self._answer(rng.choice(names_of(task.split)))

    def _file_task_expert(self, task: Task) -> ScriptedPolicy:
        """Return the expert of a task from a file: it searches until it has read the answer, then gives it.

        Where a few searches do not show it, it says so: finishing with an answer that it has not read would teach to
        guess. `yes`, `no` and `no answer` cannot be read; they need the texts that the task names as `supporting`.
        """
        gold = task.fields["answer"]
        golds = [str(gold)] if isinstance(gold, str | int | float) else [str(answer) for answer in gold]
        queries = _queries(task)
        read: list[str] = []
        queries_sent: set[str] = set()

        def act(observation: Observation) -> Action:
            if queries_sent:
                read.append(observation.messages[-1].content)
            answer = next((text for text in golds if has_read(task, text, "\n".join(read))), None)
            if queries_sent and answer is not None:
                return self._answer(answer)
            query = next((query for query in (*queries, *_names_read(read)) if query not in queries_sent), None)
            if query is None or len(queries_sent) == MAX_FILE_SEARCHES:
                return self._answer("unknown")
            queries_sent.add(query)
            return _search(query)

        return act


def _queries(task: Task) -> list[str]:
    """Return queries for a question from a file: the question, the texts that it needs, then the names in it."""
    question = str(task.fields["question"]).removesuffix(NO_ANSWER_HINT).strip()
    supporting = [str(title) for title in task.fields.get("supporting", ())]
    return list(dict.fromkeys((question, *supporting, *NAMES.findall(question[1:]))))


def _names_read(results: Sequence[str]) -> list[str]:
    """Return the names in what searches have shown, those of the last one first."""
    texts = (result.removeprefix("Observation:") for result in reversed(results))
    return [name for text in texts for name in NAMES.findall(text)]


def has_read(task: Task, answer: str, text: str) -> bool:
    """Return whether an answer is in a text that was read; of a closed answer, whether all it needs was read."""
    words, answer_words = normalise(text), normalise(answer)
    if answer_words in CLOSED_ANSWERS or answer_words in UNANSWERABLE:
        return all(normalise(str(title)) in words for title in task.fields.get("supporting", ()))
    return f" {answer_words} " in f" {words} "


def _search(query: str, thought: str = "") -> Action:
    return Action(calls=(ToolCall(SEARCH, {"query": query}),), thought=thought)


def _signature(tool: Tool) -> str:
    """Return a tool in one line, as the chat template of `tiny` renders it."""
    return f"{tool.name}({', '.join(tool.schema['function']['parameters']['properties'])}): {tool.description}"


def _world_of(task: Task) -> str | None:
    """Return the name of a task's generated world; None for a question from a file."""
    name = str(task.fields.get("world", ""))
    return name if WORLD_NAME.fullmatch(name) else None

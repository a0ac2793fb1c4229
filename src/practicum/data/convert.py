"""Published data sets converted into the JSON files that tasks are read from.

Each reader takes the rows of a file, in the form of its authors or of the Hugging Face hub, and returns rows with a
`question` and what the reward needs, and, where the set comes with texts to read, documents for a search corpus.
Everything is read and checked before anything is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from practicum.data.convert_rows import Converted, InvalidRow, Located, Row, field_of, list_field, text_field
from practicum.data.convert_rubrics import biggen, manager_agent_gym, paperbench, writingbench
from practicum.data.dataset_rows import read_dataset_rows
from practicum.data.plan_graph import END, START, edges_of, parse_workflow
from practicum.data.retrieval import Document
from practicum.data.run_folder import write_atomic
from practicum.errors import UserError, did_you_mean
from practicum.utils.latex import last_boxed

NO_ANSWER = "no answer"
NO_ANSWER_HINT = "If the texts do not say, answer: no answer."
MBPP_SPLITS = {"prompt": range(1, 11), "test": range(11, 511), "val": range(511, 601), "train": range(601, 975)}
"""The authors' split of MBPP by `task_id`; the ten of `prompt` are for few-shot prompts."""


def gsm8k(row: Mapping[str, Any], index: int) -> Row:
    """GSM8K: `question` and a worked `answer` whose last line is `#### 42`."""
    solution, mark, last = text_field(row, "answer").rpartition("####")
    answer = last.strip().replace(",", "").removeprefix("$")
    if not mark or not re.fullmatch(r"-?\d+(\.\d+)?", answer):
        raise InvalidRow("'answer' must end in '#### ' and a number")
    return {
        "id": f"gsm8k-{index}",
        "question": text_field(row, "question").strip(),
        "answer": answer,
        "solution": solution.strip(),
    }


def humaneval(row: Mapping[str, Any], index: int) -> Row:
    """HumanEval: `prompt` is the head of the function `entry_point`, `test` defines `check(candidate)`."""
    prompt, entry = text_field(row, "prompt"), text_field(row, "entry_point")
    return {
        "id": text_field(row, "task_id").replace("/", "-"),
        "question": f"Complete this Python function. Give the whole function.\n\n{prompt.strip()}",
        "prompt": prompt,
        "test_cases": [text_field(row, "test")],
        "entry_point": entry,
        "solution": prompt + text_field(row, "canonical_solution"),
    }


def mbpp(row: Mapping[str, Any], index: int) -> Row:
    """MBPP: `text` (`prompt` in the sanitized file), `code`, and asserts in `test_list`."""
    tests = list_field(row, "test_list")
    if not tests or not all(isinstance(test, str) and test.strip() for test in tests):
        raise InvalidRow("'test_list' must be a list of asserts")
    question = text_field(row, "text" if "text" in row or "prompt" not in row else "prompt").strip()
    # The two files have different fields for what the tests need: a block of code, or import lines.
    needs = {key: row[key] for key in ("test_setup_code", "test_imports") if row.get(key)}
    return {
        "id": f"mbpp-{field_of(row, 'task_id')}",
        # Only the tests name the function, so the first one is shown.
        "question": f"{question} Your code should pass this test:\n\n{tests[0]}",
        "test_cases": tests,
        **needs,
        "solution": text_field(row, "code"),
        **_mbpp_split(row["task_id"]),
    }


def _mbpp_split(task_id: object) -> Row:
    name = next((name for name, ids in MBPP_SPLITS.items() if task_id in ids), None)
    return {} if name is None else {"split": name}


def math(row: Mapping[str, Any], index: int) -> Row:
    """MATH: `problem`, and a `solution` whose answer is in its last \\boxed; MATH-500 has the `answer` too."""
    solution = text_field(row, "solution")
    answer = row["answer"] if isinstance(row.get("answer"), str) else last_boxed(solution)
    if answer is None or not answer.strip():
        raise InvalidRow("'solution' must have its answer in a \\boxed{...}")
    name = row.get("unique_id") or row.get("id") or f"math-{index}"
    return {
        "id": str(name).removesuffix(".json").replace("/", "-"),
        "question": text_field(row, "problem").strip(),
        "answer": answer.strip(),
        "solution": solution,
        **{key: row[key] for key in ("level", "type", "subject") if row.get(key) is not None},
    }


def verl(row: Mapping[str, Any], index: int) -> Row:
    """verl: `prompt` is a list of messages, `reward_model` has the `ground_truth`, `extra_info` is optional."""
    messages = list_field(row, "prompt")
    if not messages or not all(isinstance(m, Mapping) and isinstance(m.get("content"), str) for m in messages):
        raise InvalidRow("'prompt' must be a list of messages with 'role' and 'content'")
    extra = row.get("extra_info") if isinstance(row.get("extra_info"), Mapping) else {}
    assert isinstance(extra, Mapping)
    source = re.sub(r"[^\w.-]+", "-", str(row.get("data_source") or "verl")).strip("-")
    converted: Row = {
        "id": f"{source}-{extra.get('split', '')}-{extra.get('index', index)}".replace("--", "-"),
        "question": str(extra.get("question") or messages[-1]["content"]).strip(),
        "messages": [{"role": str(m.get("role", "user")), "content": m["content"]} for m in messages],
        **_ground_truth(field_of(field_of(row, "reward_model"), "ground_truth")),
        "data_source": row.get("data_source"),
    }
    if isinstance(extra.get("answer"), str):
        converted["solution"] = extra["answer"]
    return converted


def _ground_truth(truth: object) -> Row:
    """Return verl's ground truth as fields: an `answer`, or the `test_cases` of a program."""
    tests = truth
    if isinstance(truth, str) and truth.lstrip().startswith("{"):
        try:
            tests = json.loads(truth)
        except ValueError:
            tests = truth
    match tests:
        case {"inputs": [*inputs], "outputs": [*outputs]} if len(inputs) == len(outputs) and inputs:
            pairs = zip(inputs, outputs, strict=True)
            return {"test_cases": [{"input": _as_text(i), "output": _as_text(o)} for i, o in pairs]}
        case {"target": target}:  # as in search tasks
            return {"answer": target}
    if isinstance(truth, str | int | float | list):
        return {"answer": truth}
    raise InvalidRow("'ground_truth' must be a text, a number, a list, or 'inputs' and 'outputs' of a program")


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def hotpotqa(rows: Located, path: Path) -> Converted:
    """HotpotQA: questions, each with the paragraphs (title, sentences) it was asked of and the titles it needs."""
    converted: list[Row] = []
    documents: dict[str, Document] = {}
    for location, row in rows:
        with _naming(path, location):
            converted.append({
                "id": text_field(row, "_id" if "_id" in row or "id" not in row else "id"),
                "question": text_field(row, "question").strip(),
                "answer": text_field(row, "answer"),
                **{key: row[key] for key in ("level", "type") if key in row},
            })  # fmt: skip
            supporting = dict.fromkeys(title for title, _ in _pairs(row.get("supporting_facts") or [], "sent_id"))
            if supporting:
                converted[-1]["supporting"] = list(supporting)
            for title, sentences in _pairs(field_of(row, "context"), "sentences"):
                if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
                    raise InvalidRow("'context' must hold pairs of a title and its sentences")
                _add_document(documents, title, "".join(sentences))
    return Converted(converted, tuple(documents.values()))


def _pairs(value: object, second: str) -> list[tuple[str, Any]]:
    """Return pairs of a title and something: a list of pairs, or, on the Hugging Face hub, two lists by name."""
    if isinstance(value, Mapping):
        value = list(zip(list_field(value, "title"), list_field(value, second), strict=False))
    pairs = []
    for pair in value if isinstance(value, list) else [None]:
        match pair:
            case [str(title), body] | (str(title), body):
                pairs.append((title, body))
            case _:
                raise InvalidRow("'context' must hold pairs of a title and its sentences")
    return pairs


def squad(rows: Located, path: Path) -> Converted:
    """SQuAD 1.1 and 2.0: articles of paragraphs of questions, or one row per question as on the Hugging Face hub.

    In a file with questions that have no answer, every question says what to answer then.
    """
    flat = list(_squad_questions(rows, path))
    converted: list[Row] = []
    documents: dict[str, Document] = {}
    for location, title, context, question in flat:
        with _naming(path, location):
            _add_document(documents, title.replace("_", " "), context)
            if question is not None:
                converted.append({
                    "id": text_field(question, "id"),
                    "question": text_field(question, "question").strip(),
                    "answer": _squad_answer(question),
                })  # fmt: skip
    if any(row["answer"] == NO_ANSWER for row in converted):
        converted = [{**row, "question": f"{row['question']} {NO_ANSWER_HINT}"} for row in converted]
    return Converted(converted, tuple(documents.values()))


def _squad_questions(rows: Located, path: Path) -> Iterator[tuple[str, str, str, Mapping[str, Any] | None]]:
    """Yield location, title, context and question of all questions; None for a paragraph without any."""
    if rows and isinstance(rows[0][1], Mapping) and "context" in rows[0][1]:
        for location, row in rows:
            with _naming(path, location):
                yield location, str(row.get("title") or ""), text_field(row, "context"), row
        return
    with _naming(path, "the file"):
        articles = [article for _, part in rows for article in list_field(part, "data")]
    for a, article in enumerate(articles):
        with _naming(path, f"article {a}"):
            title, paragraphs = text_field(article, "title"), list_field(article, "paragraphs")
        for p, paragraph in enumerate(paragraphs):
            with _naming(path, f"article {a}, paragraph {p}"):
                context, questions = text_field(paragraph, "context"), list_field(paragraph, "qas")
            yield f"article {a}, paragraph {p}", title, context, None
            for q, question in enumerate(questions):
                yield f"article {a}, paragraph {p}, question {q}", title, context, question


def _squad_answer(question: Mapping[str, Any]) -> str | list[str]:
    if question.get("is_impossible"):
        return NO_ANSWER
    answers = field_of(question, "answers")
    if isinstance(answers, Mapping):  # the hub: an empty list is a question without an answer
        answers = [{"text": text} for text in list_field(answers, "text")]
        if not answers:
            return NO_ANSWER
    elif not isinstance(answers, list):
        raise InvalidRow("'answers' must be a list")
    texts = list(dict.fromkeys(text_field(answer, "text") for answer in answers))
    if not texts:
        raise InvalidRow("'answers' is empty and 'is_impossible' is not set")
    return texts[0] if len(texts) == 1 else texts


def _add_document(documents: dict[str, Document], title: str, text: str) -> None:
    """Add a paragraph once, however many questions are about it."""
    key = f"{title}\n{text}"
    if key not in documents:
        documents[key] = Document(f"{len(documents):07d}", title, " ".join(text.split()))


def worfbench(row: Mapping[str, Any], index: int) -> Row:
    """WorFBench's `graph_eval.json`: `conversations` whose last message is the gold workflow as text."""
    messages = list_field(row, "conversations")
    if len(messages) < 2 or not all(isinstance(m, Mapping) and isinstance(m.get("content"), str) for m in messages):
        raise InvalidRow("'conversations' must be a list of at least two messages with 'role' and 'content'")
    workflow = messages[-1]["content"]
    graph = parse_workflow(workflow)
    if not graph.nodes or "(START" not in workflow:
        raise InvalidRow("the last message must be the gold workflow, `1: … Edge: (START,1) … (n,END)`")
    if unknown := sorted({name for edge in edges_of(workflow) for name in edge} - {START, END, *graph.nodes}):
        raise InvalidRow(f"an edge of the gold workflow names node {unknown[0]}, which it does not have")
    return {
        "id": str(row.get("id") or f"worfbench-{index}").replace("/", "-"),
        "question": messages[-2]["content"].strip(),
        "messages": [{"role": str(m.get("role", "user")), "content": m["content"]} for m in messages[:-1]],
        "workflow": workflow,
        "source": str(row.get("source") or ""),
    }


SECONDS_OF_UNIT = {
    "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hr": 3600, "hour": 3600, "d": 86400,
    "day": 86400, "w": 604800, "week": 604800, "month": 2592000, "y": 31536000, "year": 31536000,
}  # fmt: skip
"""A month is 30 days and a year 365."""
ASYNCHOW_QUESTION = (
    "As many people as are needed help. Which steps must end before which begin, so that everything is done as early "
    "as possible? Reply with pairs: Edge: (1,2) (2,3), or Edge: none"
)
SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+?)s?\b", re.IGNORECASE)


def asynchow(rows: Located, path: Path) -> Converted:
    """AsyncHow as JSON: its lists (`titles`, `steps`, `step_deps` or `edge_list`, `time_dic`), or one row per plan.

    The task is to order the steps; neither the required orders nor the shortest time are shown.
    """
    converted: list[Row] = []
    for location, row in _asynchow_rows(rows, path):
        with _naming(path, location):
            title, steps = text_field(row, "title"), list_field(row, "steps")
            if not steps or not all(isinstance(step, str) and step.strip() for step in steps):
                raise InvalidRow("'steps' must be a list of texts")
            times = _step_times(field_of(row, "time_dic"), len(steps))
            listed = "\n".join(
                f"{n}. {step} ({time})" for n, (step, time) in enumerate(zip(steps, times, strict=True), 1)
            )
            converted.append({
                "id": str(row.get("id") or f"asynchow-{len(converted)}"),
                "question": f"{title.strip()}\n{listed}\n{ASYNCHOW_QUESTION}",
                "seconds": [_seconds(time) for time in times],
                "orders": _step_orders(row, len(steps)),
            })  # fmt: skip
    return Converted(converted)


def _asynchow_rows(rows: Located, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield plans one by one; AsyncHow's own file is an object of lists, one item per plan."""
    names = {
        "titles": "title",
        "steps": "steps",
        "step_deps": "step_deps",
        "edge_list": "edge_list",
        "time_dic": "time_dic",
    }
    for location, row in rows:
        if not isinstance(row, Mapping) or "titles" not in row:
            yield location, row
            continue
        with _naming(path, location):
            columns = {single: list_field(row, plural) for plural, single in names.items() if plural in row}
            if len({len(column) for column in columns.values()}) != 1:
                raise InvalidRow("the lists of the plans must have the same length")
        for index in range(len(columns["title"])):
            yield f"plan {index}", {name: column[index] for name, column in columns.items()}


def _step_times(times: object, count: int) -> list[str]:
    """The durations of steps 1, 2, … as text; their keys are `1` or `step 1`."""
    if not isinstance(times, Mapping) or len(times) != count:
        raise InvalidRow("'time_dic' must have one duration for each of the 'steps'")
    keys = sorted(map(str, times), key=lambda key: int("".join(re.findall(r"\d+", key)[:1]) or 0))
    return [str(times[key]) for key in keys]


def _seconds(time: str) -> float:
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", time)
    spans = [(float(amount), unit.lower()) for amount, unit in SPAN.findall(plain)]
    is_read = not re.search(r"\d", SPAN.sub("", plain))
    if not spans or not is_read or any(unit not in SECONDS_OF_UNIT for _, unit in spans):
        raise InvalidRow(f"'{time[:40]}' of 'time_dic' is no duration such as '5 min'")
    return sum(amount * SECONDS_OF_UNIT[unit] for amount, unit in spans)


def _step_orders(row: Mapping[str, Any], count: int) -> list[list[int]]:
    """The required pairs of step numbers, without START, END and 0, which AsyncHow has for none."""
    pairs = []
    for pair in list_field(row, "step_deps" if "step_deps" in row else "edge_list"):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InvalidRow("an order must be a pair of step numbers")
        names = [str(name) for name in pair]
        if "START" in names or "END" in names or "0" in names:
            continue
        if not all(name.isdecimal() and 1 <= int(name) <= count for name in names):
            raise InvalidRow(f"the order {names} names a step that is not there")
        pairs.append([int(names[0]), int(names[1])])
    before: dict[int, list[int]] = {}
    for first, second in pairs:
        before.setdefault(second, []).append(first)
    try:
        TopologicalSorter(before).prepare()
    except CycleError:
        raise InvalidRow("the required orders are cyclic") from None
    return pairs


def _by_row(read: Callable[[Mapping[str, Any], int], Row]) -> Callable[[Located, Path], Converted]:
    """Return the reader of a file, given the reader of one of its rows."""

    def convert(rows: Located, path: Path) -> Converted:
        converted = []
        for index, (location, row) in enumerate(rows):
            with _naming(path, location):
                # In a folder of files, the file's name is the row's.
                name = {"id": f"{path.name}/{location}"} if path.is_dir() and isinstance(row, Mapping) else {}
                converted.append(read({**name, **row} if name else row, index))
        return Converted(converted)

    return convert


FORMATS: Mapping[str, Callable[[Located, Path], Converted]] = {
    "gsm8k": _by_row(gsm8k),
    "math": _by_row(math),
    "hotpotqa": hotpotqa,
    "squad": squad,
    "humaneval": _by_row(humaneval),
    "mbpp": _by_row(mbpp),
    "verl": _by_row(verl),
    "worfbench": _by_row(worfbench),
    "asynchow": asynchow,
    "paperbench": paperbench,
    "writingbench": _by_row(writingbench),
    "biggen": _by_row(biggen),
}
FOLDER_FORMATS: Mapping[str, Callable[[Path], Converted]] = {"manager_agent_gym": manager_agent_gym}
"""Formats that are read from a folder of other files than JSON."""


def convert(name: str, source: Path, split: str | None = None) -> Converted:
    """Return the rows of a published file, of one split of it if the set's authors define splits by row.

    Raise UserError naming the location of what is wrong.
    """
    if name not in (*FORMATS, *FOLDER_FORMATS):
        raise UserError(f"Unknown data set '{name}'.{did_you_mean(name, (*FORMATS, *FOLDER_FORMATS))}")
    if name in FOLDER_FORMATS:
        converted = FOLDER_FORMATS[name](source)
    else:
        converted = FORMATS[name](read_dataset_rows(source), source)
    if split is not None:
        splits = sorted({row["split"] for row in converted.rows if isinstance(row.get("split"), str)})
        if not splits:
            raise UserError(f"The rows of '{name}' say no split; each of its files is one.")
        if split not in splits:
            raise UserError(f"'{source}' has no rows of the split '{split}'.{did_you_mean(split, splits)}")
        converted = replace(converted, rows=[row for row in converted.rows if row.get("split") == split])
    if not converted.rows:
        raise UserError(f"'{source}' holds no questions.")
    seen: set[str] = set()
    for row in converted.rows:
        if row["id"] in seen:
            raise UserError(f"'{source}' has the id '{row['id']}' twice; ids must be unique.")
        seen.add(row["id"])
    return converted


def write(converted: Converted, output: Path, corpus: Path) -> None:
    """Write the task file, and the corpus as one file in a folder of its own; existing files are not overwritten."""
    documents = corpus / "documents.jsonl"
    for path in (output, *([documents] if converted.documents else [])):
        if path.exists():
            raise UserError(f"'{path}' exists already; choose another name or remove it.")
    if converted.documents:
        lines = (
            json.dumps({"id": d.id, "title": d.title, "text": d.text}, ensure_ascii=False) for d in converted.documents
        )
        write_atomic(documents, "".join(f"{line}\n" for line in lines).encode())
    # The task file comes last: where it exists, its corpus does too.
    write_atomic(output, (json.dumps(list(converted.rows), ensure_ascii=False, indent=1) + "\n").encode())


class _naming:
    """A context in which an InvalidRow becomes a UserError that names the file and the location."""

    def __init__(self, path: Path, location: str) -> None:
        self.path, self.location = path, location

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, InvalidRow):
            raise UserError(f"'{self.path}', {self.location}: {error}.") from None

"""Small files in the layouts their authors publish, and files with something wrong in them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from practicum.cli import convert as command
from practicum.data.convert import convert
from practicum.data.retrieval import index_of
from practicum.data.task_file import read_task_file
from practicum.errors import UserError
from practicum.rewards.qa_f1_reward import compare_answers

GSM8K = [
    {
        "question": "Ada has 3 bags of 4 nuts. How many nuts?",
        "answer": "Three bags of 4 are 3*4=<<3*4=12>>12 nuts.\n#### 12",
    },
    {"question": "A house costs $1,200 and 34 more. What is the price?", "answer": "It is 1200+34.\n#### 1,234"},
]
HOTPOTQA = [
    {
        "_id": "5a7a",
        "question": "Were Tolen and Kelan born in the same town?",
        "answer": "yes",
        "type": "comparison",
        "level": "hard",
        "supporting_facts": [["Tolen", 0], ["Kelan", 0]],
        "context": [
            ["Tolen", ["Tolen was born in Rusko.", " He wrote Mivar."]],
            ["Kelan", ["Kelan was born in Rusko."]],
        ],
    },
    {
        "_id": "5a7b",
        "question": "Which river flows where Tolen was born?",
        "answer": "Sela",
        "context": [
            ["Tolen", ["Tolen was born in Rusko.", " He wrote Mivar."]],
            ["Rusko", ["Rusko lies on the Sela."]],
        ],
    },
]
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Rusko_(town)",
            "paragraphs": [
                {
                    "context": "Rusko lies on the Sela. It has 900 people.",
                    "qas": [
                        {
                            "id": "q1",
                            "question": "On what does Rusko lie?",
                            "answers": [
                                {"text": "the Sela", "answer_start": 14},
                                {"text": "Sela", "answer_start": 18},
                                {"text": "Sela", "answer_start": 18},
                            ],
                            "is_impossible": False,
                        },
                        {
                            "id": "q2",
                            "question": "Who rules Rusko?",
                            "answers": [],
                            "plausible_answers": [{"text": "900 people", "answer_start": 31}],
                            "is_impossible": True,
                        },
                        {
                            "id": "q3",
                            "question": "How many people has it?",
                            "answers": [{"text": "900", "answer_start": 31}],
                        },
                    ],
                }
            ],
        }
    ],
}
HUMANEVAL = [
    {
        "task_id": "HumanEval/0",
        "prompt": 'def double(x):\n    """Twice x."""\n',
        "entry_point": "double",
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n",
    }
]
MBPP = [
    {
        "task_id": 11,
        "text": "Write a function to add two numbers.",
        "code": "def add(a, b):\r\n  return a + b",
        "test_list": ["assert add(1, 2) == 3", "assert math.isclose(add(.1, .2), .3)"],
        "test_setup_code": "import math",
        "challenge_test_list": [],
    }
]
LINES = {"gsm8k": GSM8K, "humaneval": HUMANEVAL, "mbpp": MBPP}
WHOLE: dict[str, Any] = {"hotpotqa": HOTPOTQA, "squad": SQUAD}


def published(folder: Path, name: str) -> Path:
    path = folder / f"{name}.json"
    path.write_text("\n".join(map(json.dumps, LINES[name])) if name in LINES else json.dumps(WHOLE[name]))
    return path


@pytest.mark.parametrize("name", [*LINES, *WHOLE])
def test_what_is_written_can_be_read_as_tasks(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out" / "tasks.json"
    assert command.run([name, str(published(tmp_path, name)), str(output)]) == 0
    tasks = read_task_file(output, "x", "train")
    assert f"{len(tasks)} tasks in {output}" in capsys.readouterr().out
    assert (output.parent / "tasks-corpus").exists() == (name in WHOLE)
    assert len({task.id for task in tasks}) == len(tasks)


def test_gsm8k(tmp_path: Path) -> None:
    first, second = convert("gsm8k", published(tmp_path, "gsm8k")).rows
    assert first == {
        "id": "gsm8k-0",
        "question": "Ada has 3 bags of 4 nuts. How many nuts?",
        "answer": "12",
        "solution": "Three bags of 4 are 3*4=<<3*4=12>>12 nuts.",
    }
    assert second["answer"] == "1234"


def test_hotpotqa_with_its_corpus(tmp_path: Path) -> None:
    output, corpus = tmp_path / "qa.json", tmp_path / "texts"
    command.run(["hotpotqa", str(published(tmp_path, "hotpotqa")), str(output), "--corpus", str(corpus)])
    first, second = read_task_file(output, "search", "train")
    assert (first.id, first.fields["answer"], first.fields["level"]) == ("5a7a", "yes", "hard")
    assert "level" not in second.fields
    index = index_of(corpus)
    assert len(index.documents) == 3, "a paragraph that two questions share is kept once"
    assert index.search("who wrote Mivar", 1)[0].document.text == "Tolen was born in Rusko. He wrote Mivar."


def test_squad(tmp_path: Path) -> None:
    converted = convert("squad", published(tmp_path, "squad"))
    assert [row["answer"] for row in converted.rows] == [["the Sela", "Sela"], "no answer", "900"]
    assert [(d.title, d.text) for d in converted.documents] == [
        ("Rusko (town)", "Rusko lies on the Sela. It has 900 people.")
    ]
    assert all(row["question"].endswith("? If the texts do not say, answer: no answer.") for row in converted.rows)


@pytest.mark.parametrize("gold", ["no answer", "noanswer"])
def test_a_question_without_an_answer_is_answered_in_plain_words(gold: str) -> None:
    for value in ("", "no answer", "No answer.", "noanswer", "unanswerable", "Not answerable"):
        assert compare_answers(value, gold)["em"] == 1.0, value
    for value in ("Sela", "the answer", "no"):
        assert compare_answers(value, gold)["f1"] == 0.0, value
    assert compare_answers("no answer", "Sela")["f1"] == compare_answers("", "Sela")["f1"] == 0.0


def as_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), path)
    return path


def test_rows_of_the_hugging_face_hub(tmp_path: Path) -> None:
    squad = [
        {"id": "q1", "title": "Rusko", "context": "Rusko lies on the Sela.", "question": "On what?",
         "answers": {"text": ["the Sela", "the Sela"], "answer_start": [14, 14]}},
        {"id": "q2", "title": "Rusko", "context": "Rusko lies on the Sela.", "question": "Who?",
         "answers": {"text": [], "answer_start": []}},
    ]  # fmt: skip
    converted = convert("squad", as_parquet(tmp_path / "squad.parquet", squad))
    assert [row["answer"] for row in converted.rows] == ["the Sela", "no answer"]
    assert len(converted.documents) == 1
    hotpot = {
        "id": "5a", "question": "Which river?", "answer": "Sela", "type": "bridge", "level": "hard",
        "supporting_facts": {"title": ["Tolen", "Rusko", "Rusko"], "sent_id": [0, 0, 1]},
        "context": {"title": ["Tolen", "Rusko"], "sentences": [["Tolen is of Rusko."], ["Rusko lies", " on Sela."]]},
    }  # fmt: skip
    converted = convert("hotpotqa", as_parquet(tmp_path / "hotpot.parquet", [hotpot]))
    assert converted.rows[0]["supporting"] == ["Tolen", "Rusko"]
    assert [d.text for d in converted.documents] == ["Tolen is of Rusko.", "Rusko lies on Sela."]
    viewed = tmp_path / "viewer.json"
    viewed.write_text(json.dumps({"features": [], "rows": [{"row_idx": 3, "row": GSM8K[0]}], "num_rows_total": 1}))
    assert convert("gsm8k", viewed).rows[0]["answer"] == "12"
    assert convert("gsm8k", as_parquet(tmp_path / "gsm8k.parquet", GSM8K)).rows[1]["answer"] == "1234"
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(UserError, match="is not a parquet file that can be read"):
        convert("gsm8k", tmp_path / "bad.parquet")


MATH = {"problem": "What is $x$ if $2x = 5$?", "level": "Level 1", "type": "Algebra",
        "solution": "We divide: $x = \\boxed{\\frac{5}{2}}$."}  # fmt: skip


def test_math_in_the_forms_of_its_authors_and_of_the_hub(tmp_path: Path) -> None:
    folder = tmp_path / "test" / "algebra"
    folder.mkdir(parents=True)
    for number in (2, 10):
        (folder / f"{number}.json").write_text(json.dumps(MATH, indent=1))
    rows = convert("math", tmp_path / "test").rows
    assert [row["id"] for row in rows] == ["test-algebra-2", "test-algebra-10"]
    assert rows[0] == {"id": "test-algebra-2", "question": MATH["problem"], "answer": "\\frac{5}{2}",
                       "solution": MATH["solution"], "level": "Level 1", "type": "Algebra"}  # fmt: skip
    hub = {**MATH, "answer": "2.5", "unique_id": "test/algebra/7.json", "subject": "Algebra", "level": 1}
    assert convert("math", as_parquet(tmp_path / "m.parquet", [hub])).rows[0]["id"] == "test-algebra-7"
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({**MATH, "solution": "It is 5/2."}))
    with pytest.raises(UserError, match="line 1: 'solution' must have its answer in a"):
        convert("math", bad)


def test_verl_rows(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "Ada has 3 nuts. How many? Let's think step by step."}]
    row = {"data_source": "openai/gsm8k", "prompt": prompt, "ability": "math",
           "reward_model": {"style": "rule", "ground_truth": "3"},
           "extra_info": {"split": "train", "index": 0, "answer": "#### 3", "question": "Ada has 3 nuts."}}  # fmt: skip
    (converted,) = convert("verl", as_parquet(tmp_path / "train.parquet", [row])).rows
    assert (converted["id"], converted["answer"]) == ("openai-gsm8k-train-0", "3")
    assert converted["messages"] == prompt
    assert converted["solution"] == "#### 3"
    tests = {"inputs": ["1 2"], "outputs": ["3"]}
    code = {**row, "data_source": "taco", "reward_model": {"style": "rule", "ground_truth": json.dumps(tests)}}
    lines = tmp_path / "code.jsonl"
    lines.write_text(json.dumps(code))
    assert convert("verl", lines).rows[0]["test_cases"] == [{"input": "1 2", "output": "3"}]
    lines.write_text(json.dumps({**row, "prompt": "text"}))
    with pytest.raises(UserError, match="'prompt' must be a list"):
        convert("verl", lines)


def test_mbpp_has_its_authors_split(tmp_path: Path) -> None:
    source = tmp_path / "mbpp.jsonl"
    source.write_text("\n".join(json.dumps({**MBPP[0], "task_id": n}) for n in (2, 11, 510, 511, 600, 601, 974)))
    assert [row["split"] for row in convert("mbpp", source).rows] == [
        "prompt", "test", "test", "val", "val", "train", "train",
    ]  # fmt: skip
    output = tmp_path / "test.json"
    command.run(["mbpp", str(source), str(output), "--split", "test"])
    assert [task.id for task in read_task_file(output, "code", "test")] == ["mbpp-11", "mbpp-510"]
    with pytest.raises(UserError, match="no rows of the split 'tset'. Did you mean 'test'"):
        convert("mbpp", source, "tset")
    with pytest.raises(UserError, match="say no split"):
        convert("gsm8k", published(tmp_path, "gsm8k"), "test")


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_solutions_pass_their_tests_and_wrong_ones_do_not(tmp_path: Path, name: str) -> None:
    (row,) = convert(name, published(tmp_path, name)).rows
    called = row.get("entry_point", "add")
    suffix = f"\ncheck({called})" if "entry_point" in row else ""
    for test in row["test_cases"]:
        checked = f"{row.get('test_setup_code', '')}\n{test}{suffix}"
        exec(f"{row['solution']}\n{checked}", {})
        with pytest.raises(AssertionError):
            exec(f"def {called}(*given):\n    return -1\n{checked}", {})


def test_humaneval(tmp_path: Path) -> None:
    (row,) = convert("humaneval", published(tmp_path, "humaneval")).rows
    assert row["id"] == "HumanEval-0"
    assert (row["entry_point"], row["prompt"]) == ("double", HUMANEVAL[0]["prompt"])
    assert row["test_cases"] == [HUMANEVAL[0]["test"]]
    assert row["question"].endswith('def double(x):\n    """Twice x."""')
    assert "return 2" not in row["question"]


def test_mbpp(tmp_path: Path) -> None:
    (row,) = convert("mbpp", published(tmp_path, "mbpp")).rows
    assert (row["id"], row["test_setup_code"]) == ("mbpp-11", "import math")
    assert row["test_cases"] == MBPP[0]["test_list"]
    assert "assert add(1, 2) == 3" in row["question"]
    assert "return a + b" not in row["question"]
    changed = [{**MBPP[0], "prompt": "Add.", "test_imports": ["import math", "import re"]}]
    del changed[0]["text"]
    del changed[0]["test_setup_code"]
    path = tmp_path / "sanitized.json"
    path.write_text(json.dumps(changed))
    (row,) = convert("mbpp", path).rows
    assert row["question"].startswith("Add.")
    assert row["test_imports"] == ["import math", "import re"]


def test_gzip(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, HUMANEVAL)).encode()))
    assert len(convert("humaneval", path).rows) == 1
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(UserError, match="not a whole gzip file"):
        convert("humaneval", path)


def squad_with(**change: Any) -> str:
    question = {"id": "q", "question": "x?", "answers": [{"text": "x"}], **change}
    paragraphs = [{"context": "text", "qas": [question]}]
    return json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "gsm8k",
            '{"question": "a?", "answer": "#### 1"}\n\n{"question": "b?"}',
            "line 3: the field 'answer' is missing",
        ),
        ("gsm8k", '{"question": "a?", "answer": "twelve"}', "line 1: 'answer' must end in '#### ' and a number"),
        ("gsm8k", '{"question": "", "answer": "#### 1"}', "line 1: 'question' must be a non-empty text"),
        ("gsm8k", '{"question": "a?"', "line 1 is not JSON"),
        ("gsm8k", "[1]", "row 0: expected an object with 'answer', found int"),
        ("gsm8k", "", "holds no questions"),
        ("hotpotqa", json.dumps([{**HOTPOTQA[0], "context": [["T", "text"]]}]), "row 0: 'context' must hold pairs"),
        (
            "hotpotqa",
            json.dumps([{"_id": "1", "question": "x?", "context": []}]),
            "row 0: the field 'answer' is missing",
        ),
        ("hotpotqa", json.dumps([HOTPOTQA[0], HOTPOTQA[0]]), "the id '5a7a' twice"),
        ("squad", "[]", "holds no questions"),
        ("squad", "[[]]", "the file: expected an object with 'data', found list"),
        ("squad", squad_with(answers=[]), "article 0, paragraph 0, question 0: 'answers' is empty"),
        ("squad", squad_with(id=None), "question 0: 'id' must be a non-empty text"),
        ("humaneval", json.dumps({**HUMANEVAL[0], "test": 5}), "line 1: 'test' must be a non-empty text"),
        ("mbpp", json.dumps({**MBPP[0], "test_list": []}), "line 1: 'test_list' must be a list of asserts"),
        ("mbpp", json.dumps({**MBPP[0], "test_list": "assert"}), "line 1: 'test_list' must be a list"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(tmp_path: Path, name: str, content: str, message: str) -> None:
    source, out = tmp_path / "in.json", tmp_path / "out"
    source.write_text(content)
    with pytest.raises(UserError) as exc_info:
        command.run([name, str(source), str(out / "tasks.json")])
    assert message in str(exc_info.value)
    assert str(source) in str(exc_info.value)
    assert not out.exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source, output = published(tmp_path, "hotpotqa"), tmp_path / "qa.json"
    (tmp_path / "qa-corpus").mkdir()
    corpus = tmp_path / "qa-corpus" / "documents.jsonl"
    corpus.write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        command.run(["hotpotqa", str(source), str(output)])
    assert corpus.read_text() == "mine"
    assert not output.exists()
    corpus.unlink()
    command.run(["hotpotqa", str(source), str(output)])
    with pytest.raises(UserError, match="exists already"):
        command.run(["hotpotqa", str(source), str(output)])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no file"):
        convert("gsm8k", tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"\xe9")
    with pytest.raises(UserError, match="not UTF-8"):
        convert("gsm8k", tmp_path / "latin")
    with pytest.raises(UserError, match="Did you mean 'squad'"):
        convert("squat", tmp_path / "latin")

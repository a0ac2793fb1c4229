"""Rules on outputs: the kinds of the menu, programs in the sandbox, judges."""

from __future__ import annotations

import asyncio
import json
import statistics

import pytest

from practicum.environment import Action
from practicum.environments.rubric import code_rules
from practicum.environments.rubric.code_rules import CodeRuleRunner
from practicum.environments.rubric.environment import RubricEnvironment
from practicum.environments.rubric.instances import make_instance, make_outputs
from practicum.environments.rubric.judge_rules import read_score
from practicum.environments.rubric.probes import code_rule
from practicum.environments.rubric.rule_kinds import RULE_KINDS
from practicum.environments.rubric.schema import CodeRule, JudgeRule, MenuRule, Rubric
from practicum.environments.rubric.validation import ValidationEngine, menu_score
from practicum.errors import JudgeError
from tests.scripted_model import ScriptedModel

TABLE = "Report\nitem|cost|owner\na|9|x\nb|5|\nc|7|y\nTODO\nTotals: cost 21"


@pytest.mark.parametrize(
    ("kind", "parameter", "output", "score"),
    [
        ("section", "risks", "# Risks\ntext", 1.0),
        ("section", "risks", "# Risks\n# Next\ntext", 0.5),
        ("section", "risks", "Risks", 0.0),
        ("column", "Cost", TABLE, 1.0),
        ("column", "price", TABLE, 0.0),
        ("function", "f", "def f(x):\n    return x", 1.0),
        ("function", "f", "def f(x):\n    '''Text.'''\n    pass", 0.5),
        ("function", "f", "def f(x) return x", 0.0),
        ("docstrings", "", "def f():\n    '''A.'''\n    return 1\ndef g():\n    return 2", 0.5),
        ("total", "cost", "It is 21.", 1.0),
        ("total", "cost", "It is 210.", 0.0),
        ("total", "price", "21", 0.0),
        ("sorted", "cost", TABLE, 0.5),
        ("rows", "6", TABLE, 0.5),
        ("rows", "2", "- a\n- b", 1.0),
        ("complete", "", TABLE, 0.5),
        ("mention", "Dr Who", "asked dr who.", 1.0),
        ("mention", "art", "a start", 0.0),
        ("avoid", "maybe", "Maybe so", 0.0),
        ("avoid", "maybe", "so", 1.0),
        ("avoid", "maybe", " ", 0.0),
        ("words", "4", "one two three four five", 0.5),
        ("lines", "2", "a\n\nb", 1.0),
    ],
)
def test_kinds_of_the_menu(kind: str, parameter: str, output: str, score: float) -> None:
    assert RULE_KINDS[kind].evaluate(TABLE, output, parameter) == score


HOSTILE = {
    "endless": "def evaluate(a, b):\n    while True: pass",
    "exits": "import os\nos._exit(0)",
    "kills": "import os, signal\ndef evaluate(a, b):\n    os.kill(os.getppid(), 9)\n    os.kill(-1, 9)\n    return 1.0",
    "forks": "import os\ndef evaluate(a, b):\n    while True: os.fork()",
    "memory": "def evaluate(a, b):\n    x = bytearray(10**10)\n    return 1.0",
    "syntax": "def evaluate(a, b) return 1",
    "missing": "x = 1",
    "not a number": "def evaluate(a, b): return 'good'",
    "nan": "def evaluate(a, b): return float('nan')",
    "raises": "def evaluate(a, b): raise ValueError('no')",
    "reads": "def evaluate(a, b): return float(len(open('/etc/passwd').read()) > 0)",
}
LENGTH = CodeRule(
    name="length", code="def evaluate(task_input, candidate_output):\n    return len(candidate_output) / 4"
)


async def test_hostile_code_fails_only_its_own_rule() -> None:
    rules = [LENGTH, *(CodeRule(name=name, code=code) for name, code in HOSTILE.items()), LENGTH]
    rubric = Rubric(rules=tuple(rules))
    results = await ValidationEngine(code_rules=CodeRuleRunner()).score_outputs(rubric, "in", ["ab", "abcd"])
    for result, expected in zip(results, (0.5, 1.0), strict=True):
        scores = {criterion.name: criterion for criterion in result.criteria}
        for name in HOSTILE:
            assert scores[name].score == 0.0, name
            assert scores[name].error, name
        assert [c.score for c in result.criteria if c.name == "length"] == [expected] * 2
        assert len(result.errors) == len(HOSTILE)


async def test_scores_are_cached_by_rule_and_output_and_share_one_sandbox() -> None:
    runner = CodeRuleRunner()
    other = CodeRule(code="def evaluate(a, b): return (2.0, 'too much')")
    first = await runner.score([LENGTH, other], "in", ["a", "abc"])
    assert runner.queue.num_sandboxes == 1
    assert [[score.score for score in row] for row in first] == [[0.25, 0.75], [1.0, 1.0]]
    assert await runner.score([other, LENGTH], "in", ["abc", "a"]) == [row[::-1] for row in first[::-1]]
    assert runner.queue.num_sandboxes == 1
    await runner.score([LENGTH], "another input", ["a"])
    assert runner.queue.num_sandboxes == 2


async def test_scores_that_leave_the_cache_during_a_run_are_still_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_rules, "MAX_CACHED_SCORES", 1)
    runner = CodeRuleRunner()
    await runner.score([LENGTH], "in", ["a"])
    slow = CodeRule(code="def evaluate(a, b): return float(sum(range(10**7)) > 0)")
    quick = CodeRule(code="def evaluate(a, b): return 0.5")
    rows, _ = await asyncio.gather(
        runner.score([LENGTH, slow], "in", ["a"]), runner.score([quick], "in", ["one", "two"])
    )
    assert [row[0].score for row in rows] == [0.25, 1.0]


async def test_a_rule_that_was_stopped_runs_again() -> None:
    runner = CodeRuleRunner()
    endless = CodeRule(code="def evaluate(a, b):\n    while True: pass")
    for attempt in (1, 2):
        assert (await runner.score([endless], "in", ["a"]))[0][0].error
        assert runner.queue.num_sandboxes == attempt


async def test_menu_rules_score_the_same_as_code_in_the_sandbox() -> None:
    for family in ("budget report", "cost allocation", "utility module"):
        instance = make_instance(family, 1)
        outputs = [output.text for output in await make_outputs(instance)]
        rules = [rule for rule in instance.preferences.rules if isinstance(rule, MenuRule)]
        source = instance.workflow.task_input
        scored = await CodeRuleRunner().score(
            [CodeRule.model_validate(code_rule(rule)) for rule in rules], source, outputs
        )
        expected = [[menu_score(rule, source, output).score for output in outputs] for rule in rules]
        assert [[score.score for score in row] for row in scored] == expected


async def test_rules_of_64_episodes_share_few_sandboxes() -> None:
    """One start per rule would be 320 of them; `benchmarks/rubric_rules.py` measures the time."""
    runner = CodeRuleRunner()
    episodes = [[CodeRule(code=f"{LENGTH.code} + 0 * {e} * {n}") for n in range(5)] for e in range(64)]
    texts = [["x" * (episode % 4), "xx"] for episode in range(64)]
    scored = await asyncio.gather(
        *(runner.score(rules, "in", outputs) for rules, outputs in zip(episodes, texts, strict=True))
    )
    assert runner.queue.num_sandboxes <= 8
    for rows, outputs in zip(scored, texts, strict=True):
        assert [[score.score for score in row] for row in rows] == [[len(text) / 4 for text in outputs]] * 5


async def test_attempts_that_wait_for_the_same_rule_share_its_run() -> None:
    runner = CodeRuleRunner()
    chance = CodeRule(code="import os\ndef evaluate(a, b): return os.urandom(1)[0] / 255")
    rows = await asyncio.gather(*(runner.score([chance], "in", ["a", "b"]) for _ in range(6)))
    assert rows == [rows[0]] * 6


QUALITIES = (0.7, 0.8, 0.5, 0.6, 0.45, 0.75, 0.4, 0.55)
COUNTS = f"n = -1\ndef evaluate(a, b):\n    global n\n    n += 1\n    return {QUALITIES}[n % 8]"


async def test_a_rule_that_counts_its_calls_cannot_identify_the_outputs() -> None:
    """Workers have the same order of quality in every task; a rule must not see outputs in that order."""
    texts = [f"output {n}" for n in range(8)]
    (first,), (second,) = [
        await CodeRuleRunner().score([CodeRule(code=COUNTS)], "in", order) for order in (texts, texts[::-1])
    ]
    assert first == second[::-1]
    assert tuple(score.score for score in first) != QUALITIES
    environment = RubricEnvironment(form="json")
    rewards = []
    for task in environment.tasks("test", 24):
        await environment.reset(task, 0)
        rubric = {"rubric": {"rules": [{"type": "code", "code": COUNTS}]}}
        rewards.append((await environment.step(Action(content=json.dumps(rubric)))).reward)
    assert statistics.fmean(rewards) < 0.12, "it was 0.22 while outputs came in the order of their workers"


LEFT_BEHIND = """
import os, signal, time
def evaluate(task_input, candidate_output):
    me, runner = os.getpid(), os.getppid()
    if os.fork() == 0:
        os.setsid()
        for end in (0, 1, 2):
            os.close(end)
        while True:
            for pid in range(2, 200):
                if pid not in (os.getpid(), me, runner):
                    try:
                        os.kill(pid, signal.SIGNAL)
                    except OSError:
                        pass
            time.sleep(0.001)
    return 1.0
"""
ATTACKS = {
    "kills what comes after it": LEFT_BEHIND.replace("SIGNAL", "SIGKILL"),
    "stops what comes after it": LEFT_BEHIND.replace("SIGNAL", "SIGSTOP"),
    "kills all": "import os\ndef evaluate(a, b):\n    os.kill(-1, 9)",
    "kills the runner": "import os\ndef evaluate(a, b):\n    os.kill(os.getppid(), 9)\n    return 1.0",
    "forges lines": "import os\ndef evaluate(a, b):\n"
    "    for end in range(3, 64):\n"
    '        try: os.write(end, b\'done ["[1.0, 1.0]", ""]\\n\')\n'
    "        except OSError: pass\n"
    '    print(\'done ["[1.0, 1.0]", ""]\\n\' * 9)\n'
    "    raise ValueError",
    "opens the runner's output": "import os\ndef evaluate(a, b):\n"
    "    with open(f'/proc/{os.getppid()}/fd/1', 'w') as file:\n"
    '        file.write(\'done ["[1.0, 1.0]", ""]\\n\' * 9)',
    "changes modules": "import re, builtins\nre.search = None\nbuiltins.len = None\ndef evaluate(a, b): return 2 / 0",
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_rule_of_one_episode_cannot_change_scores_of_others(name: str) -> None:
    runner, outputs = CodeRuleRunner(), ["ab", "abcd"]
    hostile = CodeRule(name=name, code=ATTACKS[name])
    honest = [
        CodeRule(code=f"import re\n{LENGTH.code} * len(re.findall('b', candidate_output)) # {n}") for n in range(4)
    ]
    others = [runner.score([rule], "in", outputs) for rule in honest]
    attack, *rows = await asyncio.gather(runner.score([hostile], "in", outputs), *others)
    assert [[score.score for score in row] for (row,) in rows] == [[0.5, 1.0]] * 4
    assert not any(score.error for (row,) in rows for score in row)
    if "comes after" not in name:
        assert [score.score for score in attack[0]] == [0.0, 0.0]
        assert all(score.error for score in attack[0])


LEAVES_FILES = """import os
def evaluate(task_input, candidate_output):
    os.makedirs("a/b", exist_ok=True)
    with open("a/b/note", "w") as file:
        file.write("x" * (1 << 20))
    os.chmod("a", 0)
    for n in range(300):
        try: open(f"file{n}", "wb").close()
        except OSError: break
    return 1.0"""
FINDS_NONE = """import os, tempfile
def evaluate(task_input, candidate_output):
    with tempfile.TemporaryFile(dir=".") as file:
        file.write(b"x" * 1000)
    return float(os.listdir(".") == [])  # NUMBER"""


async def test_a_rule_leaves_no_files_for_the_rules_of_others() -> None:
    runner = CodeRuleRunner()
    rules = [LEAVES_FILES, *(FINDS_NONE.replace("NUMBER", str(n)) for n in range(3))]
    rows = await asyncio.gather(*(runner.score([CodeRule(code=code)], "in", ["out"]) for code in rules))
    assert [score.score for (row,) in rows for score in row] == [1.0] * 4


async def test_ground_truths_never_share_a_sandbox_with_generated_rules() -> None:
    environment = RubricEnvironment(form="json")
    assert environment.engine.code_rules is not environment.ground_truth_engine.code_rules
    other = RubricEnvironment(form="json")
    assert other.engine.code_rules is environment.engine.code_rules, "attempts share cached scores"


JUDGED = Rubric(rules=(JudgeRule(name="polite", judge_prompt="Is it polite?"),))


async def test_judge_rules_ask_the_judge() -> None:
    engine = ValidationEngine(judge=ScriptedModel('{"score": 0.75, "reasoning": "mostly"}'))
    (result,) = await engine.score_outputs(JUDGED, "in", ["out"])
    assert result.aggregated_score == 0.75
    assert result.criteria[0].reasoning == "mostly"
    engine = ValidationEngine(judge=ScriptedModel("high"))
    (result,) = await engine.score_outputs(JUDGED, "in", ["out"])
    assert result.aggregated_score == 1.0
    engine = ValidationEngine(judge=ScriptedModel("I like it"))
    (result,) = await engine.score_outputs(JUDGED, "in", ["out"])
    assert result.errors == ("polite: the judge's reply has no score",)


async def test_a_judge_is_asked_once_about_a_rule_and_an_output() -> None:
    judge = ScriptedModel("high")
    engine = ValidationEngine(judge=judge)
    first = await engine.score_outputs(JUDGED, "in", ["out", "other"])
    assert await engine.score_outputs(JUDGED, "in", ["other", "out"]) == first[::-1]
    assert len(judge.asked) == 2
    await engine.score_outputs(JUDGED, "another task", ["out"])
    assert len(judge.asked) == 3


async def test_a_judge_that_fails_is_a_judge_error() -> None:
    for judge in (ScriptedModel(), None):
        with pytest.raises(JudgeError):
            await ValidationEngine(judge=judge).score_outputs(JUDGED, "in", ["out"])


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (True, 1.0),
        (False, 0.0),
        (0.4, 0.4),
        (7, 1.0),
        ("low", 0.33),
        ("Pass.", 0.8),
        ({"score": 0.2}, 0.2),
        ("yes", 1.0),
    ],
)
def test_answers_of_judges(answer: object, score: float) -> None:
    assert read_score(answer).score == score


async def test_a_judge_may_have_a_scale_of_its_own() -> None:
    """Published criteria ask for points of ten or of five; a seven would otherwise be a full score."""
    rule = JudgeRule(judge_prompt="Points from 0 to 10?", max_score=10)
    judge = ScriptedModel('{"score": 7}')
    (result,) = await ValidationEngine(judge=judge).score_outputs(Rubric(rules=(rule,)), "in", ["out"])
    assert result.aggregated_score == pytest.approx(0.7)
    assert "Score from 0 (nothing of it holds) to 10" in judge.asked[0][0][0].content
    assert read_score("12", 10).score == 1.0


def test_judge_answers_without_a_score_are_errors() -> None:
    for answer in (None, "fine", float("nan"), {"reasoning": "x"}):
        assert read_score(answer).error

"""Options of the agent are no part of a panel: modes are compared on one panel, and what differs is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from practicum.cli.main import main
from practicum.environment import Environment
from practicum.environments.mix import MixEnvironment
from practicum.errors import UserError
from practicum.evaluation.compare import Conclusion, compare_pair
from practicum.evaluation.comparison_report import compare
from practicum.evaluation.gates import Gate
from practicum.evaluation.matrix import matrix, notes
from practicum.evaluation.panel import Panel
from practicum.evaluation.policy_results import PolicyResults, read_policy_results
from practicum.evaluation.result import EvalResult, read_result
from practicum.evaluation.runner import evaluate
from practicum.evaluation.settings import EvalSettings
from practicum.registry import environment_class

Make = Callable[..., EvalResult]


def settings(**more: Any) -> EvalSettings:
    return EvalSettings(environment="math", policy="null", num_tasks=3, max_turns=2, **more)


def test_tools_prompts_formats_and_sampling_make_no_other_panel_and_the_task_does() -> None:
    plain = settings().make_panel().hash
    others: list[dict[str, Any]] = [
        {"environment_options": {"tools": ["calculator"], "system": "Think."}}, {"format": "react"},
        {"temperature": 0.7}, {"roles": {"policy": "expert"}}, {"max_tokens": 9},
    ]  # fmt: skip
    assert {settings(**options).make_panel().hash for options in others} == {plain}
    worlds: list[dict[str, Any]] = [
        {"environment_options": {"levels": [1]}}, {"environment_options": {"reward": "qa_f1_reward"}}, {"seed": 1},
    ]  # fmt: skip
    hashes = {settings(**options).make_panel().hash for options in worlds}
    assert plain not in hashes
    assert len(hashes) == 3


@pytest.mark.parametrize(
    ("environment", "world", "agent"),
    [
        ("agentgym:textcraft", {"reward": "shaped"}, {"grammar": "line", "protocol": "user", "instruction": "x.txt"}),
        ("search", {"results": 3}, {"brief": True, "tools": []}),
        ("gui", {"levels": [1]}, {"observe": "image"}),
        ("htdag", {"max_steps": 4}, {"prompt": "short"}),
        ("rubric", {"reward": "l1", "levels": [1]}, {"form": "json"}),
        ("web", {"levels": [1], "vary": ["words"]}, {"observe": "brief", "fresh": False, "actions": ["click"]}),
        ("mix", {"environments": {"math": {"levels": [1]}, "gui": None}}, {"environments": {"math": {"tools": []}}}),
    ],
)
def test_each_environment_says_which_of_its_options_are_the_agents(
    environment: str, world: dict[str, Any], agent: dict[str, Any]
) -> None:
    if environment == "mix":
        options: dict[str, Any] = {"environments": {"math": {"levels": [1], "tools": []}, "gui": None}}
    else:
        options = {**world, **agent}
    assert environment_class(environment).split_options(options) == (world, agent)
    assert MixEnvironment.split_options({"environments": ["math"]}) == ({"environments": ["math"]}, {})


def test_an_environment_declares_its_own() -> None:
    class Cached(Environment):
        agent_options = ("memory",)

    assert Cached.split_options({"memory": 1, "tools": 2}) == ({"tools": 2}, {"memory": 1})


def result(make: Make, name: str, rewards: list[int], **recorded: Any) -> EvalResult:
    return make(name, rewards, settings={"stage": "sft", "rules": {"max_turns": 2}, "format": None, **recorded})


def test_modes_are_tested_in_a_matrix_and_what_differs_is_listed(make_result: Make) -> None:
    base = result(make_result, "base", [0] * 40)
    tools = result(make_result, "tools", [1] * 40, agent_options={"tools": ["calculator"]}, format="react")
    hot = result(make_result, "hot", [1] * 40, temperature=1.0)
    cold = replace(base, settings={**base.settings, "temperature": 0.0})
    rows = matrix([PolicyResults(r.policy, {r.panel: r}) for r in (cold, tools, hot)], "base")
    assert [row.record()["shown"] for row in rows] == [None, True, None]  # another temperature is no mode of an agent
    text = notes(rows)
    assert text[0] == "'base' and 'tools' differ in format the default and react, tools the default and ['calculator']."
    assert "temperature 0.0 and 1.0" in text[1]


def test_a_comparison_for_a_gate_needs_the_same_agent_on_both_sides(make_result: Make) -> None:
    """A better prompt is not a better policy."""
    base = result(make_result, "base", [0] * 40)
    for recorded in ({"agent_options": {"system": "Think."}}, {"format": "react"}, {"roles": {"manager": "expert"}}):
        other = result(make_result, "other", [1] * 40, **recorded)
        results = compare_pair(base, other)
        assert results.conclusion is Conclusion.SETTINGS_DIFFER
        assert results.decision.gate is Gate.WITHHELD
        expected = compare_pair(base, other, different_settings=True)
        assert expected.conclusion == "better"
        assert expected.decision.gate is Gate.WITHHELD
        assert "The settings differ" in expected.sentence
    assert "role manager the default and expert" in expected.sentence


def test_another_judge_gives_no_verdict_even_in_a_matrix(make_result: Make) -> None:
    judged = {"asked_models": ["judge"], "roles": {"judge": "a"}}
    first = result(make_result, "first", [0] * 40, **judged)
    second = result(make_result, "second", [1] * 40, **{**judged, "roles": {"judge": "b"}})
    rows = matrix([PolicyResults(r.policy, {r.panel: r}) for r in (first, second)], "first")
    assert rows[1].record()["shown"] is None
    assert "role judge a and b" in notes(rows)[0]


def test_a_panel_is_played_by_another_mode_and_older_files_are_compared(tmp_path: Path) -> None:
    tools = {"environment_options": {"tools": ["calculator"]}}
    new = evaluate(settings(**tools, out=tmp_path / "new.json", name="new"), progress=False)
    panel = tmp_path / "new.run" / "panel.json"
    on_panel = EvalSettings(environment="math", policy="expert", panel=panel, max_turns=2, out=tmp_path / "other.json")
    other = evaluate(on_panel, progress=False)
    assert other.panel == new.panel
    # A file as earlier versions wrote it: the agent's options are among the rules, and in the panel's hash.
    content = json.loads((tmp_path / "new.json").read_text())
    recorded = content["settings"]
    rules = {"max_turns": 2, "options": recorded.pop("agent_options")}
    old = Panel(settings().make_panel().tasks, 0, rules)
    assert recorded.pop("panel_with_agent_options") == old.hash
    content |= {"panel": old.hash, "policy": "old", "settings": {**recorded, "panel": old.hash, "rules": rules}}
    (tmp_path / "old.json").write_text(json.dumps(content))
    assert compare(tmp_path / "old.json", tmp_path / "new.json").success.num_tasks == 3
    assert (
        len({panel for p in read_policy_results([tmp_path / "old.json", tmp_path / "new.json"]) for panel in p.results})
        == 1
    )
    with pytest.raises(UserError, match="only results on one panel"):
        compare(read_result(tmp_path / "old.json"), other)
    old.write(tmp_path / "old_panel.json")
    again = EvalSettings(environment="math", policy="expert", panel=tmp_path / "old_panel.json", max_turns=2)
    assert compare(read_result(tmp_path / "old.json"), evaluate(again, progress=False)).success.num_tasks == 3
    with pytest.raises(UserError, match="is played under the rules"):
        replace(again, environment_options={"levels": [1]}).make_panel()


def test_the_commands_print_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "modes.yaml"
    config.write_text(
        "defaults: {env: math, policy: tiny, tasks: 2, max-turns: 1, max-tokens: 4}\n"
        "experiments:\n- {name: plain}\n- {name: prompted, env-arg: 'system=Think.'}\n"
    )
    assert main(["matrix", "--config", str(config), "--out", str(tmp_path / "out")]) == 0
    text = "'plain' and 'prompted' differ in system the default and Think.."
    assert text in " ".join(capsys.readouterr().out.split())
    assert text in (tmp_path / "out" / "matrix.md").read_text()
    assert main(["compare", str(tmp_path / "out" / "plain.json"), str(tmp_path / "out" / "prompted.json")]) == 1
    assert "different settings (system the default and Think.)" in " ".join(capsys.readouterr().out.split())

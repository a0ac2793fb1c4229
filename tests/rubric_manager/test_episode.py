"""The phase before the work, one training episode, workflows and rubrics from files, scoring without training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from practicum.environments.rubric.probes import code_rule
from practicum.environments.rubric.schema import MenuRule
from practicum.environments.rubric.workflow_engine import PolicyWorker, Work
from practicum.errors import UserError
from practicum.rubric_manager import (
    CommunicationService,
    InitialRubricGenerationPhase,
    Rubric,
    RubricDecompositionManagerAgent,
    Stakeholder,
    ValidationEngine,
    Workflow,
    WorkflowEngine,
    WorkflowResource,
    WorkflowTask,
    best_of_n,
    create_rubric_based_scorer,
    load_ground_truth_rubrics,
    load_training_workflows,
    train_one_episode,
)
from practicum.rubric_manager.episode import FAILED_GENERATION_REWARD, collect_rollout, ground_truth_for
from practicum.rubric_manager.phase import FAILED, GENERATED
from tests.scripted_model import ScriptedModel

ASK = '{"action": "ask", "question": "Anything about wording?"}'
WRITE = '{"action": "generate"}'


def generated(rubric: Rubric) -> str:
    return json.dumps({"rules": [code_rule(rule) for rule in rubric.all_rules if isinstance(rule, MenuRule)]})


def test_workflows_and_ground_truths_match_by_name() -> None:
    workflows, rubrics = load_training_workflows(split=None), load_ground_truth_rubrics()
    assert len(workflows) == len(rubrics) >= 20
    for workflow in workflows:
        assert ground_truth_for(workflow, rubrics).num_rules >= 3
    workflows[0].name = "budget reports: controller"
    with pytest.raises(UserError, match="Did you mean 'budget report: controller'"):
        ground_truth_for(workflows[0], rubrics)


async def test_the_phase_asks_generates_and_tells_the_workers() -> None:
    workflow = load_training_workflows()[0]
    truth = load_ground_truth_rubrics()[workflow.name]
    stakeholder = Stakeholder("client", truth, hidden_topics=("wording",))
    model, service = ScriptedModel(ASK, WRITE, generated(truth)), CommunicationService()
    manager = RubricDecompositionManagerAgent(model=model)
    log = await InitialRubricGenerationPhase(manager, stakeholder, service, max_turns=3).run(workflow)
    assert log.completion_reason == GENERATED
    assert log.total_turns == 2
    assert [turn.question for turn in log.clarification_turns] == ["Anything about wording?"]
    assert stakeholder.generated_rubrics == log.generated_rubrics
    assert [message.kind for message in service.messages] == ["request", "question", "answer", "rubric"]
    assert len(manager.usage) == 3
    done = await WorkflowEngine([PolicyWorker(ScriptedModel("a|b\n1|2", "text", "text"))]).run(workflow)
    result = await stakeholder.evaluate_for_timestep(done)
    assert len(result.evaluation_results) == 1


async def test_the_last_turn_must_generate() -> None:
    workflow = load_training_workflows()[0]
    truth = load_ground_truth_rubrics()[workflow.name]
    stakeholder = Stakeholder("client", truth)
    manager = RubricDecompositionManagerAgent(model=ScriptedModel(ASK, ASK, generated(truth)))
    log = await InitialRubricGenerationPhase(manager, stakeholder, max_turns=3).run(workflow)
    assert log.completion_reason == GENERATED
    assert log.budget_used == 2


async def test_one_episode_and_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The literal call of the paper: rubrics as workflow evaluators and no cadence still have a total."""
    workflow = load_training_workflows()[0]
    truth = load_ground_truth_rubrics()[workflow.name]
    manager = RubricDecompositionManagerAgent(model=ScriptedModel(WRITE, generated(truth)))
    assert await train_one_episode(workflow, truth, manager) == 0.0
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert line.startswith("Synthetic: 0.")
    assert line.endswith("Reward: 0.000")
    manager = RubricDecompositionManagerAgent(model=ScriptedModel(WRITE, "no", "no", "no"))
    result = await collect_rollout(workflow, truth, manager)
    assert (result.reward, result.log.completion_reason) == (FAILED_GENERATION_REWARD, FAILED)
    assert 0 < result.ground_truth < 1


async def test_the_best_of_n_episodes_has_a_workflow_of_its_own() -> None:
    workflow = load_training_workflows()[0]
    truth = load_ground_truth_rubrics()[workflow.name]
    poor = json.dumps({"rules": [{"type": "code", "code": "def evaluate(a, b): return 0.0"}]})
    seeds: list[int] = []

    def make_manager(seed: int) -> RubricDecompositionManagerAgent:
        seeds.append(seed)
        return RubricDecompositionManagerAgent(model=ScriptedModel(WRITE, generated(truth) if seed == 6 else poor))

    best = await best_of_n(workflow, truth, make_manager, n=3, seed=5)
    assert seeds == [5, 6, 7]
    assert best.reward == 0.0
    assert not workflow.actions, "the workflow that was passed is as before"
    assert not workflow.messages


async def test_own_files(tmp_path: Path) -> None:
    note = {
        "name": "note",
        "goal": "A note",
        "tasks": [
            {"name": "think", "output": "idea", "hours": 2, "cost": 10},
            {"name": "write", "dependencies": ["think"], "inputs": ["idea"], "output": "note"},
        ],
        "resources": [{"name": "facts", "text": "the van is red"}],
        "deliverable": "note",
    }
    (tmp_path / "workflows.json").write_text(json.dumps([note]))
    (tmp_path / "rubrics.json").write_text(json.dumps({"note": "mention van 2; words 5 1"}))
    (workflow,) = load_training_workflows(tmp_path / "workflows.json")
    rubric = ground_truth_for(workflow, load_ground_truth_rubrics(tmp_path / "rubrics.json"))
    done = await WorkflowEngine([PolicyWorker(ScriptedModel("an idea", "a red van"))]).run(workflow)
    assert done.is_complete
    assert (done.hours_spent, done.cost_spent) == (3.0, 10.0)
    assert await create_rubric_based_scorer(rubric)(done) == 1.0
    assert workflow.candidate_output == "", "the workflow itself is as before"
    note["tasks"] = [{"name": "a", "dependencies": ["a"]}]
    (tmp_path / "workflows.json").write_text(json.dumps([note]))
    with pytest.raises(UserError, match="cycle"):
        load_training_workflows(tmp_path / "workflows.json")
    (tmp_path / "rubrics.json").write_text(json.dumps({"note": "be good"}))
    with pytest.raises(UserError, match="is no rule"):
        load_ground_truth_rubrics(tmp_path / "rubrics.json")


async def test_a_worker_that_fails_fails_its_task_and_what_depends_on_it() -> None:
    class Broken:
        name = "broken"

        async def perform(self, work: Work) -> str:
            raise RuntimeError("no")

    tasks = (WorkflowTask("a", output="x"), WorkflowTask("b", dependencies=("a",), output="y"))
    done = await WorkflowEngine([Broken()]).run(Workflow("w", "goal", {task.name: task for task in tasks}))
    assert [task.status for task in done.tasks.values()] == ["failed", "pending"]
    assert not done.is_complete
    result = await ValidationEngine().evaluate_timestep(done, [Rubric(rules=(MenuRule(kind="complete"),))])
    assert result.weighted_preference_total == 0.0


@pytest.mark.parametrize("form", ["csv", "xlsx", "document", "code"])
def test_resources_are_real_files(form: str, tmp_path: Path) -> None:
    text = "item|cost\na|9\nb|2.5" if form in ("csv", "xlsx") else "x = 1\ny"
    resource = WorkflowResource("my table", form, text)
    path = resource.save(tmp_path)
    assert WorkflowResource.read(path).text == text
    if form == "xlsx":
        assert path.read_bytes().startswith(b"PK")
    with pytest.raises(UserError, match="convert it"):
        WorkflowResource.read(tmp_path / "x.pdf")

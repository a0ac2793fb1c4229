"""The phase before the work, one training episode, workflows and rubrics from files, scoring without training."""

from __future__ import annotations

import json
from pathlib import Path

import openpyxl
import pytest

from practicum.environment import Action
from practicum.environments.rubric.environment import RubricEnvironment
from practicum.environments.rubric.probes import code_rule
from practicum.environments.rubric.schema import MenuRule, RunCondition
from practicum.environments.rubric.stakeholder import NO_VIEW
from practicum.environments.rubric.workflow_engine import PolicyWorker, Work
from practicum.errors import UserError
from practicum.rubric_manager import (
    CommunicationService,
    InitialRubricGenerationPhase,
    Preference,
    Rubric,
    RubricDecompositionManagerAgent,
    Stakeholder,
    ValidationEngine,
    Workflow,
    WorkflowEngine,
    WorkflowResource,
    WorkflowTask,
    add_outputs,
    best_of_n,
    create_rubric_based_scorer,
    load_ground_truth_rubrics,
    load_training_workflows,
    make_model,
    make_task_rows,
    train_one_episode,
)
from practicum.rubric_manager.episode import FAILED_GENERATION_REWARD, collect_rollout, ground_truth_for
from practicum.rubric_manager.manager import Decision, ManagerObservation
from practicum.rubric_manager.phase import FAILED, GENERATED, MAX_TURNS_REACHED
from practicum.task import Task
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


async def test_the_phase_asks_generates_and_sends_the_rubric_to_the_workers() -> None:
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


async def test_a_manager_that_always_asks_is_stopped_by_the_phase() -> None:
    """The phase itself holds the last turn and the budget, whatever the manager is: such questions get no answer."""

    class Asker:
        name, max_clarification_budget = "asker", 1

        async def take_action(self, observation: ManagerObservation) -> Decision:
            return Decision(action="ask", question="What about wording?")

    workflow = load_training_workflows()[0]
    for budget, max_turns, answered in ((1, 5, 1), (5, 3, 2), (0, 3, 0)):
        Asker.max_clarification_budget = budget
        service, truth = CommunicationService(), load_ground_truth_rubrics()[workflow.name]
        log = await InitialRubricGenerationPhase(Asker(), Stakeholder("c", truth), service, max_turns).run(workflow)
        assert (log.completion_reason, log.budget_used) == (MAX_TURNS_REACHED, answered)
        assert [message.kind for message in service.messages].count("answer") == answered
        assert "had to write the rubric" in log.error
    with pytest.raises(UserError, match="max_turns of at least 1"):
        InitialRubricGenerationPhase(Asker(), Stakeholder("c", truth), max_turns=0)


async def test_the_literal_call_with_two_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """`train_one_episode(workflow, gt_rubric)`: the model is that of the environment's variables."""
    monkeypatch.setenv("USE_LOCAL_MODELS", "1")
    monkeypatch.setenv("LOCAL_MODEL_PATH", "tiny")
    model_names: list[str | None] = []

    def scripted(name: str, use_local: bool | None, path: str | None) -> ScriptedModel:
        model_names.append(make_model(name, use_local, path).engine.name)
        return ScriptedModel(WRITE, generated(truth))

    monkeypatch.setattr("practicum.rubric_manager.manager.make_model", scripted)
    workflow = load_training_workflows()[0]
    truth = load_ground_truth_rubrics()[workflow.name]
    assert await train_one_episode(workflow, truth) == 0.0
    assert model_names == ["local"]


async def test_the_default_stakeholder_reveals_some_preferences_only_when_asked() -> None:
    workflow = load_training_workflows()[0]
    truth = load_ground_truth_rubrics()[workflow.name]
    model = ScriptedModel(ASK, WRITE, generated(truth))
    result = await collect_rollout(workflow, truth, RubricDecompositionManagerAgent(model=model))
    (turn,) = result.log.clarification_turns
    assert turn.response != NO_VIEW
    assert turn.response.rstrip(".") not in str(model.asked[0][0]), "it was not in the request"


async def test_judge_rules_without_an_engine_are_scored_by_the_managers_model() -> None:
    workflow = load_training_workflows()[0]
    truth = load_ground_truth_rubrics()[workflow.name]
    judged = json.dumps({"rules": [{"type": "llm_judge", "name": "polite", "judge_prompt": "Is it polite?"}]})
    model = ScriptedModel(WRITE, judged, '{"score": 0.25}')
    result = await collect_rollout(workflow, truth, RubricDecompositionManagerAgent(model=model))
    assert result.synthetic == 0.25
    assert "Is it polite?" in model.asked[2][0][1].content


async def test_rewards_over_one_output() -> None:
    workflow = load_training_workflows()[0]
    truth = load_ground_truth_rubrics()[workflow.name]
    manager = RubricDecompositionManagerAgent(model=ScriptedModel(WRITE, generated(truth)))
    with pytest.raises(UserError, match="compares the scores of several outputs"):
        await collect_rollout(workflow, truth, manager, reward="agreement")
    with pytest.raises(UserError, match="Did you mean 'squared'"):
        await collect_rollout(workflow, truth, manager, reward="sqared")


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
    low_quality = json.dumps({"rules": [{"type": "code", "code": "def evaluate(a, b): return 0.0"}]})
    seeds: list[int] = []

    def make_manager(seed: int) -> RubricDecompositionManagerAgent:
        seeds.append(seed)
        return RubricDecompositionManagerAgent(
            model=ScriptedModel(WRITE, generated(truth) if seed == 6 else low_quality)
        )

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
    note["tasks"] = [{"name": "a", "dependencies": ["a"], "output": "note"}]
    (tmp_path / "workflows.json").write_text(json.dumps([note]))
    with pytest.raises(UserError, match="cycle"):
        load_training_workflows(tmp_path / "workflows.json")
    (tmp_path / "rubrics.json").write_text(json.dumps({"note": "be good"}))
    with pytest.raises(UserError, match="is no rule"):
        load_ground_truth_rubrics(tmp_path / "rubrics.json")


OWN = {
    "name": "move",
    "goal": "Write a note about the move.",
    "tasks": [
        {"name": "add", "inputs": "bill", "output": "sums", "form": "csv"},
        {"name": "write", "dependencies": "add", "inputs": ["bill", "sums"], "output": "note"},
    ],
    "resources": [{"name": "bill", "file": "bill.xlsx"}],
    "deliverable": "note",
}


async def test_own_workflows_with_files_become_tasks_of_the_environment(tmp_path: Path) -> None:
    """As docs/rubric.md says: workflows and rubrics from files, a workbook as input, workers, then episodes."""
    WorkflowResource("bill", "xlsx", "item|cost\nvan|90\nboxes|-2.5").save(tmp_path)
    (tmp_path / "workflows.json").write_text(json.dumps([OWN]))
    (tmp_path / "rubrics.json").write_text(json.dumps({"move": "total cost 3; mention van 1; words 20 1"}))
    workflows = load_training_workflows(tmp_path / "workflows.json")
    rubrics = load_ground_truth_rubrics(str(tmp_path / "rubrics.json"))
    assert workflows[0].resources["bill"].text == "item|cost\nvan|90\nboxes|-2.5"
    notes = ("the van costs 87.5", "it costs 87.5", "a van", "no idea", "no idea")
    workers = [PolicyWorker(ScriptedModel("total|87.5", note), f"worker {n}") for n, note in enumerate(notes)]
    rows = await make_task_rows(workflows, rubrics, workers, hidden_topics=["length"])
    (tmp_path / "tasks.json").write_text(json.dumps(rows))
    environment = RubricEnvironment(files={"test": tmp_path / "tasks.json"}, criterion_dropout=0)
    (task,) = environment.tasks("test", 5)
    await environment.reset(task, 0)
    assert environment.client.request().endswith("More on length.")
    assert environment.case.outputs == notes[:4], "outputs that are the same count once"
    answer = await environment.step(Action(content="ask length"))
    assert "20 words" in answer.observation.messages[0].content
    step = await environment.step(Action(content="total cost 3; mention van 1; words 20 1"))
    assert step.success
    manager = RubricDecompositionManagerAgent(model=ScriptedModel(WRITE, '{"rules": [{"type": "code", "code": "x"}]}'))
    best = await best_of_n(workflows[0], rubrics["move"], lambda seed: manager, n=1, workers=workers[:1])
    assert (best.synthetic, best.ground_truth) == (0.0, 1.0)
    with pytest.raises(UserError, match="n of at least 1"):
        await best_of_n(workflows[0], rubrics["move"], lambda seed: manager, n=0)
    with pytest.raises(UserError, match="made 2 different outputs"):
        await make_task_rows(workflows, rubrics, [workers[0], workers[3]])
    with pytest.raises(UserError, match="no ground-truth rubric for 'move'"):
        await make_task_rows(workflows, {}, workers)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"taks": []}, "there is no field 'taks'. Did you mean 'tasks'"),
        ({"tasks": [{"name": "a", "hour": 2}]}, "tasks.0: there is no field 'hour'. Did you mean 'hours'"),
        ({"tasks": [{"name": "a", "inputs": ["bil"], "output": "note"}]}, "input 'bil' is no resource"),
        ({"tasks": [{"name": "a", "output": "note", "form": "pdf"}]}, "there is no form 'pdf'"),
        ({"tasks": [{"name": "a"}, {"name": "a"}]}, "two tasks have the same name"),
        ({"deliverable": "nota"}, "no task has the deliverable 'nota' as its output. Did you mean 'note'"),
        ({"resources": [{"name": "bill"}]}, "either a 'text' or a 'file'"),
        ({"resources": [{"name": "bill", "file": "bill.pdf"}]}, "convert it into one of these first"),
        ({"resources": [{"name": "bill", "file": "none.xlsx"}]}, "none.xlsx' cannot be read as a workbook"),
        ({"resources": [{"name": "bill", "text": "x", "form": "sheet"}]}, "there is no form 'sheet'"),
        ({"name": ""}, "'name': String should have at least 1 character"),
    ],
)
def test_mistakes_in_files_of_workflows(change: dict[str, object], problem: str, tmp_path: Path) -> None:
    WorkflowResource("bill", "xlsx", "item|cost\nvan|90").save(tmp_path)
    (tmp_path / "w.json").write_text(json.dumps({"workflows": [{**OWN, **change}]}))
    with pytest.raises(UserError) as exc_info:
        load_training_workflows(tmp_path / "w.json")
    assert problem in str(exc_info.value)


def test_mistakes_in_files_of_rubrics(tmp_path: Path) -> None:
    for value, problem in (
        ([{"name": "x"}], "row 0"),
        (3, "list of rubrics"),
        ({"x": {"rules": []}}, "'x' is not valid"),
    ):
        (tmp_path / "r.json").write_text(json.dumps(value))
        with pytest.raises(UserError, match=problem):
            load_ground_truth_rubrics(tmp_path / "r.json")
    (tmp_path / "w.json").write_text(json.dumps([{"name": "a"}, {"name": "a"}]))
    with pytest.raises(UserError, match="two workflows named 'a'"):
        load_training_workflows(tmp_path / "w.json")


async def test_converted_rows_get_outputs() -> None:
    rubric = {"rules": [{"type": "menu", "kind": "mention", "parameter": "van"}]}
    tasks = [{"name": "plan", "hours": 2.0}, {"name": "do", "dependencies": ["plan", "gone"]}]
    rows = [
        {"id": "a", "question": "Write a note.", "rubric": rubric},
        {"id": "b", "question": "Move.", "rubric": rubric, "tasks": tasks},
        {"id": "c", "question": "Done.", "rubric": rubric, "outputs": ["x", "y", "z"]},
    ]
    workers = [PolicyWorker(ScriptedModel(*(f"{text} {n}" for n in range(9)))) for text in ("a van", "a car", "no")]
    added = await add_outputs(rows, workers)
    assert added[0]["outputs"] == ["a van 0", "a car 0", "no 0"]
    assert added[1]["outputs"][0] == "a van 1\na van 2", "every task's output"
    assert added[2] == rows[2]
    environment = RubricEnvironment()
    await environment.reset(Task("b", "rubric", "test", added[1]), 0)
    assert (await environment.step(Action(content="mention van 1"))).success
    with pytest.raises(UserError, match=r"made 0 different outputs.*answer failed: EngineError: no server"):
        await add_outputs(rows[:1], [PolicyWorker(ScriptedModel())])


async def test_workers_and_assignments_are_checked() -> None:
    with pytest.raises(UserError, match="at least one worker"):
        WorkflowEngine([])
    worker = PolicyWorker(ScriptedModel("x"), "ann")
    with pytest.raises(UserError, match="Did you mean 'ann'"):
        WorkflowEngine([worker], {"write": "anne"})
    with pytest.raises(UserError, match="has no task 'wrote'. Did you mean 'write'"):
        await WorkflowEngine([worker], {"wrote": "ann"}).run(Workflow("w", "g", {"write": WorkflowTask("write")}))


async def test_rubrics_of_the_same_name_keep_their_scores() -> None:
    done = Workflow("w", "g", {"a": WorkflowTask("a", output="x")}, {"x": WorkflowResource("x", "document", "a van")})
    rubrics = [Rubric(rules=(MenuRule(kind="mention", parameter=word),)) for word in ("van", "car")]
    preferences = [Preference(rubrics[0], 3), Preference(rubrics[1], 1)]
    result = await ValidationEngine().evaluate_timestep(done, preferences=preferences)
    assert dict(result.preference_scores) == {"rubric": 1.0, "rubric (2)": 0.0}
    assert result.weighted_preference_total == 0.75
    with pytest.raises(UserError, match="There is no cadence 'daily'; it is each_timestep"):
        await ValidationEngine().evaluate_timestep(done, rubrics, cadence="daily")
    once = MenuRule(kind="mention", parameter="van", run_condition=RunCondition.ON_COMPLETION)
    for cadence, total in (("on_completion", 1.0), ("each_timestep", 0.0), (RunCondition.BOTH, 1.0), (None, 1.0)):
        result = await ValidationEngine().evaluate_timestep(done, [Rubric(rules=(once,))], cadence=cadence)
        assert result.weighted_preference_total == total


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


def test_real_tables_as_users_have_them(tmp_path: Path) -> None:
    """Ids with leading zeros, negative numbers, formulas as text, cells with | and line breaks, several sheets."""
    text = "id|cost|note\n007|-2.5|=1+1\n1.50|3|a\x07b"
    path = WorkflowResource("t", "xlsx", text).save(tmp_path)
    assert WorkflowResource.read(path).text == "id|cost|note\n007|-2.5|=1+1\n1.50|3|ab"
    book = openpyxl.load_workbook(path)
    assert [cell.value for cell in book.active[2]] == ["007", -2.5, "=1+1"]
    assert [cell.data_type for cell in book.active[2]] == ["s", "n", "s"], "a formula of a worker is not run"
    book.create_sheet("more").append(["x|y", "two\nlines"])
    book.save(path)
    assert WorkflowResource.read(path).text.endswith("ab\n# more\nx/y|two lines")
    assert WorkflowResource.read(path).text.startswith("# Sheet\nid|cost")
    (tmp_path / "t.csv").write_bytes('\ufeffname,note\n"a|b","one\ntwo"\n'.encode())
    assert WorkflowResource.read(tmp_path / "t.csv").text == "name|note\na/b|one two"
    (tmp_path / "bad.xlsx").write_bytes(b"no workbook")
    with pytest.raises(UserError, match="cannot be read as a workbook"):
        WorkflowResource.read(tmp_path / "bad.xlsx")


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

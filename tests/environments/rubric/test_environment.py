"""The environment: instances, dialogue, scripted managers, hacking probes, own tasks."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, Message, Reply, ScriptedPolicy, Step
from practicum.environments.rubric.environment import RubricEnvironment
from practicum.environments.rubric.families.catalogue import FAMILIES
from practicum.environments.rubric.instances import QUALITIES, canonical_instance, make_instance, make_outputs
from practicum.environments.rubric.manager_prompt import json_replies
from practicum.environments.rubric.probes import dropped_criteria
from practicum.environments.rubric.rewards import REWARDS
from practicum.environments.rubric.rubric_case import case_of_task
from practicum.environments.rubric.stakeholder import NO_VIEW, Stakeholder, asked_topic
from practicum.environments.rubric.validation import ValidationEngine
from practicum.errors import JudgeError, UserError
from practicum.models import loader
from practicum.registry import make_format
from practicum.rollout import run_episodes, with_models
from practicum.rubric_manager import make_model
from practicum.task import Task
from practicum.trajectory import Outcome, plan_attempts
from tests.scripted_model import ScriptedModel

RULE = '{"type": "llm_judge", "name": "polite", "judge_prompt": "Is it polite?"}'
JUDGED_RUBRIC = f'{{"action": "generate", "rubric": {{"rules": [{RULE}]}}}}'


async def run_policy(environment: RubricEnvironment, task: Task, name: str) -> Step:
    observation, policy = await environment.reset(task, 0), environment.scripted(name, task, 0)
    while True:
        step = await environment.step(policy(observation))
        if step.terminated:
            return step
        observation = step.observation


@pytest.mark.parametrize("form", ["menu", "short", "json"])
async def test_the_expert_solves_every_kind_of_task(form: str) -> None:
    environment = RubricEnvironment(form=form)
    tasks = [*environment.tasks("test", 8 if form == "json" else 16), *environment.tasks("train", 10)]
    verified = []
    for task in tasks[:4] if form == "json" else tasks:
        step = await run_policy(environment, task, "expert")
        assert step.success, task.id
        assert step.info["valid"] == 1.0
        verified.append(step.components["verifier"])
    assert statistics.fmean(verified) > 0.8


async def test_probes_earn_little_by_default_and_the_scalar_reward_can_be_gamed() -> None:
    tasks = RubricEnvironment().tasks("test", 60)

    async def mean(name: str, reward: str) -> float:
        environment = RubricEnvironment(reward=reward)
        return statistics.fmean([(await run_policy(environment, task, name)).reward for task in tasks])

    expert = await mean("expert", "agreement")
    assert expert > 0.95
    for name in ("constant", "keywords", "flatterer", "opposite"):
        assert await mean(name, "agreement") < 0.15 * expert, name
    assert await mean("constant", "squared") > -0.08, "near the best that there is, without judging anything"
    assert await mean("random", "squared") < 3 * await mean("constant", "squared")


async def test_the_short_form_lists_preferences_over_the_whole_dialogue() -> None:
    """The prompt says the form of the work and never its family; a rubric has the items of the dialogue in order."""
    environment = RubricEnvironment(form="short")
    for task in (candidate for candidate in environment.tasks("train", 60) if candidate.fields["level"] == 3):
        observation, policy = await environment.reset(task, 0), environment.expert(task)
        form, *lines, turns = observation.messages[0].content.splitlines()
        assert (form, turns) == (environment.case.kind_of_work, "3")
        while (action := policy(observation)).content.startswith("ask"):
            observation = (await environment.step(action)).observation
            *answer, _ = observation.messages[0].content.splitlines()
            lines += answer
        items = [line.split()[0] for line in lines if not line.startswith("more:")]
        assert items == list("abcdefgh"[: environment.case.ground_truth.num_rules])
        assert [line.split()[0] for line in action.content.splitlines()] == items
        assert (await environment.step(action)).success


async def test_the_dialogue() -> None:
    environment = RubricEnvironment()
    task = next(candidate for candidate in environment.tasks("train", 30) if candidate.fields["level"] == 3)
    await environment.reset(task, 0)
    hidden = environment.case.hidden_topics
    answer = await environment.step(Action(content=f"ask {hidden[0]}"))
    assert NO_VIEW not in answer.observation.messages[0].content
    repeated = await environment.step(Action(content=f"ask {hidden[0]}"))
    assert NO_VIEW in repeated.observation.messages[0].content
    assert "1 turn left" in repeated.observation.messages[0].content
    late_answer = await environment.step(Action(content=f"ask {hidden[1]}"))
    assert late_answer.terminated
    assert late_answer.reward == environment.reward_without_rubric == pytest.approx(-0.74)
    assert late_answer.info["problem"] == "the last turn must write the rubric"


@pytest.mark.parametrize("reward", sorted(REWARDS))
@pytest.mark.parametrize("form", ["menu", "json"])
async def test_no_rubric_earns_less_than_any_rubric(reward: str, form: str) -> None:
    environment = RubricEnvironment(reward, form)
    for task in environment.tasks("test", 2):
        low_reward = (await run_policy(environment, task, "opposite")).reward
        await environment.reset(task, 0)
        assert (await environment.truncate()).reward < low_reward
        assert (await environment.step(Action(content="nothing"))).reward < low_reward


async def test_questions_cost_a_little() -> None:
    environment = RubricEnvironment(criterion_dropout=0)
    task = environment.tasks("test", 1)[0]
    few_questions, many_questions = (
        (await run_policy(environment, task, "expert")),
        (await run_policy(environment, task, "thorough")),
    )
    assert many_questions.info["questions"] > few_questions.info["questions"]
    assert 0 < few_questions.reward - many_questions.reward < 0.1


async def test_a_judge_that_fails_ends_the_episode_as_judge_error() -> None:
    environment = RubricEnvironment(form="json", judge=True)
    environment.models = {"judge": ScriptedModel()}
    assert environment.model_names() == ("judge",)
    await environment.reset(environment.tasks("test", 1)[0], 0)
    with pytest.raises(JudgeError):
        await environment.step(Action(content=JUDGED_RUBRIC))


async def test_an_episode_whose_judge_fails_is_not_scored() -> None:
    class Manager(RubricEnvironment):
        def expert(self, task: Task) -> ScriptedPolicy:
            return lambda observation: Action(content=JUDGED_RUBRIC)

    renderer = Renderer(loader.load_tokenizer("tiny"))
    engine = ScriptedEngine.of("expert", Manager(form="json"), make_format("hf"), renderer)
    tasks = RubricEnvironment().tasks("test", 2)
    for texts, outcome in (((), Outcome.JUDGE_ERROR), (("high",), Outcome.FAILURE)):
        make = with_models(lambda: Manager(form="json", judge=True), {"judge": ScriptedModel(*texts)})
        episodes = await run_episodes(plan_attempts(tasks, 1, 0), make, Agent(max_turns=3), engine, renderer)
        assert [episode.outcome for episode in episodes] == [outcome] * 2


async def test_workers_of_graded_quality_and_the_same_outputs_for_the_same_seed() -> None:
    engine = ValidationEngine()
    scores: dict[float, list[float]] = {0.0: [], 0.5: [], 1.0: []}
    for family in FAMILIES:
        instance = make_instance(family, 0)
        outputs = await make_outputs(instance, tuple(scores))
        assert outputs == await make_outputs(instance, tuple(scores))
        texts = [output.text for output in outputs]
        results = await engine.score_outputs(instance.preferences, instance.workflow.task_input, texts)
        for result, output, values in zip(results, outputs, scores.values(), strict=True):
            values.append(result.aggregated_score)
            assert abs(result.aggregated_score - instance.utility(output)) < 0.65
    assert scores[1.0] == [1.0] * len(FAMILIES)
    assert statistics.fmean(scores[0.0]) < 0.2 < 0.4 < statistics.fmean(scores[0.5]) < 0.8
    assert len(QUALITIES) >= 6


async def test_hand_written_rubrics_are_satisfied_by_good_work_only() -> None:
    engine = ValidationEngine()
    for family in FAMILIES.values():
        for name in family.rubrics:
            instance = canonical_instance(family, name)
            good_output, bad_output = await make_outputs(instance, (1.0, 0.0))
            texts = [good_output.text, bad_output.text]
            first, second = await engine.score_outputs(instance.preferences, instance.workflow.task_input, texts)
            assert first.aggregated_score == 1.0, instance.preferences.name
            assert second.aggregated_score < 0.45, instance.preferences.name


def test_criterion_dropout() -> None:
    rubric = make_instance("budget report", 1).preferences
    sizes = [dropped_criteria(rubric, 0.3, str(key)).num_rules for key in range(50)]
    assert min(sizes) >= 2
    assert 0.6 < statistics.fmean(sizes) / rubric.num_rules < 0.95
    assert dropped_criteria(rubric, 0.3, "1") == dropped_criteria(rubric, 0.3, "1")


async def test_own_workflows_and_rubrics() -> None:
    fields = {
        "question": "Write a note about the move.",
        "rubric": {"rules": [{"type": "menu", "kind": "mention", "parameter": "van", "weight": 2}]},
        "outputs": ["a van", "a car", "the van", "no"],
        "scores": [1, 0, 1, 0],
    }
    environment = RubricEnvironment()
    await environment.reset(Task("own", "rubric", "test", fields), 0)
    assert environment.client.request() == Stakeholder("client", environment.case.ground_truth).request()
    step = await environment.step(Action(content="mention van 1"))
    assert step.success
    assert step.components["verifier"] == pytest.approx(1.0), "of all scores, however few there are"
    three_outputs = {**fields, "outputs": ["a van", "a car", "no"], "scores": [1, 0, 0]}
    await environment.reset(Task("own", "rubric", "test", three_outputs), 0)
    assert (await environment.step(Action(content="mention van 1"))).components["verifier"] == pytest.approx(1.0)
    await environment.reset(
        Task("own", "rubric", "test", {key: fields[key] for key in ("question", "rubric", "outputs")}), 0
    )
    step = await environment.step(Action(content="mention van 1"))
    assert "verifier" not in step.components
    with pytest.raises(UserError, match="at least 3"):
        await case_of_task(Task("few", "rubric", "test", {**fields, "outputs": ["a"]}))
    with pytest.raises(UserError, match="4 outputs and 2 scores"):
        await case_of_task(Task("few", "rubric", "test", {**fields, "scores": [1, 0]}))
    wrong = {"rules": [{"type": "menu", "kind": "mention", "parameter": "van"}, {"type": "code"}]}
    with pytest.raises(UserError, match=r"The rubric of 'bad' is not valid: rules.1.code.code: Field required"):
        await case_of_task(Task("bad", "rubric", "test", {**fields, "rubric": wrong}))
    with pytest.raises(UserError, match="is no rule"):
        await case_of_task(Task("bad", "rubric", "test", {**fields, "rubric": "be good"}))
    code = {"rules": [{"type": "code", "code": "def evaluate(a, b): return 1.0"}]}
    with pytest.raises(UserError, match="use form=json"):
        await run_policy(RubricEnvironment(), Task("code", "rubric", "test", {**fields, "rubric": code}), "expert")
    with pytest.raises(UserError, match="form=short"):
        await RubricEnvironment(form="short").reset(Task("own", "rubric", "test", fields), 0)


@pytest.mark.parametrize(
    "options", [{"reward": "agrement"}, {"form": "xml"}, {"max_turns": 0}, {"criterion_dropout": 1.0}]
)
def test_wrong_options(options: dict[str, object]) -> None:
    with pytest.raises(UserError):
        RubricEnvironment(**options)  # type: ignore[arg-type]


OWN = {"question": "Write a note.", "outputs": ["a", "b", "c"]}


async def test_criteria_of_an_own_task_are_dropped_anew_in_every_epoch() -> None:
    """A generated task is one of thousands; an own one comes again, and would never train on what it dropped once."""
    words = ("van", "car", "bus", "red")
    rubric = {"rules": [{"type": "menu", "kind": "mention", "parameter": word} for word in words]}
    outputs = [" ".join(words[: n + 1]) for n in range(4)]
    task = Task("own", "rubric", "train", {"question": "Write.", "rubric": rubric, "outputs": outputs})
    environment = RubricEnvironment(criterion_dropout=0.5)

    async def reward(seed: int) -> float:
        await environment.reset(task, seed)
        return (await environment.step(Action(content="mention car 1; mention red 1"))).reward

    rewards = [await reward(seed) for seed in range(12)]
    assert len({round(value, 6) for value in rewards}) > 1
    assert rewards == [await reward(seed) for seed in range(12)], "attempts at a task share the seed"


async def test_judge_rules_where_there_is_no_judge() -> None:
    """They are not offered, one that is written costs itself alone, and a ground truth needs a judge."""
    environment = RubricEnvironment(form="json")
    task = environment.tasks("test", 1)[0]
    observation = await environment.reset(task, 0)
    assert "llm_judge" not in observation.messages[0].content
    step = await environment.step(Action(content=JUDGED_RUBRIC))
    assert (step.terminated, step.info["failed_rules"]) == (True, 1.0)
    assert step.info["rule_errors"] == "polite: there is no judge"
    environment = RubricEnvironment(form="json", judge=True)
    environment.models = {"judge": ScriptedModel("high")}
    assert "llm_judge" in (await environment.reset(task, 0)).messages[0].content
    rubric = {"rules": [{"type": "llm_judge", "judge_prompt": "Is it polite?"}]}
    with pytest.raises(UserError, match="--role judge=MODEL"):
        await RubricEnvironment().reset(Task("judged", "rubric", "test", {**OWN, "rubric": rubric}), 0)


async def test_replies_of_the_json_form_under_constrained_decoding() -> None:
    environment = RubricEnvironment(form="json")
    task = next(candidate for candidate in environment.tasks("test", 12) if candidate.fields["level"] == 3)
    observation, expert = await environment.reset(task, 0), environment.expert(task)
    schemas = {judge: json_replies(judge)["json_schema"]["schema"] for judge in (False, True)}
    kinds = set()
    while True:
        action = expert(observation)
        value = json.loads(action.content)
        kinds.add(value["action"])
        for schema in schemas.values():
            jsonschema.validate(value, schema)
        step = await environment.step(action)
        if step.terminated:
            break
        observation = step.observation
    assert kinds == {"ask", "generate"}
    jsonschema.validate(json.loads(JUDGED_RUBRIC), schemas[True])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(JUDGED_RUBRIC), schemas[False])
    model = make_model(use_local=True, model_path="tiny", max_tokens=30)
    reply = await model.reply(observation.messages, response_format=json_replies(), seed=3)
    await model.engine.close()
    assert reply.text.startswith('{"action":')


async def test_a_rule_that_fails_on_one_output_only_is_reported() -> None:
    environment = RubricEnvironment(form="json")
    await environment.reset(environment.tasks("test", 1)[0], 0)
    last = environment.case.outputs[-1]
    code = f"def evaluate(a, b):\n    if b == {last!r}: raise ValueError('no')\n    return 1.0"
    rubric = {"action": "generate", "rubric": {"rules": [{"type": "code", "name": "odd", "code": code}]}}
    info = (await environment.step(Action(content=json.dumps(rubric)))).info
    assert (info["failed_rules"], info["rule_errors"]) == (1.0, "odd: ValueError: no")


async def test_compound_criteria_are_reported_apart() -> None:
    prompts = {"Is it polite?": "0.5", "Is it polite and short?": "0.75", "Is it warm? Is it brief?": "1"}
    rules = [{"type": "llm_judge", "name": str(n), "judge_prompt": prompt} for n, prompt in enumerate(prompts)]

    class Judge(ScriptedModel):
        async def reply(self, messages: Sequence[Message], **options: Any) -> Reply:
            criterion = messages[-1].content.splitlines()[0].removeprefix("Criterion: ")
            return await ScriptedModel(prompts[criterion]).reply(messages, **options)

    environment = RubricEnvironment(form="json", judge=True)
    environment.models = {"judge": Judge()}
    await environment.reset(environment.tasks("test", 1)[0], 0)
    info = (await environment.step(Action(content=json.dumps({"rubric": {"rules": rules}})))).info
    assert (info["compound_rules"], info["compound_granted"], info["single_granted"]) == (2.0, 0.875, 0.5)


@pytest.mark.parametrize(
    ("question", "topic"),
    [
        ("Anything on wording or structure?", "wording"),
        ("How long may the report be?", "length"),
        ("Which headings do you need?", "structure"),
        ("Should totals be stated?", "figures"),
        ("Are there terms to avoid?", "wording"),
        ("What is your favourite colour?", ""),
    ],
)
def test_the_topic_of_a_question_in_free_text(question: str, topic: str) -> None:
    assert asked_topic(question) == topic


async def test_a_model_may_speak_for_the_stakeholder() -> None:
    environment = RubricEnvironment(stakeholder="policy")
    assert environment.model_names() == ("stakeholder",)
    environment.models = {"stakeholder": ScriptedModel("Keep it short, please.")}
    await environment.reset(environment.tasks("test", 1)[0], 0)
    step = await environment.step(Action(content="ask length"))
    assert step.observation.messages[0].content == "Keep it short, please.\n2 turns left"
    step = await environment.step(Action(content="ask length"))
    assert step.observation.messages[0].content == f"{NO_VIEW}\n1 turn left: write", "each question is answered once"

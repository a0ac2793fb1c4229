"""A case: everything that an episode of the environment `rubric` is about, made from its task.

A task is a generated instance (`family`, `number`, `level`) or brings its own question, ground truth and outputs
(`question`, `rubric`, `outputs`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from practicum.environment import ChatModel
from practicum.environments.rubric.families.catalogue import family_named
from practicum.environments.rubric.instances import (
    MIN_SPREAD,
    QUALITIES,
    Instance,
    WorkOutput,
    canonical_instance,
    make_instance,
    make_outputs,
)
from practicum.environments.rubric.menu import UnreadableReply, parse_rubric
from practicum.environments.rubric.schema import MenuRule, Rubric
from practicum.environments.rubric.short_form import Legend
from practicum.environments.rubric.stakeholder import Stakeholder
from practicum.environments.rubric.validation import menu_score
from practicum.errors import UserError
from practicum.task import Task

MAX_CACHED_CASES = 2048
MIN_OUTPUTS = 3
MAX_DRAWS = 20
_cases: OrderedDict[str, RubricCase] = OrderedDict()


@dataclass(frozen=True)
class RubricCase:
    """A workflow with its ground truth, the outputs that rubrics are compared on, and others that are held out."""

    name: str
    goal: str
    task_input: str
    ground_truth: Rubric
    hidden_topics: tuple[str, ...]
    outputs: tuple[str, ...]
    held_out_outputs: tuple[str, ...]
    held_out_scores: tuple[float, ...]
    """The stakeholder's true utility of the held-out outputs, which no rubric is trained on. An own task has no outputs
    to spare: they are the same ones, with the scores that it brings."""
    exemplar: str = ""
    seed: int = 0
    stakeholder_name: str = "client"
    kind_of_work: str = ""
    """The form of the deliverable, the only property of the work in the short form."""
    legend: Legend | None = None
    """What the letters of the short form stand for; only generated workflows have one."""

    @property
    def is_generated(self) -> bool:
        return self.legend is not None

    def stakeholder(self, model: ChatModel | None = None, short: bool = False) -> Stakeholder:
        """Return the stakeholder of one episode; `short`: it speaks the short form."""
        return Stakeholder(
            self.stakeholder_name,
            self.ground_truth,
            self.hidden_topics,
            self.exemplar,
            model,
            self.seed,
            self.legend if short else None,
        )


async def case_of_task(task: Task) -> RubricCase:
    """Return the case of a task; cases are made once and kept, since the attempts at a task share it."""
    case = _cases.get(task.hash)
    if case is None:
        case = await _make_case(task)
        _cases[task.hash] = case
        if len(_cases) > MAX_CACHED_CASES:
            _cases.popitem(last=False)
    return case


async def _make_case(task: Task) -> RubricCase:
    fields = task.fields
    if "outputs" in fields:
        return _own_case(task)
    if "family" not in fields:
        raise UserError(
            f"Task '{task.id}' has neither a 'family' nor 'outputs'; write three or more texts as its outputs, or let "
            "workers make them (practicum.rubric_manager.add_outputs)."
        )
    family = family_named(str(fields["family"]))
    if "stakeholder" in fields:
        name = str(fields["stakeholder"])
        if name not in family.rubrics:
            raise UserError(f"Family '{family.name}' has no stakeholder '{name}'; it has {', '.join(family.rubrics)}.")
        return await instance_case(canonical_instance(family, name))
    return await instance_case(make_instance(family.name, int(fields["number"]), int(fields["level"])))


async def instance_case(instance: Instance) -> RubricCase:
    """Return the case of a generated instance; workers are drawn until their outputs differ by the ground truth."""
    task_input = instance.workflow.task_input
    outputs = await _spread_outputs(instance, "")
    held_out = await _spread_outputs(instance, "held-out ")
    exemplar = (await make_outputs(instance, [1.0], "exemplar "))[0].text
    return RubricCase(
        instance.workflow.name,
        instance.workflow.goal,
        task_input,
        instance.preferences,
        instance.hidden_topics,
        tuple(output.text for output in outputs),
        tuple(output.text for output in held_out),
        tuple(instance.utility(output) for output in held_out),
        exemplar,
        instance.number,
        instance.stakeholder,
        instance.spec.form,
        Legend(instance.spec),
    )


async def _spread_outputs(instance: Instance, group: str) -> list[WorkOutput]:
    for draw in range(MAX_DRAWS):
        outputs = await make_outputs(instance, QUALITIES, f"{group}{draw} ")
        scores = menu_totals(instance.preferences, instance.workflow.task_input, [o.text for o in outputs])
        utilities = [instance.utility(output) for output in outputs]
        if min(max(scores) - min(scores), max(utilities) - min(utilities)) >= MIN_SPREAD:
            break
    return outputs


def menu_totals(rubric: Rubric, task_input: str, outputs: Sequence[str]) -> list[float]:
    """Return the scores of outputs by a rubric of menu rules."""
    rules = [rule for rule in rubric.all_rules if isinstance(rule, MenuRule)]
    return [rubric.total([menu_score(rule, task_input, output).score for rule in rules]) for output in outputs]


def _own_case(task: Task) -> RubricCase:
    fields = task.fields
    outputs = [str(output) for output in fields["outputs"]]
    if len(outputs) < MIN_OUTPUTS:
        raise UserError(
            f"Task '{task.id}' has {len(outputs)} outputs; give at least {MIN_OUTPUTS} of different quality."
        )
    scores = [float(score) for score in fields.get("scores", ())]
    if scores and len(scores) != len(outputs):
        raise UserError(f"Task '{task.id}' has {len(outputs)} outputs and {len(scores)} scores; give one per output.")
    return RubricCase(
        str(fields.get("name", task.id)),
        str(fields.get("goal_text", fields.get("question", task.id))),
        str(fields.get("task_input", fields.get("question", ""))),
        rubric_of_field(fields.get("rubric"), task.id),
        tuple(fields.get("hidden_topics", ())),
        tuple(outputs),
        tuple(outputs) if scores else (),
        tuple(scores),
        str(fields.get("exemplar", "")),
    )


def rubric_of_field(value: object, name: str) -> Rubric:
    """Return a ground truth from a task's field: the menu form, or JSON of a `Rubric`."""
    try:
        if isinstance(value, str):
            return parse_rubric(value, name)
        if isinstance(value, Mapping):
            return Rubric.model_validate(_plain(value))
    except UnreadableReply as error:
        raise UserError(f"The rubric of '{name}' cannot be read: {error}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        location = f"{'.'.join(map(str, first['loc']))}: " if first["loc"] else ""
        raise UserError(f"The rubric of '{name}' is not valid: {location}{first['msg']}.") from None
    raise UserError(f"'{name}' has no rubric; give it in the menu form or as JSON.")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value

"""Published rubrics as tasks of the environment `rubric`: each row has a question and a ground-truth rubric.

The rubrics ask a judge model (`--env-arg judge=true`). Where a data set has a reference answer, outputs of falling
quality are made of it by leaving sentences out, and `scores` say how much of it each keeps; elsewhere outputs must be
added as the field `outputs` before the rows can be played.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from practicum.data.convert_rows import Converted, InvalidRow, Located, Row, field_of, list_field, text_field
from practicum.errors import UserError

SENTENCE_END = re.compile(r"(?<=[.!?\n])\s+")
KEPT_SHARES = (1.0, 0.75, 0.5, 0.25)
RUN_CONDITIONS = ("each_timestep", "on_completion", "both")
RUBRIC_CALLS = ("WorkflowRubric", "RubricCriteria")
"""Names of manager_agent_gym's class of a criterion, in its older and its newer form."""


def judge_rule(name: str, prompt: str, weight: float, **more: Any) -> Row:
    """Return a judge rule in the JSON form of `Rubric`."""
    return {"type": "llm_judge", "name": name[:200], "judge_prompt": prompt[:8000], "weight": weight, **more}


def degraded_outputs(reference: str) -> Row:
    """Return a reference answer and shortened copies of it, with the share that each keeps."""
    sentences = [part for part in SENTENCE_END.split(reference.strip()) if part.strip()]
    if len(sentences) < len(KEPT_SHARES):
        sentences = reference.split()
    if len(sentences) < len(KEPT_SHARES):
        return {}
    counts = [max(1, math.ceil(share * len(sentences))) for share in KEPT_SHARES]
    return {
        "outputs": [" ".join(sentences[:count]) for count in counts],
        "scores": [count / len(sentences) for count in counts],
        "exemplar": reference,
    }


def paperbench(rows: Located, path: Path) -> Converted:
    """PaperBench: a tree of requirements with weights; a leaf's weight is its share along the path from the root."""
    converted = []
    for location, tree in rows:
        if not isinstance(tree, Mapping) or "sub_tasks" not in tree:
            continue  # other files of a paper's folder
        name = Path(location).parent.name or path.resolve().parent.name
        try:
            rules = [judge_rule(leaf_id, text, share) for leaf_id, text, share in _leaves(tree, 1.0)]
            question = f"Reproduce the paper. {text_field(tree, 'requirements').strip()}"
        except InvalidRow as error:
            raise UserError(f"'{path}', {location}: {error}.") from None
        converted.append({"id": f"paperbench-{name}", "question": question, "rubric": {"name": name, "rules": rules}})
    if not converted:
        raise UserError(f"'{path}' has no rubric.json of PaperBench: a tree of 'requirements' and 'sub_tasks'.")
    return Converted(converted)


def _leaves(node: Mapping[str, Any], share: float) -> Iterator[tuple[str, str, float]]:
    children = list_field(node, "sub_tasks")
    if not children:
        yield str(field_of(node, "id")), text_field(node, "requirements").strip(), share
        return
    weights = [field_of(child, "weight") for child in children]
    if not all(isinstance(weight, int | float) and weight >= 0 for weight in weights):
        raise InvalidRow("'weight' must be a number of at least 0")
    total = math.fsum(weights) or 1.0
    for child, weight in zip(children, weights, strict=True):
        yield from _leaves(child, share * weight / total)


def writingbench(row: Mapping[str, Any], index: int) -> Row:
    """WritingBench: a `query` and a `checklist` of criteria, each with a description of every band of scores."""
    rules = []
    for criterion in list_field(row, "checklist"):
        bands = [f"{band} of 10: {text}" for band, text in criterion.items() if re.fullmatch(r"\d+-\d+", str(band))]
        prompt = "\n".join([text_field(criterion, "criteria_description"), *bands])
        rules.append(judge_rule(text_field(criterion, "name"), prompt, 1.0, max_score=10))
    if not rules:
        raise InvalidRow("'checklist' has no criteria")
    more = {key: row[key] for key in ("domain1", "domain2", "lang") if key in row}
    name = f"writingbench-{row.get('index', index)}"
    rubric = {"name": name, "rules": rules}
    return {"id": name, "question": text_field(row, "query").strip(), "rubric": rubric, **more}


def biggen(row: Mapping[str, Any], index: int) -> Row:
    """BiGGen-Bench: an `input`, a `reference_answer` and a `score_rubric` of five levels."""
    scale = field_of(row, "score_rubric")
    levels = [f"{level} of 5: {text_field(scale, f'score{level}_description')}" for level in range(1, 6)]
    prompt = "\n".join([text_field(scale, "criteria"), *levels])
    # Its repository has a file per task, with `task` and `instance_idx`; the data set on the hub has `id`.
    own = "_".join(str(row[key]) for key in ("task", "instance_idx") if key in row) if "instance_idx" in row else ""
    name = str(row.get("id") or own or f"biggen-{index}")
    reference = text_field(row, "reference_answer")
    rule = judge_rule(str(row.get("task", "criterion")), prompt, 1.0, expectation=reference, max_score=5)
    system = str(row.get("system_prompt") or "").strip()
    question = "\n\n".join(part for part in (system, text_field(row, "input").strip()) if part)
    outputs = degraded_outputs(reference)
    return {"id": name, "question": question, "rubric": {"name": name, "rules": [rule]}, **outputs}


def manager_agent_gym(folder: Path) -> Converted:
    """manager_agent_gym: folders with `workflow.py` and `preferences.py`, which are read and never run.

    The preferences of a folder are one row, each of its other evaluators (of the goal's achievement) another. Criteria
    that are Python functions over its own workflow objects are left out and counted (`left_out`).
    """
    files = sorted(folder.rglob("preference*.py")) if folder.is_dir() else []
    rows = [row for path in files if (path.parent / "workflow.py").is_file() for row in _gym_rows(path)]
    if not rows:
        raise UserError(f"'{folder}' has no folder with workflow.py and preferences.py of manager_agent_gym.")
    return Converted([row for row in rows if row["rubric"]["rules"]])


def _gym_rows(path: Path) -> list[Row]:
    preferences, workflow = (_parse(file) for file in (path, path.parent / "workflow.py"))
    lists = _criteria_lists(preferences)
    title, goal = _gym_goal(workflow, path.parent.name)
    common = {"question": f"{title}\n{goal}".strip(), "tasks": _gym_tasks(workflow)}
    weighted, alone = list(_gym_preferences(preferences, lists)), list(_gym_evaluators(preferences, lists))
    rubrics = [
        (path.parent.name, weighted),
        *((f"{path.parent.name}: {preference[0]}", [preference]) for preference in alone),
    ]
    rows = []
    for name, parts in rubrics:
        rules, left_out = _gym_rules(parts)
        rubric = {"name": title if name == path.parent.name else name, "rules": rules}
        rows.append({"id": name, **common, "rubric": rubric, "left_out": left_out})
    return rows


def _gym_rules(parts: Sequence[tuple[str, float, list[dict[str, Any]]]]) -> tuple[list[Row], int]:
    """The judge rules of preferences or evaluators, and how many of their criteria are Python functions."""
    rules, left_out = [], 0
    for name, weight, criteria in parts:
        judged = [criterion for criterion in criteria if isinstance(criterion.get("llm_prompt"), str)]
        left_out += len(criteria) - len(judged)
        total = math.fsum(_max_score(criterion) for criterion in judged) or 1.0
        for criterion in judged:
            prompt, points = " ".join(criterion["llm_prompt"].split()), _max_score(criterion)
            # Some questions ask for points of the criterion's own scale, others for true or false.
            scale = points if re.search(rf"\b0\s*(?:,|-|–|to)\s*{points:g}\b", prompt) else 1.0
            more = {"run_condition": criterion["run_condition"]} if "run_condition" in criterion else {}
            label = f"{name}: {criterion.get('name', '')}"
            rules.append(judge_rule(label, prompt, weight * points / total, max_score=scale, **more))
    return rules, left_out


def _max_score(criterion: Mapping[str, Any]) -> float:
    value = criterion.get("max_score")
    return float(value) if isinstance(value, int | float) and value > 0 else 1.0


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"'{path}' cannot be read as Python: {error}.") from None


def _name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _arguments(call: ast.Call) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def _literal(node: ast.expr | None) -> Any:
    """The value of a literal; None for anything else."""
    try:
        return None if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _criteria_lists(module: ast.Module) -> dict[str, list[dict[str, Any]]]:
    """The lists of criteria of a module, by the variable that holds them."""
    lists = {}
    for node in ast.walk(module):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(value, ast.List) and target is not None:
            lists[_name_of(target)] = _criteria(value)
    return lists


def _criteria(node: ast.List) -> list[dict[str, Any]]:
    calls = [call for call in node.elts if isinstance(call, ast.Call) and _name_of(call.func) in RUBRIC_CALLS]
    return [_criterion(_arguments(call)) for call in calls]


def _criterion(arguments: Mapping[str, ast.expr]) -> dict[str, Any]:
    criterion = {name: _literal(value) for name, value in arguments.items() if name != "run_condition"}
    condition = _name_of(arguments["run_condition"]).lower() if "run_condition" in arguments else ""
    return {**criterion, "run_condition": condition} if condition in RUN_CONDITIONS else criterion


def _evaluator_criteria(call: ast.Call, lists: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    arguments = _arguments(call)
    rubrics = arguments.get("rubrics") or arguments.get("criteria")
    return _criteria(rubrics) if isinstance(rubrics, ast.List) else lists.get(_name_of(rubrics or call), [])


def _gym_evaluators(
    module: ast.Module, lists: Mapping[str, list[dict[str, Any]]]
) -> Iterator[tuple[str, float, list[dict[str, Any]]]]:
    """The evaluators that belong to no preference."""
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    owned = {id(_arguments(call).get("evaluator")) for call in calls if _name_of(call.func) == "Preference"}
    for call in calls:
        name = _literal(_arguments(call).get("name"))
        if _name_of(call.func) == "Evaluator" and id(call) not in owned and isinstance(name, str):
            yield name, 1.0, _evaluator_criteria(call, lists)


def _gym_preferences(
    module: ast.Module, lists: Mapping[str, list[dict[str, Any]]]
) -> Iterator[tuple[str, float, list[dict[str, Any]]]]:
    """The first preference of each name: later ones are the weights of later timesteps."""
    seen: set[str] = set()
    for call in ast.walk(module):
        if not isinstance(call, ast.Call) or _name_of(call.func) != "Preference":
            continue
        arguments = _arguments(call)
        name, evaluator = _literal(arguments.get("name")), arguments.get("evaluator")
        if not isinstance(name, str) or name in seen or not isinstance(evaluator, ast.Call):
            continue
        seen.add(name)
        criteria = _evaluator_criteria(evaluator, lists)
        weight = _literal(arguments.get("weight"))
        yield name, float(weight) if isinstance(weight, int | float) else 1.0, criteria


def _gym_goal(module: ast.Module, default: str) -> tuple[str, str]:
    for call in ast.walk(module):
        if isinstance(call, ast.Call) and _name_of(call.func) == "Workflow":
            arguments = _arguments(call)
            title, goal = (_literal(arguments.get(name)) for name in ("name", "workflow_goal"))
            return str(title or default), " ".join(str(goal or "").split())
    return default, ""


def _gym_tasks(module: ast.Module) -> list[Row]:
    """The tasks that have a variable of their own, with hours, costs and dependencies."""
    calls = {
        _name_of(node.targets[0]): _arguments(node.value)
        for node in ast.walk(module)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _name_of(node.value.func) == "Task"
    }
    names = {variable: str(_literal(arguments.get("name"))) for variable, arguments in calls.items()}
    tasks = []
    for variable, arguments in calls.items():
        ids = arguments.get("dependency_task_ids")
        before = [_name_of(item.value) for item in getattr(ids, "elts", ()) if isinstance(item, ast.Attribute)]
        tasks.append(
            {
                "name": names[variable],
                "description": str(_literal(arguments.get("description")) or ""),
                "hours": _literal(arguments.get("estimated_duration_hours")) or 0.0,
                "cost": _literal(arguments.get("estimated_cost")) or 0.0,
                "dependencies": [names[name] for name in before if name in names],
            }
        )
    return tasks

"""Promotion of a model: through the gate of a comparison, or by force with a reason; the card says how."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from practicum.data.model_registry import ModelRegistry, ModelVersion
from practicum.data.run_folder import ModelRef, resolve_model
from practicum.errors import UserError
from practicum.evaluation.compare import Comparison
from practicum.evaluation.comparison_report import compare
from practicum.evaluation.gates import Gate
from practicum.evaluation.result import EvalResult, read_result
from practicum.evaluation.stats.intervals import LEVEL
from practicum.rollout_settings import policy_identity

LINEAGE_FILES = ("config.yaml", "version.json", "metrics.jsonl")


def promote(
    registry: ModelRegistry,
    name: str,
    model: str,
    baseline: Path | None = None,
    trained: Path | None = None,
    force: str = "",
    different_settings: bool = False,
) -> ModelVersion:
    """Promote a model whose result passes the gate against the baseline's; `force` is a reason to do it anyway.

    UserError if the gate is not `deploy`, if the trained result is of another model, or if there are no results and no
    reason. A reason that is given where the gate is passed is recorded and changes nothing.
    """
    ref = resolve_model(model)
    folder = Path(ref.name)
    if not folder.is_dir():
        raise UserError(f"'{model}' is no folder of a model; promote what `practicum train`, `sft` or `dpo` wrote.")
    if (baseline is None) != (trained is None):
        raise UserError("Give both results, --baseline and --trained, or neither with --force REASON.")
    comparison = None
    if baseline is not None and trained is not None:
        result = read_result(trained)
        _check_model(result, ref)
        comparison = compare(read_result(baseline), result, different_settings=different_settings)
    passed = comparison is not None and comparison.decision.gate is Gate.DEPLOY
    if not passed and not force.strip():
        explanation = "there are no results" if comparison is None else f"the gate says: {comparison.decision.sentence}"
        raise UserError(
            f"'{model}' is not promoted, because {explanation}; evaluate further, or --force with a REASON."
        )
    card = make_card(ref, comparison, forced="" if passed else force.strip())
    return registry.promote(name, folder, card, "gate passed" if passed else f"forced: {force.strip()}")


def make_card(ref: ModelRef, comparison: Comparison | None, forced: str = "") -> dict[str, Any]:
    """Return what a card says besides the files: gate, panel, scores with intervals, lineage."""
    return {
        "source": ref.name,
        "stage": ref.stage,
        "base_model": ref.model if ref.adapter else None,
        "forced": forced or None,
        "gate": None if comparison is None else comparison.decision.sentence,
        "environment": None if comparison is None else comparison.trained.environment,
        "panel": None if comparison is None else comparison.trained.panel,
        "scores": {}
        if comparison is None
        else {"baseline": _scores(comparison.baseline), "trained": _scores(comparison.trained)},
        "difference": None if comparison is None else _difference(comparison),
        "lineage": lineage(ref),
    }


def lineage(ref: ModelRef) -> dict[str, Any]:
    """Return the run that a model comes from: its folder, its code, the hashes of its configuration and metrics."""
    if ref.run is None:
        return {}
    run = Path(ref.run)
    hashes = {
        file: hashlib.sha256((run / file).read_bytes()).hexdigest() for file in LINEAGE_FILES if (run / file).is_file()
    }
    record: dict[str, Any] = {"run": str(run), "sha256": hashes}
    if "version.json" in hashes:
        try:
            record["version"] = json.loads((run / "version.json").read_text())
        except ValueError:
            record["version"] = None
    return record


def _scores(result: EvalResult) -> Mapping[str, Any]:
    summary = result.summary(LEVEL)
    return {"policy": result.policy, "result": result.source, **summary}


def _difference(comparison: Comparison) -> dict[str, Any]:
    success = comparison.success
    return {
        "points": success.difference,
        "low": success.interval.low,
        "high": success.interval.high,
        "level": success.interval.level,
        "p": comparison.p_corrected,
        "conclusion": str(comparison.conclusion),
    }


def _check_model(result: EvalResult, ref: ModelRef) -> None:
    """Refuse a result of another model: `practicum eval` records a hash of the model's files."""
    recorded = str(result.settings.get("policy", ""))
    _, mark, recorded_hash = recorded.rpartition("@")
    if not mark or recorded_hash != policy_identity(ref.name, None).rpartition("@")[2]:
        raise UserError(
            f"The result is of '{recorded or result.policy}', whose files are not those of '{ref.name}'; evaluate this "
            "model with `practicum eval --policy`, or name the one that was evaluated."
        )

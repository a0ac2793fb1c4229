"""The log of findings, adjustments and stops of a run: one JSON line each in `health.jsonl`.

Lines are written at the step they belong to, after its metrics and before its checkpoint. A resumed run keeps those up
to its checkpoint and writes the later ones again, so none is there twice and none is missing. Only findings about
memory depend on the process, and may differ between a run that was resumed and one that was not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from practicum.errors import UserError
from practicum.training.monitor.health import Adjustment
from practicum.training.monitor.health_checks import HealthFinding
from practicum.training.monitor.metrics import MetricsFile

HEALTH_FILE = "health.jsonl"


class HealthLog(MetricsFile):
    """Writes `health.jsonl`: a new run begins a new file, a resumed one keeps the lines up to its checkpoint."""

    def write_findings(self, step: int, findings: Sequence[HealthFinding]) -> None:
        for finding in findings:
            self._write(step, "finding", vars(finding))

    def write_adjustment(self, step: int, adjustment: Adjustment) -> None:
        self._write(step, "adjustment", vars(adjustment))

    def write_stop(self, step: int, finding: HealthFinding) -> None:
        """Record that the run ends because of this finding."""
        self._write(step, "stop", {"sign": finding.sign})

    def _write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        record = {name: None if _not_finite(value) else value for name, value in values.items()}
        try:
            self._file.write(json.dumps({"step": step, "kind": kind, **record}, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise UserError(f"Cannot write '{self.path}': {error.strerror}; free some space.") from error


def _not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)

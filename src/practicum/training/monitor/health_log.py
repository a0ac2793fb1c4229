"""What a run's watch saw and did, as it happened: one JSON line each in `health.jsonl`.

Lines are written at the step they belong to, after its metrics and before its checkpoint. A resumed run keeps those up
to its checkpoint and writes the later ones again, so none is there twice and none is missing. Only what was seen of
memory is a process's own, and may differ between a run that was resumed and one that was not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from practicum.errors import UserError
from practicum.training.monitor.health import Adjustment
from practicum.training.monitor.health_checks import HealthFinding
from practicum.training.monitor.metrics import MetricsFile

HEALTH = "health.jsonl"


class HealthLog(MetricsFile):
    """The file. Like metrics it begins anew with a new run, and is cut to the checkpoint by a resumed one."""

    def seen(self, step: int, findings: Sequence[HealthFinding]) -> None:
        for finding in findings:
            self._note(step, "finding", vars(finding))

    def adjusted(self, step: int, adjustment: Adjustment) -> None:
        self._note(step, "adjustment", vars(adjustment))

    def stopped(self, step: int, finding: HealthFinding) -> None:
        """The run ends here, for this finding."""
        self._note(step, "stop", {"sign": finding.sign})

    def _note(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        record = {name: None if _endless(value) else value for name, value in values.items()}
        try:
            self._file.write(json.dumps({"step": step, "kind": kind, **record}, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise UserError(f"Cannot write '{self.path}': {error.strerror}; free some space.") from error


def _endless(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)

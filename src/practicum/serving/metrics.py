"""Metrics in Prometheus' text format; the names are vLLM's where the meaning is the same."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    30.0,
    60.0,
    120.0,
)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class Histogram:
    """Counts of values by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def lines(self, name: str, labels: str) -> list[str]:
        total, lines = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
        return [*lines, f"{name}_sum{{{labels}}} {self.sum:.6f}", f"{name}_count{{{labels}}} {total}"]


def _seconds() -> Histogram:
    return Histogram(SECONDS)


@dataclass
class Metrics:
    """Counters and histograms of one server."""

    time_to_first_token: Histogram = field(default_factory=_seconds)
    inter_token_latency: Histogram = field(default_factory=_seconds)
    e2e_request_latency: Histogram = field(default_factory=_seconds)
    request_queue_time: Histogram = field(default_factory=_seconds)
    prompt_tokens_per_request: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    generation_tokens_per_request: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    """Finished replies by the engine's reason: stop (a tool call, too), length, abort (the client's, or an error)."""
    rejected: int = 0

    def text(self, model: str, gauges: Mapping[str, float], counters: Mapping[str, float]) -> str:
        """All metrics; `gauges` and `counters` are those that others count."""
        labels = f'model_name="{escape_label(model)}"'
        lines: list[str] = []
        histograms = {
            "vllm:time_to_first_token_seconds": self.time_to_first_token,
            "vllm:inter_token_latency_seconds": self.inter_token_latency,
            "vllm:e2e_request_latency_seconds": self.e2e_request_latency,
            "vllm:request_queue_time_seconds": self.request_queue_time,
            "vllm:request_prompt_tokens": self.prompt_tokens_per_request,
            "vllm:request_generation_tokens": self.generation_tokens_per_request,
        }
        for name, histogram in histograms.items():
            lines += [f"# TYPE {name} histogram", *histogram.lines(name, labels)]
        totals = {
            "vllm:prompt_tokens_total": self.prompt_tokens,
            "vllm:generation_tokens_total": self.generation_tokens,
            "practicum:requests_rejected_total": self.rejected,
            **counters,
        }
        for name, value in totals.items():
            lines += [f"# TYPE {name} counter", f"{name}{{{labels}}} {value}"]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name}{{{labels}}} {value}"]
        lines.append("# TYPE vllm:request_success_total counter")
        for reason, count in sorted(self.finished.items()):
            lines.append(f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {count}')
        return "\n".join(lines) + "\n"


def escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

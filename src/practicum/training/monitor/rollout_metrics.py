"""Metrics of a batch of episodes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from practicum.training.estimators import num_sampled_tokens
from practicum.training.monitor.health_checks import repetition
from practicum.training.monitor.metrics import summary_stats
from practicum.trajectory import Origin, Outcome, StopReason, Trajectory, Turn


def rollout_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return metrics of rewards, success, lengths, tool calls and unscored outcomes."""
    scored = [e for e in episodes if e.scored]
    metrics = {"rollout/episodes": float(len(episodes)), **summary_stats("reward", [e.reward for e in scored])}
    if scored:
        turns = sum(len(e.turns) for e in scored)
        replies = [_reply_ids(turn) for e in scored for turn in e.turns]
        lengths = [float(num_sampled_tokens(e)) for e in scored]
        num_cut = sum(t.stop_reason in (StopReason.LENGTH, StopReason.CONTEXT) for e in scored for t in e.turns)
        metrics |= {
            "success/mean": sum(e.outcome is Outcome.SUCCESS for e in scored) / len(scored),
            "rollout/turns/mean": turns / len(scored),
            "rollout/invalid_replies": sum(e.invalid_replies for e in scored) / turns,
            "rollout/tool_calls/mean": sum(len(t.action.calls) for e in scored for t in e.turns) / len(scored),
            "rollout/truncated": sum(e.outcome is Outcome.TRUNCATED for e in scored) / len(scored),
            "rollout/length_clipped": num_cut / turns,
            "rollout/repetition": sum(map(repetition, replies)) / turns,
            "rollout/groups": float(len({e.group for e in scored})),
            **summary_stats("response_length", lengths),
        }
        environments = sorted({e.task.environment for e in scored})
        for name in environments if len(environments) > 1 else ():
            own = [e for e in scored if e.task.environment == name]
            metrics |= {
                f"reward/{name}/mean": sum(e.reward for e in own) / len(own),
                f"success/{name}/mean": sum(e.outcome is Outcome.SUCCESS for e in own) / len(own),
            }
        for name in sorted({component for e in scored for component in e.components}):
            metrics |= summary_stats(f"reward_part/{name}", [e.components.get(name, 0.0) for e in scored])
    for outcome in Outcome:
        if not outcome.scored:
            metrics[f"outcome/{outcome.value}"] = float(sum(e.outcome is outcome for e in episodes))
    return metrics


def _reply_ids(turn: Turn) -> tuple[int, ...]:
    sampled = [span.ids for span in turn.spans if span.origin is Origin.SAMPLED]
    return sampled[0] if len(sampled) == 1 else tuple(itertools.chain.from_iterable(sampled))

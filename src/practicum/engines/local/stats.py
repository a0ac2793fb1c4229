"""Counters of an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EngineStats:
    """Counters since the engine was made."""

    generated: int = 0
    decode_steps: int = 0
    prefilled: int = 0
    reused: int = 0
    """Prompt tokens whose KV came from the cache."""
    preempted: int = 0
    """Requests that were preempted for lack of memory and started over."""
    decode_seconds: float = 0.0
    prefill_seconds: float = 0.0

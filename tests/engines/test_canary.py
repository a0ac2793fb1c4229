"""The canary's judgement: golden values, and how often it is wrong when the engine's arithmetic is coarse."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from practicum.engines.canary import Canary, CanaryReport, Probe, ProbeLogprobs, rms, share_of_movement
from practicum.utils.arrays import FloatArray

TOKENS = 128
PROBES = (Probe((1, 2), (3, 4)),)


def test_share_of_movement_by_hand() -> None:
    moved = np.array([1.0, 0.0, 2.0])
    assert share_of_movement(moved, moved) == (1.0, pytest.approx(5**0.5 / 1e-5))
    assert share_of_movement(moved, 0 * moved)[0] == 0.0
    share, certainty = share_of_movement(moved, np.array([1.0, 1.0, 2.0]))
    assert share == 1.0
    assert certainty == pytest.approx((5 / 0.5) ** 0.5)  # rest (0, 1, 0): its spread is sqrt(1 / 2)
    assert share_of_movement(0 * moved, moved) == (None, 0.0)
    assert rms(moved) == pytest.approx((5 / 3) ** 0.5)


class Engine:
    """Log-probs as an engine gives them: the weights it holds, a bias of its arithmetic, and some noise a time.

    With `exact`, the noise is rounding: another for other weights, the same for the same ones.
    """

    def __init__(self, bias: float, noise: float, seed: int, exact: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.bias = self.random.normal(0, bias, TOKENS)
        self.noise = noise
        self.exact = exact

    def answer(self, held: FloatArray) -> FloatArray:
        if self.exact:
            self.random = np.random.default_rng(zlib.crc32(held.tobytes()))
        return held + self.bias + self.random.normal(0, self.noise, TOKENS) * (self.noise > 0)


def updates(
    engine: Engine, sizes: list[float], arrives: list[bool], limit: float = 0.05
) -> tuple[list[CanaryReport], Canary]:
    """One report an update; replies are as likely as the noise of a fresh reading lets them be."""
    canary, random = Canary(limit), np.random.default_rng(99)
    weights = random.normal(-3, 1, TOKENS)
    held, reports = weights, []
    for version, (size, arrived) in enumerate(zip(sizes, arrives, strict=True)):
        weights = weights + random.normal(0, size, TOKENS)
        held = weights if arrived else held
        fresh = ProbeLogprobs(weights, engine.answer(held))
        repeated_probes = ProbeLogprobs(weights, engine.answer(held)) if canary.probes else None
        report = canary.judge(version, fresh, repeated_probes)
        reports.append(report)
        if report.verdict == "lost":
            return reports, canary
        canary.accept(fresh, repeated_probes)
        if report.verdict != "too small to tell":
            canary.set_probes(PROBES, ProbeLogprobs(weights, engine.answer(held)))
    return reports, canary


def test_updates_that_arrive_are_proven() -> None:
    reports, _ = updates(Engine(1e-6, 0, 0), [0, 0.1, 0.01, 0.001], [True] * 4)
    assert [r.verdict for r in reports] == ["first", "proven", "proven", "proven"]
    assert all(r.arrived == pytest.approx(1, abs=0.01) for r in reports[1:])


@pytest.mark.parametrize("size", [1.0, 0.1, 0.01, 0.001, 0.0001])
def test_a_stale_update_is_caught_however_small(size: float) -> None:
    """In float32 an engine that keeps its weights answers to the last bit as before."""
    reports, _ = updates(Engine(1e-6, 0, 0), [0, 0.01, size], [True, True, False])
    assert [r.verdict for r in reports] == ["first", "proven", "lost"]
    assert reports[-1].reason


def test_an_update_too_small_to_see_is_added_to_the_next() -> None:
    """Each is below what can be seen; kept together against one baseline they are not."""
    engine = Engine(0.02, 0.02, 1)
    reports, _ = updates(engine, [0, 0.1, *[0.004] * 40], [True, True, *[False] * 40])
    verdicts = [r.verdict for r in reports]
    assert verdicts[:3] == ["first", "proven", "too small to tell"]
    assert verdicts[-1] == "lost"
    assert len(verdicts) < 25
    assert "moved by" in reports[-1].reason


@pytest.mark.parametrize("seed", range(30))
def test_coarse_arithmetic_raises_no_false_alarm_and_hides_nothing(seed: int) -> None:
    """bfloat16-like: a bias of 0.02 per token, noise of 0.01, updates of 0.03."""
    reports, _ = updates(Engine(0.02, 0.01, seed), [0, *[0.03] * 30], [True] * 31)
    assert [r.verdict for r in reports] == ["first", *["proven"] * 30]
    reports, _ = updates(Engine(0.02, 0.01, seed), [0, 0.03, 0.03], [True, True, False])
    assert reports[-1].verdict == "lost"


@pytest.mark.parametrize("seed", range(10))
def test_an_engine_that_repeats_itself_is_caught_below_its_own_noise(seed: int) -> None:
    """Nothing could be proven so far, and still the one that did not arrive is known at once."""
    sizes = [0, *[0.002] * 6]
    reports, _ = updates(Engine(0, 0.05, seed, exact=True), sizes, [True] * 7)
    assert {r.verdict for r in reports[1:]} == {"too small to tell"}
    reports, _ = updates(Engine(0, 0.05, seed, exact=True), sizes, [*[True] * 6, False])
    assert [r.verdict for r in reports][-2:] == ["too small to tell", "lost"]
    assert "the engine by 0 % of that" in reports[-1].reason


def test_half_an_update_is_a_lost_one() -> None:
    canary, random = Canary(0.05), np.random.default_rng(0)
    old = random.normal(-3, 1, TOKENS)
    first = ProbeLogprobs(old, old + 1e-6)
    assert canary.judge(0, first, None).verdict == "first"
    canary.accept(first, None)
    canary.set_probes(PROBES, first)
    new = old + random.normal(0, 0.01, TOKENS)
    half_updated = np.where(np.arange(TOKENS) % 3 > 0, new, old)
    report = canary.judge(1, ProbeLogprobs(new, half_updated), ProbeLogprobs(new, half_updated))
    assert report.verdict == "lost"
    assert "was usual" in report.reason


def test_another_model_is_refused_at_once() -> None:
    report = Canary(0.05).judge(0, ProbeLogprobs(np.full(8, -2.0), np.full(8, -2.1)), None)
    assert report.verdict == "lost"
    assert "0.1 per token away from the learner (limit 0.05)" in report.reason


def test_nothing_learned_is_nothing_to_prove() -> None:
    reports, canary = updates(Engine(1e-6, 0, 0), [0, 0, 0], [True, False, False])
    assert [r.verdict for r in reports] == ["first", "too small to tell", "too small to tell"]
    assert reports[-1].arrived is None
    expected = np.random.default_rng(99).normal(-3, 1, TOKENS)
    assert canary.is_unchanged(expected)
    assert not canary.is_unchanged(expected + 1e-3)
    assert canary.has_accepted_weights(expected + 1e-6)
    assert not canary.has_accepted_weights(expected + 1e-2)

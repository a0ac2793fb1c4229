"""Curves and health events, read while they grow; a curve of any length stays short."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from scipy import stats

from practicum.config.health import HealthSettings
from practicum.report.curves import Curves, health_settings, mean_interval
from practicum.report.series import MAX_POINTS, Series
from practicum.training.monitor.health import Adjustment, HealthFinding, HealthLog, HealthMonitor
from practicum.training.monitor.loggers import MetricsFile
from tests.report.report_files import step_values, write_training


def test_a_series_keeps_every_point_until_it_is_long() -> None:
    series = Series()
    for step in range(1, 11):
        series.add(step, step * 2.0, 1.0, 3.0)
    assert series.stride == 1
    assert series.points[3] == (4, 8.0, 1.0, 3.0)


def test_a_long_series_is_short_and_its_mean_is_right() -> None:
    series = Series()
    count = 100_000
    for step in range(1, count + 1):
        series.add(step, float(step))
    assert MAX_POINTS / 2 - 1 <= len(series.points) < MAX_POINTS
    assert series.stride & (series.stride - 1) == 0
    for index, (step, value, low, high) in enumerate(series.points):
        assert step == (index + 1) * series.stride
        assert value == low == high == pytest.approx(step - (series.stride - 1) / 2)
    assert series.pending[0] == count - len(series.points) * series.stride


def test_new_steps_are_read_once_and_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "reward/mean": 0.5}\n{"step": 2, "rew')
    curves = Curves(path, "")
    assert [row["step"] for row in curves.advance()[1]] == [1]
    with path.open("a") as file:
        file.write('ard/mean": 0.75}\n')
    result, rows = curves.advance()
    assert not result
    assert [(row["step"], row["points"]) for row in rows] == [(2, {"reward/mean": [0.75]})]
    assert curves.advance() == (False, [])
    assert curves.rows == 2


def test_a_file_that_begins_anew_is_read_anew(tmp_path: Path) -> None:
    write_training(tmp_path, 9)
    curves = Curves(tmp_path / "metrics.jsonl", "")
    curves.advance()
    file = MetricsFile(tmp_path / "metrics.jsonl", keep_to=4)  # what a resumed run does
    file.write(5, {"reward/mean": 0.125})
    file.close()
    result, rows = curves.advance()
    assert result
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert curves.series["reward/mean"].points[-1][:2] == (5, 0.125)


def test_damaged_lines_are_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [b'{"step": 1, "a": 1}', b"\xff\xfe", b"[]", b"{}", b'{"step": NaN, "a": 1}', b'{"step": 1e999, "a": 1}',
             b"[" * 50_000, b'{"step": 2, "a": NaN, "b": "<b>", "c": 3}']  # fmt: skip
    path.write_bytes(b"\n".join(lines) + b"\n")
    curves = Curves(path, "")
    curves.advance()
    assert curves.unreadable == 6
    assert curves.step == 2
    assert set(curves.series) == {"a", "c"}
    json.dumps(curves.record(), allow_nan=False)


def test_bands_are_95_percent_intervals() -> None:
    row = {"reward/std": 0.5, "rollout/groups": 16.0, "val/success/low": 0.1, "val/success/high": 0.9}
    assert mean_interval("val/success/mean", 0.5, row) == (0.1, 0.9)
    low, high = mean_interval("reward/mean", 0.25, row)
    expected = stats.t.interval(0.95, 15, loc=0.25, scale=0.5 / math.sqrt(16))
    assert (low, high) == pytest.approx(expected)
    low, high = mean_interval("success/mean", 0.25, row)
    assert (low, high) == pytest.approx(tuple(stats.beta.ppf([0.025, 0.975], 4.5, 12.5)))
    assert mean_interval("actor/loss", 0.25, row) == (None, None)
    assert mean_interval("reward/mean", 0.25, {"reward/std": 0.5}) == (None, None)


def test_health_events_are_those_of_the_monitor_under_the_runs_own_limits(tmp_path: Path) -> None:
    write_training(tmp_path, 30, **{"actor/ppo_kl": 0.7})
    curves = Curves(tmp_path / "metrics.jsonl", "")
    curves.advance()
    monitor = HealthMonitor(HealthSettings(repeat_every=5))
    expected = []
    for step in range(1, 31):
        values = {**step_values(step), "actor/ppo_kl": 0.7}
        expected += [(step, finding.sign, finding.severity) for finding in monitor.observe(step, values)]
    assert not curves.record()["stored"]
    assert [(e["step"], e["sign"], e["severity"]) for e in curves.events] == expected
    assert ("kl_high", "act") in {(e["sign"], e["severity"]) for e in curves.events}


def write_health_log(folder: Path) -> HealthLog:
    health_log = HealthLog(folder / "health.jsonl")
    health_log.write_findings(
        3, [HealthFinding("kl_high", "act", 0.9, 0.5, "training is \x1b[31munstable", "<b>halve</b> it")]
    )
    health_log.write_adjustment(3, Adjustment(1.0, 0.5))
    health_log.write_stop(4, HealthFinding("kl_high", "act", math.inf, 0.5, "", ""))
    return health_log


def test_recorded_findings_are_shown_and_not_computed_again(tmp_path: Path) -> None:
    write_training(tmp_path, 30, **{"actor/ppo_kl": 0.7, "health/findings": 1.0})
    health_log = write_health_log(tmp_path)
    curves = Curves(tmp_path / "metrics.jsonl", "")
    curves.advance()
    assert curves.record()["stored"]
    assert [(e["step"], e["sign"], e["severity"], e["text"]) for e in curves.events] == [
        (3, "kl_high", "act", "training is \\x1b[31munstable (0.9, limit 0.5); <b>halve</b> it"),
        (3, "adjusted", "act", "the run did: learning rate × 1, clip range × 0.5 from here on"),
        (4, "stopped", "act", "the run was stopped, for kl_high"),
    ]
    health_log.write_findings(31, [HealthFinding("dead_groups", "warn", math.nan, 0.5, "c", "r")])
    health_log.close()
    result, rows = curves.advance()
    assert not result
    assert [(row["points"], row["noted"], row["events"][0]["text"]) for row in rows] == [({}, 4, "c (–, limit 0.5); r")]


def test_a_quiet_run_shows_no_event_whatever_its_metrics_look_like_now(tmp_path: Path) -> None:
    write_training(tmp_path, 30, **{"actor/ppo_kl": 0.7})
    HealthLog(tmp_path / "health.jsonl").close()
    curves = Curves(tmp_path / "metrics.jsonl", "")
    curves.advance()
    assert curves.record()["stored"]
    assert curves.events == []


def test_notes_that_begin_anew_are_read_anew(tmp_path: Path) -> None:
    write_training(tmp_path, 9)
    write_health_log(tmp_path).close()
    curves = Curves(tmp_path / "metrics.jsonl", "")
    curves.advance()
    HealthLog(tmp_path / "health.jsonl", keep_to=3).close()  # what a resumed run does
    assert curves.advance()[0]
    assert [event["step"] for event in curves.events] == [3, 3]


def test_damaged_notes_are_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    write_training(tmp_path, 2)
    lines = [b"\xff", b"[]", b'{"step": 1}', b'{"step": NaN, "kind": "stop", "sign": "x"}',
             b'{"step": 1, "kind": "odd"}', b'{"step": 1, "kind": "adjustment", "lr_scale": "x", "clip_scale": 1}',
             b"[" * 50_000, b'{"step": 2, "kind": "stop", "sign": "<script>"}']  # fmt: skip
    (tmp_path / "health.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    curves = Curves(tmp_path / "metrics.jsonl", "")
    curves.advance()
    assert curves.record()["unreadable_events"] == 7
    assert [event["sign"] for event in curves.events] == ["stopped"]
    json.dumps(curves.record(), allow_nan=False)


def test_a_finding_that_metrics_do_not_explain_is_named_as_the_hacking_panels(tmp_path: Path) -> None:
    write_training(tmp_path, 2, **{"health/findings": 1.0})
    curves = Curves(tmp_path / "metrics.jsonl", "")
    curves.advance()
    assert [event["sign"] for event in curves.events] == ["reward_hacking", "reward_hacking"]


def test_sft_is_not_checked_by_the_health_signs_of_rl(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step in range(1, 60):
        file.write(step, {"actor/entropy": 5.0 / step, "sft/perplexity": 2.0})
    file.close()
    curves = Curves(tmp_path / "metrics.jsonl", "")
    curves.advance()
    assert curves.events == []


@pytest.mark.parametrize(
    "text", ["health: [1]", "health: {kl_warn: '<b>'}", "]: not yaml", "health: {action: boom}", ""]
)
def test_a_strange_configuration_gives_the_usual_limits(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert health_settings(tmp_path / "config.yaml") == HealthSettings()

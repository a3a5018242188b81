"""`bench` for terminals and programs: percentiles of every part of a run, and ratios between engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.report.table import format_table
from attngraft.runtime.sweep import PointTimes
from attngraft.runtime.timing import EngineTimes

__all__ = ["PERCENTILES", "BenchReport", "Ratio", "bench_json", "bench_lines", "bench_rows", "engine_names",
           "percentiles", "round_ratio"]  # fmt: skip

SCHEMA = 1
"""Raised when a field of the JSON changes its meaning."""

PERCENTILES = (50, 90, 99)

COLUMNS = {"h2d": "host to device", "enqueue": "enqueue", "gpu": "GPU", "d2h": "device to host", "total": "total"}

COMPARED = ("gpu", "total")
"""The parts of which engines are compared."""

SPREAD = (10, 90)
"""Percentiles of the rounds' own ratios, between which eight of ten rounds lie."""


@dataclass(frozen=True)
class BenchReport:
    """What was measured.

    engines  the files, as they were given; made_by: the TensorRT that serves each, with its version.
    runs     of one turn: samples of a round belong together.
    length   the axes that are swept, "input_ids.1"; None without them.
    """

    device: str | None
    engines: tuple[Path, ...]
    made_by: tuple[str, ...]
    modes: tuple[str, ...]
    runs: int
    points: tuple[PointTimes, ...]
    length: str | None = None


@dataclass(frozen=True)
class Ratio:
    """One median over another, and the rounds' own ratios: `low` and `high` hold eight of ten of them."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f}-{self.high:.3f})"


def percentiles(samples: Sequence[float]) -> dict[str, float]:
    """p50, p90 and p99, between two samples in proportion (NumPy's default)."""
    return {f"p{q}": float(value) for q, value in zip(PERCENTILES, np.percentile(samples, PERCENTILES), strict=True)}


def round_ratio(ours: Sequence[float], base: Sequence[float], runs: int) -> Ratio:
    """Of two series of samples whose turns of `runs` were interleaved: rounds are compared in pairs, so that what slows
    the GPU for a while is in both."""
    medians = [np.median(np.reshape(samples, (-1, runs)), axis=1) for samples in (ours, base)]
    low, high = np.percentile(medians[0] / medians[1], SPREAD)
    return Ratio(float(np.median(ours) / np.median(base)), float(low), float(high))


def engine_names(engines: Sequence[Path]) -> list[str]:
    """File names where they tell the engines apart, paths where they do not; the same file twice gets a number."""
    names = [engine.name for engine in engines]
    if len(set(names)) < len(names):
        names = [str(engine) for engine in engines]
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        names[index] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names


def series_names(report: BenchReport) -> list[str]:
    """The engine of each EngineTimes of a point."""
    return [name for name in engine_names(report.engines) for _ in report.modes]


def bench_rows(report: BenchReport) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table: a row an engine, mode and point."""
    swept = [axis for axis in ("batch", "length") if any(getattr(p.point, axis) is not None for p in report.points)]
    compares = len(report.engines) * len(report.modes) > 1
    ratios = [f"{COLUMNS[part]}, ratio" for part in COMPARED] if compares else []
    rows = []
    for measured in report.points:
        where = [str(getattr(measured.point, axis)) for axis in swept]
        for name, times in zip(series_names(report), measured.times, strict=True):
            parts = [_microseconds(percentiles(times.samples_us[part])) for part in COLUMNS]
            compared = [str(ratio) for ratio in _ratios(times, measured, report.runs).values()] if compares else []
            rows.append([*where, name, times.mode, *parts, *compared])
    return [*swept, "engine", "mode", *COLUMNS.values(), *ratios], rows


def bench_lines(report: BenchReport) -> list[str]:
    """The table, and below it what its numbers are."""
    header, rows = bench_rows(report)
    return [*format_table(header, rows).splitlines(), "", *explanation(report)]


def explanation(report: BenchReport) -> list[str]:
    """What the numbers are and what they were measured on."""
    counts = [len(times.samples_us["total"]) for measured in report.points for times in measured.times]
    few, most = min(counts), max(counts)
    lines = [
        f"microseconds, p50 / p90 / p99 of {few if few == most else f'{few} to {most}'} runs in turns of {report.runs}"
    ]
    if len(report.engines) * len(report.modes) > 1:
        lines.append("ratio: p50 over that of the point's first line, and between what it was in 8 of 10 rounds")
    served = ", ".join(dict.fromkeys(report.made_by))
    return [*lines, f"{served} on {report.device or 'an unknown GPU'}"]


def bench_json(report: BenchReport) -> dict[str, Any]:
    """`{"attngraft_bench": 1, "device", "engines": [{"engine", "made_by"}], "modes", "runs_a_turn", "length",
    "points": [{"batch", "length", "shapes": {input: [..]}, "results": [{"engine", "mode", "runs", "us": {part: {"p50",
    "p90", "p99"}}, "ratio": {"gpu"|"total": {"value", "low", "high"}}}]}]}`; parts are those of EngineTimes, ratios are
    to the first result of the point."""
    return {
        "attngraft_bench": SCHEMA,
        "device": report.device,
        "engines": [
            {"engine": str(engine), "made_by": made_by}
            for engine, made_by in zip(report.engines, report.made_by, strict=True)
        ],
        "modes": list(report.modes),
        "runs_a_turn": report.runs,
        "length": report.length,
        "points": [_point_json(measured, report.runs) for measured in report.points],
    }


def _point_json(measured: PointTimes, runs: int) -> dict[str, Any]:
    results = [
        {
            "engine": str(times.engine),
            "mode": times.mode,
            "runs": len(times.samples_us["total"]),
            "us": {part: percentiles(samples) for part, samples in times.samples_us.items()},
            "ratio": {part: vars(ratio) for part, ratio in _ratios(times, measured, runs).items()},
        }
        for times in measured.times
    ]
    point = measured.point
    shapes = {name: list(shape) for name, shape in point.shapes.items()}
    return {"batch": point.batch, "length": point.length, "shapes": shapes, "results": results}


def _ratios(times: EngineTimes, measured: PointTimes, runs: int) -> dict[str, Ratio]:
    base = measured.times[0].samples_us
    return {part: round_ratio(times.samples_us[part], base[part], runs) for part in COMPARED}


def _microseconds(values: Mapping[str, float]) -> str:
    return " / ".join(f"{value:.0f}" if value >= 1000 else f"{value:.1f}" for value in values.values())

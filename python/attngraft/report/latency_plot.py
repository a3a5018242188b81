"""Latency against size as SVG. In: lines of points with p50 and p99. Out: one picture, light and dark by the reader's
own setting.

Both axes are logarithmic: sizes are doubled as a rule, and time in proportion to size is a straight line.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attngraft.report.bench import BenchReport, percentiles, series_names

__all__ = ["Plot", "PlotLine", "PlotPoint", "latency_plots", "latency_svg"]

# All in pixels.
WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 40, 52
LEGEND_LINE = 20
MARKER = 3.5

COLORS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#999999")
"""Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), which people who see few colours can tell apart."""

STYLE = (
    ".latency { --ink: #1d2126; --quiet: #5d6670; --line: #d9dde2; --ground: #ffffff; "
    'font: 12px system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; } '
    "@media (prefers-color-scheme: dark) { .latency { --ink: #e6e9ec; --quiet: #98a2ad; --line: #333a42; "
    "--ground: #1c2025; } } "
    ".latency .ground { fill: var(--ground); stroke: none; } "
    ".latency text { fill: var(--ink); font-size: 12px; font-weight: 400; text-anchor: middle; } "
    ".latency text.title { font-weight: 600; font-size: 14px; } "
    ".latency text.left { text-anchor: end; } .latency text.legend { text-anchor: start; } "
    ".latency .grid { stroke: var(--line); stroke-width: 1; } "
    ".latency polyline { fill: none; stroke-width: 2; } .latency .p99 { stroke-width: 1; stroke-dasharray: 4 3; }"
)


@dataclass(frozen=True)
class PlotPoint:
    """One size and its latency in microseconds."""

    size: int
    p50: float
    p99: float


@dataclass(frozen=True)
class PlotLine:
    name: str
    points: tuple[PlotPoint, ...]


@dataclass(frozen=True)
class Plot:
    """One pair of axes."""

    title: str
    axis: str
    lines: tuple[PlotLine, ...]


def latency_plots(report: BenchReport) -> list[Plot]:
    """Total latency against each axis that is swept over more than one size, a plot for each size of the other."""
    plots = []
    for axis, other in (("batch", "length"), ("length", "batch")):
        sizes = {getattr(measured.point, axis) for measured in report.points}
        if len(sizes) < 2:
            continue
        label = report.length if axis == "length" and report.length else axis
        for fixed in dict.fromkeys(getattr(measured.point, other) for measured in report.points):
            beside = "" if fixed is None else f", {other} {fixed}"
            plots.append(Plot(f"latency against {axis}{beside}", label, _lines(report, axis, other, fixed)))
    return plots


def _lines(report: BenchReport, axis: str, other: str, fixed: int | None) -> tuple[PlotLine, ...]:
    chosen = sorted(
        (measured for measured in report.points if getattr(measured.point, other) == fixed),
        key=lambda measured: getattr(measured.point, axis),
    )
    lines = []
    for index, name in enumerate(series_names(report)):
        points = []
        for measured in chosen:
            found = percentiles(measured.times[index].samples_us["total"])
            points.append(PlotPoint(getattr(measured.point, axis), found["p50"], found["p99"]))
        lines.append(PlotLine(f"{name}, {chosen[0].times[index].mode}", tuple(points)))
    return tuple(lines)


def latency_svg(plots: Sequence[Plot]) -> str:
    """One `<svg>` element with all plots, one under the other."""
    heights = [HEIGHT + LEGEND_LINE * len(plot.lines) for plot in plots]
    total = sum(heights)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="latency" viewBox="0 0 {WIDTH} {total}" width="{WIDTH}" '
        f'height="{total}" role="img" aria-label="{html.escape("; ".join(plot.title for plot in plots))}">',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{total}"/>',
    ]
    for index, plot in enumerate(plots):
        parts += [f'<g transform="translate(0 {sum(heights[:index])})">', *_plot_svg(plot), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


@dataclass(frozen=True)
class _Scale:
    """From values to pixels, logarithmically."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        part = math.log(value / self.low) / math.log(self.high / self.low) if self.high > self.low else 0.5
        return self.begin + part * (self.end - self.begin)


def _plot_svg(plot: Plot) -> Iterator[str]:
    points = [point for line in plot.lines for point in line.points]
    sizes = sorted({point.size for point in points})
    marks = latency_ticks(min(point.p50 for point in points), max(point.p99 for point in points))
    across = _Scale(sizes[0], sizes[-1], LEFT + MARKER, WIDTH - RIGHT - MARKER)
    upward = _Scale(marks[0], marks[-1], HEIGHT - BOTTOM, TOP)
    yield f'<text class="title" x="{WIDTH / 2:.0f}" y="22">{html.escape(plot.title)}</text>'
    for mark in marks:
        y = upward(mark)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="left" x="{LEFT - 8}" y="{y + 4:.1f}">{_latency_text(mark)}</text>'
    for size in _apart(sizes, across):
        yield f'<text x="{across(size):.1f}" y="{HEIGHT - BOTTOM + 18}">{size}</text>'
    yield f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - BOTTOM + 38}">{html.escape(plot.axis)}</text>'
    for index, line in enumerate(plot.lines):
        yield from _line_svg(line, COLORS[index % len(COLORS)], across, upward, HEIGHT + LEGEND_LINE * index)


def _line_svg(line: PlotLine, color: str, across: _Scale, upward: _Scale, legend_y: float) -> Iterator[str]:
    for percentile in ("p50", "p99"):
        places = " ".join(f"{across(point.size):.1f},{upward(getattr(point, percentile)):.1f}" for point in line.points)
        yield f'<polyline class="{percentile}" stroke="{color}" points="{places}"/>'
    for point in line.points:
        hint = f"{line.name}: {point.size}, p50 {_latency_text(point.p50)}, p99 {_latency_text(point.p99)}"
        yield (
            f'<circle cx="{across(point.size):.1f}" cy="{upward(point.p50):.1f}" r="{MARKER}" fill="{color}">'
            f"<title>{html.escape(hint)}</title></circle>"
        )
    yield f'<polyline stroke="{color}" points="{LEFT},{legend_y} {LEFT + 24},{legend_y}"/>'
    yield f'<text class="legend" x="{LEFT + 32}" y="{legend_y + 4}">{html.escape(line.name)} (dashes: p99)</text>'


def latency_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, the last at or below `low` to the first at or above `high`; at least two."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    candidates = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    first = max(index for index, value in enumerate(candidates) if value <= low)
    last = min(index for index, value in enumerate(candidates) if value >= high and index > first)
    return candidates[first : last + 1]


LEAST_GAP = 34
"""Pixels between two numbers under the axis."""


def _apart(sizes: Sequence[int], across: _Scale) -> Iterator[int]:
    """The sizes whose numbers do not run into each other."""
    last = -math.inf
    for size in sizes:
        if across(size) - last >= LEAST_GAP:
            last = across(size)
            yield size


def _latency_text(microseconds: float) -> str:
    if microseconds >= 1000:
        return f"{microseconds / 1000:g} ms" if microseconds % 100 == 0 else f"{microseconds / 1000:.2f} ms"
    return f"{microseconds:g} us" if microseconds % 1 == 0 else f"{microseconds:.1f} us"

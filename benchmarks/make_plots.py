"""docs/pictures/*.svg from results/*.json. Needs matplotlib.

`--check` writes nothing and exits 1 when pictures are out of date. Each picture holds the digest of the results that it
shows, so that checking needs no matplotlib.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.results_file import PLAIN, read_results

try:
    import matplotlib
    from matplotlib import pyplot, ticker
    from matplotlib.axes import Axes
except ImportError:  # checking does without
    matplotlib = None

__all__ = ["FOLDER", "PICTURES", "Picture"]

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"

OUR_COLOR = "#d55e00"
PEER_COLORS = ("#0072b2", "#009e73", "#56b4e9", "#cc79a7", "#999999")
"""Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), which people who see few colours can tell apart."""

OUR_MARKER, PEER_MARKERS = "o", "sD^v"
INCHES_WIDE, INCHES_A_LINE, INCHES_AROUND = 8.0, 0.24, 1.3
LEAST_POINTS = 3
"""Row lengths from which on a line is drawn."""


@dataclass(frozen=True)
class Line:
    """A row of results: microseconds of each candidate, ours first, and the physical limit."""

    work: str
    dtype: str
    times: Mapping[str, float]
    bound_us: float

    @property
    def title(self) -> str:
        return self.work if self.dtype == "float16" else f"{self.work} {self.dtype}"


@dataclass(frozen=True)
class Picture:
    """A picture of one results file: what it shows, for those who do not see it, and how it is drawn."""

    results: str
    ours: str
    """What `ours` is in these results."""
    shows: str
    draw: Callable[[list[Line]], None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the pictures are up to date")
    options = parser.parse_args()
    outdated = [name for name, picture in PICTURES.items() if _is_outdated(name, picture)]
    if options.check:
        if outdated:
            print(f"{', '.join(outdated)} in {FOLDER}: out of date; run python -m benchmarks.make_plots",
                  file=sys.stderr)  # fmt: skip
        return bool(outdated)
    if outdated and matplotlib is None:
        print("pictures need matplotlib; pip install matplotlib", file=sys.stderr)
        return 1
    for name in outdated:
        _write(name, PICTURES[name])
        print(FOLDER / name)
    return 0


def _is_outdated(name: str, picture: Picture) -> bool:
    results = read_results(picture.results)
    if results is None:
        return (FOLDER / name).exists()
    found = re.search(r"results ([0-9a-f]{64})", (FOLDER / name).read_text()) if (FOLDER / name).exists() else None
    return found is None or found.group(1) != _digest(results)


def _digest(results: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()


def _write(name: str, picture: Picture) -> None:
    results = read_results(picture.results)
    if results is None:
        (FOLDER / name).unlink()
        return
    # Text stays text, and the same results give the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9, "axes.spines.top": False,
                                "axes.spines.right": False, "legend.frameon": False})  # fmt: skip
    picture.draw([_line(row, picture.ours) for row in results["rows"] if row["ours_us"]])
    FOLDER.mkdir(exist_ok=True)
    metadata = {"Date": None, "Title": picture.shows, "Description": f"results {_digest(results)}"}
    pyplot.savefig(FOLDER / name, metadata=metadata, bbox_inches="tight")
    pyplot.close("all")


def _line(row: Mapping[str, Any], ours: str) -> Line:
    times = {ours: row["ours_us"], **{name: us for name, us in row["peers_us"].items() if us}}
    return Line(row["work"], row["dtype"], times, row["bound_us"])


def _draw_against_limit(rows: list[Line]) -> None:
    """A line a work: how many times the physical limit each candidate takes."""
    axes = _scatter({line.title: {name: us / line.bound_us for name, us in line.times.items()} for line in rows})
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel("times the physical limit of that work (further left is faster)")


def _draw_against_plain(rows: list[Line]) -> None:
    """A line a model that TensorRT builds as it is: the time of each other form over that of the given one."""
    shares = {}
    for line in rows:
        if PLAIN in line.times:
            shares[line.title] = {name: us / line.times[PLAIN] for name, us in line.times.items() if name != PLAIN}
    axes = _scatter(shares)
    axes.set_xlim(left=0)
    axes.set_xlabel("time over that of the model as it was given, 1 (further left is faster)")


def _draw_bandwidth(rows: list[Line]) -> None:
    """Share of the streaming bandwidth over the row length: a panel for each type and mask with several lengths."""
    panels: dict[str, list[Line]] = {}
    for line in rows:
        panels.setdefault(f"{line.dtype}, mask: {line.work.split()[-1]}", []).append(line)
    panels = {title: lines for title, lines in panels.items() if len(lines) >= LEAST_POINTS}
    _, grid = pyplot.subplots(len(panels), squeeze=False, figsize=(INCHES_WIDE, 3.2 * len(panels)))
    for axes, (title, lines) in zip(grid[:, 0], panels.items(), strict=True):
        points = {_row_length(line): {name: line.bound_us / us for name, us in line.times.items()} for line in lines}
        lengths = sorted(points)
        for name, style in _styles(points.values()).items():
            known = [length for length in lengths if name in points[length]]
            axes.plot(known, [points[length][name] for length in known], label=name, linewidth=1, markersize=4, **style)
        axes.set(title=title, ylim=(0, 1.05), xscale="log", ylabel="share of streaming bandwidth", xlabel="row length")
        axes.set_xticks(lengths, [str(length) for length in lengths], rotation=60)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.08))
    pyplot.tight_layout()


def _row_length(line: Line) -> int:
    return int(line.work.split()[-2].split("x")[1])


def _scatter(lines: Mapping[str, Mapping[str, float]]) -> Axes:
    """A line for each title, a mark for each candidate, and where 1 is."""
    _, axes = pyplot.subplots(figsize=(INCHES_WIDE, INCHES_AROUND + INCHES_A_LINE * len(lines)))
    axes.set_yticks(range(len(lines)), list(lines))
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.grid(alpha=0.3)
    axes.axvline(1, color="black", linewidth=0.8)
    for name, style in _styles(lines.values()).items():
        points = [(values[name], height) for height, values in enumerate(lines.values()) if name in values]
        axes.plot(*zip(*points, strict=True), label=name, linestyle="", markersize=6, **style)
    axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.4, 1.0))
    return axes


def _styles(lines: Iterable[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """The look of every candidate. The first is ours: it stands out and lies on top."""
    ours, *peers = dict.fromkeys(name for line in lines for name in line)
    looks: dict[str, dict[str, Any]] = {ours: {"color": OUR_COLOR, "marker": OUR_MARKER, "zorder": 3}}
    for name, color, marker in zip(peers, cycle(PEER_COLORS), cycle(PEER_MARKERS), strict=False):
        looks[name] = {"color": color, "marker": marker}
    return looks


PICTURES = {
    "softmax-kernel.svg": Picture(
        "softmax-kernel", "attngraft",
        "Share of the streaming bandwidth that softmax kernels reach, over the row length", _draw_bandwidth),
    "softmax-backward-kernel.svg": Picture(
        "softmax-backward-kernel", "attngraft",
        "Share of the streaming bandwidth that the softmax's backward kernels reach, over the row length",
        _draw_bandwidth),
    "attention-kernel.svg": Picture(
        "attention-kernel", "attngraft",
        "Time of attention kernels as a multiple of the physical limit of each work", _draw_against_limit),
    "attention-in-tensorrt.svg": Picture(
        "attention-in-tensorrt", "attention plugin",
        "Time of models in TensorRT after lowerings native and attention, over that before", _draw_against_plain),
    "pick-fastest.svg": Picture(
        "pick-fastest", "picked",
        "Time of the picked engines and of the other candidates, over that of the model as it was given",
        _draw_against_plain),
    "softmax-in-tensorrt.svg": Picture(
        "softmax-in-tensorrt", "softmax plugin",
        "Time of models in TensorRT with the softmax plugin, over that without", _draw_against_plain),
    "rewriter-native.svg": Picture(
        "rewriter-native", "native",
        "Time of exports in TensorRT after lowering native, over that before", _draw_against_plain),
}  # fmt: skip
"""By file name. The title is the picture's text for those who do not see it."""


if __name__ == "__main__":
    sys.exit(main())

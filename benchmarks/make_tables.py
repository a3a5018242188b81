"""docs/measurements.md from results/*.json. `--check` writes nothing and exits 1 when the file is out of date."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results_file import CountRow, read_results

__all__ = ["DOCUMENT", "counts_table", "render"]

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "measurements.md"

INTRODUCTION = """\
# Measurements

Made by `python -m benchmarks.make_tables` from the files in `benchmarks/results/`; nothing here is typed by hand. Times
are microseconds of GPU time: medians over rounds of CUDA-graph replays in which all candidates of a row take turns.
`limit` is what the hardware allows for that work: bytes over measured streaming bandwidth, or operations over the rate
measured for a large matrix product.
"""

SECTIONS = {
    "softmax-kernel": (
        "The kernel alone",
        "Scale, mask and softmax of the scores, `B8 H32 2048x2048` meaning scores [8, 32, 2048, 2048]; the mask is a "
        "boolean padding mask over the keys, the same as an additive mask, or none (`plain`). `torch-softmax` neither "
        "scales nor masks. Measured by `python -m benchmarks.softmax_kernel`.",
    ),
    "softmax-in-tensorrt": (
        "Whole models in TensorRT",
        "`ours` has every attention softmax lowered to the plugin, `tensorrt-plain` is the model as it was given. The "
        "plugin cuts the graph in two, so that TensorRT's own fused attention no longer applies: `auto` therefore "
        "keeps such sites. Measured by `python -m benchmarks.models_in_tensorrt`.",
    ),
    "rewriter-zoo": (
        "The rewriter over a zoo of exports",
        "Exports of small models with random weights (`python -m benchmarks.zoo`), each with its true number of "
        "softmaxes, counted in PyTorch. *Recognition*: attention softmaxes found, beside those that ONNX Runtime's "
        "optimizer, its session, onnxscript's and onnxsim's rewriting turn into a fused attention node (nodes of the "
        "standard Attention operator that are in the export already count for all); `others` are no attention, and are "
        "not to be touched. *Lowerings*: what became of the sites, and whether the outputs stay the original's in ONNX "
        "Runtime, masks in all patterns. *TensorRT-RTX*: exports that build, and fused attention kernels in them, as "
        "they are (`keep`), with lowering `native`, and with `auto`. Measured by `python -m benchmarks.rewriter_zoo`.",
    ),
    "rewriter-zoo-fusable": (
        "The same with heads that TensorRT can fuse",
        "Head size 64, hidden size 256, one layer: as above, for the counts of fused sites. TensorRT's fused kernels "
        "take no float32, and no heads as small as those of the zoo above. Measured by `python -m "
        "benchmarks.rewriter_zoo --exports .zoo/fusable --results rewriter-zoo-fusable`.",
    ),
    "rewriter-native": (
        "Lowering `native` in TensorRT",
        "Two layers of real size, fp16, in one interleaved run per architecture: each export as it is, and rewritten "
        "to plain ONNX with lowering `native`. `fused` counts TensorRT's own fused attention kernels; `difference` is "
        "the largest from the float32 model in ONNX Runtime; an empty cell is an export that TensorRT refuses. "
        "Measured by `python -m benchmarks.rewriter_native`.",
    ),
    "rewriter-speed": (
        "Speed of rewriting",
        "Without verification, each in a process of its own: milliseconds, and peak memory of the process beside what "
        "it was before. The weights of the 2 GB model are in a file of their own. Measured by "
        "`python -m benchmarks.rewriter_speed`.",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the file is up to date")
    options = parser.parse_args()
    text = render()
    if not options.check:
        DOCUMENT.write_text(text)
        return 0
    if DOCUMENT.read_text() == text:
        return 0
    print(f"{DOCUMENT} is out of date; run python -m benchmarks.make_tables", file=sys.stderr)
    return 1


def render() -> str:
    """The whole document."""
    parts = [INTRODUCTION]
    for name, (title, explanation) in SECTIONS.items():
        results = read_results(name)
        body = _body(name, results) if results else "Not measured yet."
        parts.append(f"## {title}\n\n{explanation}\n\n{body}\n")
    return "\n".join(parts)


def _body(name: str, results: dict[str, Any]) -> str:
    if "sections" in results:
        return _counts(results)
    return _native(results) if name == "rewriter-native" else _section(results)


def _counts(results: dict[str, Any]) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in results["packages"].items() if version)
    parts = [f"{versions}; commit {_commit(results)}, {results['date'][:10]}."]
    for section, rows in results["sections"].items():
        title = [f"*{section.capitalize()}*"] if len(results["sections"]) > 1 else []
        parts += [*title, counts_table([CountRow(**row) for row in rows])]
    return "\n\n".join(parts)


def _native(results: dict[str, Any]) -> str:
    columns = ["work", "fused before", "fused after", "before", "after", "speed-up", "limit", "difference before",
               "difference after"]  # fmt: skip
    lines = [_line(columns), _line(["---"] + ["---:"] * (len(columns) - 1))]
    for row in results["rows"]:
        before, after, notes = row["peers_us"].get("tensorrt-plain"), row["ours_us"], row["notes"]
        fused = [_length(notes.get(f"{label} fused")) for label in ("tensorrt-plain", "ours")]
        gaps = [_difference(notes.get(f"{label} difference")) for label in ("tensorrt-plain", "ours")]
        ratio = f"{before / after:.2f}" if before and after else ""
        times = [_microseconds(value) for value in (before, after)]
        lines.append(_line([row["work"], *fused, *times, ratio, _microseconds(row["bound_us"]), *gaps]))
    return _header(results) + "\n\n" + "\n".join(lines)


def _length(names: list[str] | None) -> str:
    return "" if names is None else str(len(names))


def _difference(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _commit(results: dict[str, Any]) -> str:
    return (results["commit"] or "unknown")[:12]


def _header(results: dict[str, Any]) -> str:
    versions = ", ".join(f"{key} {results[key]}" for key in ("driver", "cuda", "tensorrt", "torch") if results[key])
    runs = Counter((_commit({**results, **row}), {**results, **row}["date"][:10]) for row in results["rows"])
    if len(runs) == 1:
        ((commit, date),) = runs
        return f"{results['device']}, {versions}; commit {commit}, {date}."
    parts = [f"{commit} ({count} works), {date}" for (commit, date), count in runs.items()]
    return f"{results['device']}, {versions}; commits {'; '.join(parts)}."


def counts_table(rows: Sequence[CountRow]) -> str:
    """Counts as a table in Markdown: a line a group, a column a thing counted."""
    columns = list(dict.fromkeys(column for row in rows for column in row.counts))
    lines = [_line(["", *columns]), _line(["---", *["---:"] * len(columns)])]
    lines += [_line([row.work, *(str(row.counts.get(column, "")) for column in columns)]) for row in rows]
    return "\n".join(lines)


def _section(results: dict[str, Any]) -> str:
    peers = list(dict.fromkeys(peer for row in results["rows"] for peer in row["peers_us"]))
    lines = [
        _line(["work", "type", "ours", "limit", "of limit", *peers]),
        _line(["---"] * 2 + ["---:"] * (3 + len(peers))),
    ]
    for row in results["rows"]:
        share = f"{row['bound_us'] / row['ours_us']:.0%}"
        times = [_microseconds(row["peers_us"].get(peer)) for peer in peers]
        lines.append(
            _line(
                [
                    row["work"],
                    row["dtype"],
                    _microseconds(row["ours_us"]),
                    _microseconds(row["bound_us"]),
                    share,
                    *times,
                ]
            )
        )
    return _header(results) + "\n\n" + "\n".join(lines)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _microseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())

"""docs/measurements.md from results/*.json. `--check` writes nothing and exits 1 when the file is out of date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.results_file import read_results

__all__ = ["DOCUMENT", "render"]

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
        body = _section(results) if results else "Not measured yet."
        parts.append(f"## {title}\n\n{explanation}\n\n{body}\n")
    return "\n".join(parts)


def _section(results: dict[str, Any]) -> str:
    versions = ", ".join(f"{key} {results[key]}" for key in ("driver", "cuda", "tensorrt", "torch") if results[key])
    commit = (results["commit"] or "unknown")[:12]
    header = f"{results['device']}, {versions}; commit {commit}, {results['date'][:10]}."
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
    return header + "\n\n" + "\n".join(lines)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _microseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())

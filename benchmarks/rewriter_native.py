"""Lowering `native` in TensorRT on a GPU, against the exports as they are: results/rewriter-native.json.

Eight architectures, SDPA and eager, both exporters, fp16, two layers of real size. For each export: whether TensorRT
takes it, sites fused and microseconds before and after, and the outputs against the float32 model in ONNX Runtime. The
exports are made by `python -m benchmarks.zoo --size real --filter REGEX` (the regular expression is printed by
`--print-filter`), here or elsewhere: see benchmarks/zoo/weights.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import onnx

from benchmarks.engine_forms import (
    OURS,
    PLAIN,
    MeasuredModel,
    build_forms,
    largest_difference,
    reference_outputs,
    rewritten,
    time_forms,
)
from benchmarks.native_works import EXPORTS, WORKS, Work, example_inputs, find_exports, operations, title
from benchmarks.results_file import read_results, write_results
from benchmarks.zoo.arguments import pattern
from benchmarks.zoo.weights import restored_copy

__all__ = ["check", "main"]


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    if options.print_filter:
        print(EXPORTS)
        return 0
    deadline = time.monotonic() + options.time_limit
    done = _measured_works() if options.skip_measured else frozenset()
    found = {
        key: left
        for key, paths in find_exports(options.exports, options.only).items()
        if (left := [path for path in paths if title(path.stem, WORKS[key]) not in done])
    }
    if not found:
        print(f"{options.exports}: no export {EXPORTS} is left to measure; python -m benchmarks.zoo makes them",
              file=sys.stderr)  # fmt: skip
        return 1
    for key, paths in found.items():
        with tempfile.TemporaryDirectory() as folder:
            if options.check:
                for path in paths:
                    print(check(path, WORKS[key], Path(folder)), flush=True)
                continue
            _measure_architecture(WORKS[key], paths, Path(folder), options.timing_cache, deadline)
        if time.monotonic() > deadline:
            print("time is up; --only picks what is left", file=sys.stderr)
            break
    return 0


def check(path: Path, work: Work, folder: Path) -> str:
    """All that needs no GPU: reads, rewrites, and compares both in ONNX Runtime as float32 models."""
    original, native, lowered = _prepare(path, folder)
    inputs = example_inputs(onnx.load(original), work, batch=1)
    try:
        expected, actual = reference_outputs(original, inputs), reference_outputs(native, inputs)
    except Exception as error:  # ONNX Runtime has no common class for its errors
        return f"{path.stem}: {lowered}; ONNX Runtime: {' '.join(str(error).split())[:200]}"
    return f"{path.stem}: {lowered}; largest difference {largest_difference(actual, expected):.3g}"


def _prepare(path: Path, folder: Path) -> tuple[Path, Path, str]:
    """The export with its weights, its native form (the export itself where it has none), and what was lowered."""
    original = restored_copy(path, folder)
    native, lowered = rewritten(original, folder / f"{path.stem}.native.onnx", "native")
    return original, native or original, lowered


def _measure_architecture(work: Work, paths: list[Path], folder: Path, cache: Path, deadline: float) -> None:
    """Builds all engines of an architecture and times them in one interleaved run."""
    measured = []
    for path in paths:
        if time.monotonic() > deadline:
            break
        started = time.monotonic()
        measured.append(_build_both(path, work, folder, cache))
        print(f"{path.stem}: {time.monotonic() - started:.0f} s, {measured[-1].notes}", flush=True)
    rows = time_forms(measured)
    for row in rows:
        print(f"{row.work}: native {row.ours_us}, as given {row.peers_us.get(PLAIN)} (microseconds)")
    if rows:
        print(write_results("rewriter-native", rows), flush=True)


def _measured_works() -> frozenset[str]:
    results = read_results("rewriter-native")
    return frozenset(row["work"] for row in results["rows"]) if results else frozenset()


def _build_both(path: Path, work: Work, folder: Path, cache: Path) -> MeasuredModel:
    original, native, lowered = _prepare(path, folder)
    model = onnx.load(original)
    one = MeasuredModel(
        title(path.stem, work),
        "float16",
        operations(model, work),
        example_inputs(model, work),
        notes={"lowered": lowered},
    )
    build_forms(one, original, {PLAIN: original, OURS: native}, folder, cache)
    return one


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exports", type=Path, default=Path(".zoo/real"), metavar="DIR",
                        help="folder of exports, stripped ones too (default: .zoo/real)")  # fmt: skip
    parser.add_argument("--only", type=pattern, default="", metavar="REGEX", help="only exports whose names it finds")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS",
                        help="start no further export after so long")  # fmt: skip
    parser.add_argument("--timing-cache", type=Path, default=Path("rewriter-native.timing"), metavar="FILE",
                        help="one for each form, .FORM behind the name; kept for the next run")  # fmt: skip
    parser.add_argument("--skip-measured", action="store_true", help="leave out what the results hold already")
    parser.add_argument("--check", action="store_true", help="without a GPU: rewrite, and compare in ONNX Runtime")
    parser.add_argument("--print-filter", action="store_true", help="print which exports are measured")
    return parser


if __name__ == "__main__":
    sys.exit(main())

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from attngraft.errors import AttngraftError, EngineError
from attngraft.lower import parse_target
from attngraft.rewrite import rewrite_model
from attngraft.verify.widen import widened
from benchmarks.native_works import EXPORTS, WORKS, Work, example_inputs, find_exports, operations, title
from benchmarks.results_file import Row, read_results, write_results
from benchmarks.zoo.arguments import pattern
from benchmarks.zoo.weights import restore

__all__ = ["check", "main"]

PLAIN, NATIVE = "tensorrt-plain", "ours"


@dataclass
class _Measured:
    """What is known of one export while its architecture is measured."""

    name: str
    work: Work
    rate_operations: float = 0.0
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    engines: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


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
    original, rewritten, lowered = _prepare(path, folder)
    inputs = example_inputs(onnx.load(original), work, batch=1)
    try:
        expected, actual = reference_outputs(original, inputs), reference_outputs(rewritten, inputs)
    except Exception as error:  # ONNX Runtime has no common class for its errors
        return f"{path.stem}: {lowered}; ONNX Runtime: {' '.join(str(error).split())[:200]}"
    return f"{path.stem}: {lowered}; largest difference {_difference(actual, expected):.3g}"


def _prepare(path: Path, folder: Path) -> tuple[Path, Path, str]:
    """The export with its weights, its native form, and what was lowered in words."""
    model = onnx.load(path)
    restore(model)
    original, rewritten = folder / f"{path.stem}.onnx", folder / f"{path.stem}.native.onnx"
    onnx.save(model, original)
    try:
        result = rewrite_model(original, rewritten, lower="native", target=parse_target("10.6"), verify=False)
    except AttngraftError as error:
        return original, original, f"not rewritten: {error}"
    return original, rewritten, f"{result.lowered} of {len(result.sites.sites)} sites lowered"


def reference_outputs(path: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the model computes in float32, whatever its types, in ONNX Runtime."""
    model = widened(onnx.load(path), path.parent)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # failures arrive as exceptions
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {name: array.astype(np.float32) if array.dtype == np.float16 else array for name, array in inputs.items()}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def _measure_architecture(work: Work, paths: list[Path], folder: Path, cache: Path, deadline: float) -> None:
    """Builds all engines of an architecture and times them in one interleaved run."""
    import torch

    from benchmarks.timing import graph_replay_us, matrix_rate

    rate = matrix_rate(torch.float16)
    measured = []
    for path in paths:
        if time.monotonic() > deadline:
            break
        started = time.monotonic()
        measured.append(_build_both(path, work, folder, cache))
        print(f"{path.stem}: {time.monotonic() - started:.0f} s, {measured[-1].notes}", flush=True)
    candidates = {f"{one.name} {label}": engine for one in measured for label, engine in one.engines.items()}
    elapsed = graph_replay_us(candidates) if candidates else {}
    rows = list(_rows(measured, elapsed, rate))
    for row in rows:
        print(f"{row.work}: native {row.ours_us}, as given {row.peers_us.get(PLAIN)} (microseconds)")
    if rows:
        print(write_results("rewriter-native", rows), flush=True)


def _rows(measured: Iterable[_Measured], elapsed: Mapping[str, float], rate: float) -> Iterable[Row]:
    for one in measured:
        times = {label: elapsed[f"{one.name} {label}"] for label in one.engines}
        yield Row(
            work=title(one.name, one.work),
            dtype="float16",
            ours_us=times.pop(NATIVE, None),
            peers_us=times,
            bound_us=one.rate_operations / rate,
            notes=one.notes,
        )


def _measured_works() -> frozenset[str]:
    results = read_results("rewriter-native")
    return frozenset(row["work"] for row in results["rows"]) if results else frozenset()


def _build_both(path: Path, work: Work, folder: Path, cache: Path) -> _Measured:
    original, rewritten, lowered = _prepare(path, folder)
    model = onnx.load(original)
    one = _Measured(path.stem, work, operations(model, work), example_inputs(model, work))
    one.notes["lowered"] = lowered
    expected: Mapping[str, np.ndarray] = {}
    try:
        expected = reference_outputs(original, one.inputs)
    except Exception as error:  # ONNX Runtime has no common class for its errors
        one.notes["reference"] = " ".join(str(error).split())[:300]
    for label, source in ((PLAIN, original), (NATIVE, rewritten)):
        own_cache = cache.with_name(f"{cache.name}.{label}")  # neither form gets what was chosen for the other
        try:
            _build(one, label, source, folder / f"{path.stem}.{label}.engine", own_cache, expected)
        except (AttngraftError, RuntimeError) as error:
            one.notes[f"{label} refused"] = str(error)[:300]
    return one


def _build(
    one: _Measured, label: str, source: Path, target: Path, cache: Path, expected: Mapping[str, np.ndarray]
) -> None:
    """Builds one engine, counts its fused attention kernels, and compares its outputs."""
    import torch

    from attngraft.engine import ShapeRange, build_engine
    from benchmarks.engine_timing import LoadedEngine

    shapes = {name: ShapeRange.fixed(array.shape) for name, array in one.inputs.items()}
    build_engine(source, target, backend="tensorrt", shapes=shapes, embed_plugins=False, timing_cache=cache)
    engine = LoadedEngine(target, {name: torch.from_numpy(array) for name, array in one.inputs.items()})
    engine()
    torch.cuda.synchronize()
    actual = {name: tensor.float().cpu().numpy() for name, tensor in engine.outputs.items()}
    try:
        one.notes[f"{label} fused"] = engine.fused_attention_kernels()
    except EngineError as error:  # the engine can be timed all the same
        one.notes[f"{label} layers"] = str(error)
    if expected:
        one.notes[f"{label} difference"] = _difference(actual, expected)
    one.engines[label] = engine


def _difference(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The largest absolute difference; infinite for a NaN on one side only."""
    largest = 0.0
    for name, wanted in expected.items():
        found, wanted = np.asarray(actual[name], np.float64), np.asarray(wanted, np.float64)
        if not np.array_equal(np.isnan(found), np.isnan(wanted)):
            return float("inf")
        with np.errstate(invalid="ignore"):
            gaps = np.where(found == wanted, 0.0, np.abs(found - wanted))
        largest = max(largest, float(np.nanmax(gaps, initial=0.0)))
    return largest


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

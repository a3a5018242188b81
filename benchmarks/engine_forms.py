"""One model in several forms as TensorRT engines: built, compared with the model in float32, and timed side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from benchmarks.results_file import PLAIN, Row

__all__ = [
    "OURS",
    "PLAIN",
    "MeasuredModel",
    "build_forms",
    "largest_difference",
    "reference_outputs",
    "rewritten",
    "time_forms",
]

OURS = "ours"

TARGET = parse_target("10.6")
"""The TensorRT that the models are lowered for."""

NOTE_LENGTH = 300
"""Of an error's text in the results."""


@dataclass
class MeasuredModel:
    """What is known of one model while its forms are measured: a row of results in the making."""

    title: str
    dtype: str
    operations: float
    """Floating-point operations of one inference."""
    inputs: Mapping[str, np.ndarray]
    engines: dict[str, Any] = field(default_factory=dict)
    """By form; a form that TensorRT refuses has none."""
    notes: dict[str, Any] = field(default_factory=dict)


def rewritten(original: Path, target: Path, lower: str, *, verify: bool = False) -> tuple[Path | None, str]:
    """The model with one lowering, and what was lowered in words; None where no site can take it."""
    try:
        result = rewrite_model(original, target, lower=lower, target=TARGET, verify=verify)
    except AttngraftError as error:
        return None, f"not rewritten: {error}"
    return target, f"{result.lowered} of {len(result.sites.sites)} sites lowered"


def reference_outputs(path: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the model computes in float32, whatever its types, in ONNX Runtime."""
    model = widened(onnx.load(path), path.parent)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # failures arrive as exceptions
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {name: array.astype(np.float32) if array.dtype == np.float16 else array for name, array in inputs.items()}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def largest_difference(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
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


def build_forms(one: MeasuredModel, original: Path, forms: Mapping[str, Path], folder: Path, cache: Path) -> None:
    """Builds each form and compares it with `original` in float32; what goes wrong is a note, not an error.

    cache   timing caches, `.FORM` behind its name: no form gets what was chosen for another.
    """
    expected: Mapping[str, np.ndarray] = {}
    try:
        expected = reference_outputs(original, one.inputs)
    except Exception as error:  # ONNX Runtime has no common class for its errors
        one.notes["reference"] = _short(error)
    for label, source in forms.items():
        engine, own_cache = folder / f"{original.stem}.{label}.engine", cache.with_name(f"{cache.name}.{label}")
        try:
            _build(one, label, source, engine, own_cache, expected)
        except (AttngraftError, RuntimeError) as error:
            one.notes[f"{label} refused"] = _short(error).replace(f"{folder}/", "")


def _build(
    one: MeasuredModel, label: str, source: Path, target: Path, cache: Path, expected: Mapping[str, np.ndarray]
) -> None:
    """Builds one engine, counts its fused attention kernels and plugin layers, and compares its outputs."""
    import torch

    from attngraft.engine import ShapeRange, build_engine
    from benchmarks.engine_timing import LoadedEngine

    shapes = {name: ShapeRange.fixed(array.shape) for name, array in one.inputs.items()}
    built = build_engine(source, target, backend="tensorrt", shapes=shapes, embed_plugins=False, timing_cache=cache)
    engine = LoadedEngine(target, {name: torch.from_numpy(array) for name, array in one.inputs.items()})
    engine()
    torch.cuda.synchronize()
    actual = {name: tensor.float().cpu().numpy() for name, tensor in engine.outputs.items()}
    try:
        one.notes[f"{label} fused"] = engine.fused_attention_kernels()
    except EngineError as error:  # the engine can be timed all the same
        one.notes[f"{label} layers"] = str(error)
    if built.plugin_layers:
        one.notes[f"{label} plugin layers"] = built.plugin_layers
    if expected:
        one.notes[f"{label} difference"] = largest_difference(actual, expected)
    one.engines[label] = engine


def time_forms(models: Sequence[MeasuredModel]) -> list[Row]:
    """All engines of the models in one interleaved run, a row for each model."""
    import torch

    from benchmarks.timing import graph_replay_us, matrix_rate

    rates = {dtype: matrix_rate(getattr(torch, dtype)) for dtype in sorted({one.dtype for one in models})}
    candidates = {f"{one.title} {label}": engine for one in models for label, engine in one.engines.items()}
    elapsed = graph_replay_us(candidates) if candidates else {}
    rows = []
    for one in models:
        times = {label: elapsed[f"{one.title} {label}"] for label in one.engines}
        rows.append(
            Row(one.title, one.dtype, times.pop(OURS, None), times, one.operations / rates[one.dtype], one.notes)
        )
    return rows


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:NOTE_LENGTH]

"""Original against rewritten in ONNX Runtime, output by output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import ModelProto

from attngraft.errors import VerificationError
from attngraft.onnx_graph import load_model
from attngraft.verify.inputs import InputCase, draw_inputs, input_kinds
from attngraft.verify.results import OutputResult, VerificationReport
from attngraft.verify.session import ReferenceSession
from attngraft.verify.shapes import input_specs, size_plans
from attngraft.verify.widen import uses_bfloat16, widened

__all__ = ["TOLERANCES", "verify_models"]

TOLERANCES: dict[str, float] = {
    # Times the largest magnitude in the output, or 1. Both models sum in fp32 in other orders; a 12-layer model
    # amplifies one rounding (6e-8) some hundred times.
    "float32": 1e-4,
    "float64": 1e-4,  # the softmax computes in fp32 whatever surrounds it
    # One rounding is 4.9e-4; scale, mask and softmax round three times in the original and once in the rewritten model.
    "float16": 1e-2,
}
"""Largest difference allowed, by output type. Integer and boolean outputs must be equal."""

ENOUGH_SIZES = 2
"""How many sets of sizes are run with: one odd and one even. Further ones are for models that refuse the first."""

Model = ModelProto | str | Path
Progress = Callable[[str], None]


def verify_models(
    original: Model,
    rewritten: Model,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> VerificationReport:
    """Runs both models on the same inputs and compares every output.

    Models are paths (needed with external data or above 2 GB) or protos. `shapes` fixes input shapes by name; symbolic
    dimensions are otherwise tried in several sizes, odd ones included. Raises VerificationError when the models'
    inputs or outputs differ, or when neither size runs in the original; a difference is for the report to tell.
    """
    say = progress or (lambda message: None)
    description, other = _load(original), _load(rewritten)
    _check_same_interface(description, other)
    widening = uses_bfloat16(description)
    if widening:
        original, rewritten = widened(description, _folder(original)), widened(other, _folder(rewritten))
        description = original
    say("verify: running the original in ONNX Runtime")
    expected, notes = _run_original(original, description, shapes, seed)
    say(f"verify: running the rewritten model on {len(expected)} inputs")
    session = ReferenceSession(rewritten, "rewritten")
    comparisons = {name: _Comparison(name) for name in (value.name for value in description.graph.output)}
    for case, outputs in expected:
        actual = session.run(case.feeds)
        for name, comparison in comparisons.items():
            comparison.add(case.label, outputs[name], actual[name])
    cases = tuple(case.label for case, _ in expected)
    if widening:
        notes.append("bfloat16 was computed as float32: ONNX Runtime has no bfloat16 kernels on the CPU")
    return VerificationReport(tuple(comparison.result() for comparison in comparisons.values()), cases, tuple(notes))


def _load(model: Model) -> ModelProto:
    return model if isinstance(model, ModelProto) else load_model(model)


def _folder(model: Model) -> Path | None:
    return None if isinstance(model, ModelProto) else Path(model).parent


def _check_same_interface(original: ModelProto, rewritten: ModelProto) -> None:
    for what, first, second in (
        ("inputs", [spec.name for spec in input_specs(original)], [spec.name for spec in input_specs(rewritten)]),
        ("outputs", [v.name for v in original.graph.output], [v.name for v in rewritten.graph.output]),
    ):
        if first != second:
            raise VerificationError(
                f"the models have different {what}: {first} and {second}; compare a model with its rewrite"
            )


def _run_original(
    original: Model, description: ModelProto, shapes: Mapping[str, tuple[int, ...]] | None, seed: int
) -> tuple[list[tuple[InputCase, dict[str, np.ndarray]]], list[str]]:
    """The original's outputs for all cases of all sizes that it runs with. The session is gone afterwards: two models
    in memory at once may be one too many."""
    session = ReferenceSession(original, "original")
    kinds = input_kinds(description)
    results: list[tuple[InputCase, dict[str, np.ndarray]]] = []
    notes: list[str] = []
    sizes = 0
    for plan in size_plans(kinds.specs, shapes):
        if sizes == ENOUGH_SIZES:
            break
        try:
            results += [(case, session.run(case.feeds)) for case in draw_inputs(kinds, plan, seed)]
            sizes += 1
        except VerificationError as error:
            notes.append(f"not tried: {error}")
    if not results:
        raise VerificationError(
            f"{notes[0].removeprefix('not tried: ')}; give its input shapes with --shape name=1x3x224x224"
        )
    return results, notes


@dataclass
class _Comparison:
    """One output, gathering cases."""

    name: str
    dtype: str = ""
    compared: int = 0
    nan_in_original: int = 0
    new_nan: int = 0
    worst: float = 0.0
    tolerance: float = 0.0
    case: str = ""
    nearest: float = field(default=-1.0)

    def add(self, label: str, expected: np.ndarray, actual: np.ndarray) -> None:
        self.dtype = expected.dtype.name
        if expected.shape != actual.shape or expected.dtype != actual.dtype:
            raise VerificationError(
                f"output {self.name!r} is {expected.dtype}{list(expected.shape)} in the original and "
                f"{actual.dtype}{list(actual.shape)} in the rewritten model"
            )
        if expected.size == 0:
            return
        difference, tolerance, was_nan, new_nan = _difference(expected, actual)
        self.compared += int(expected.size - was_nan)
        self.nan_in_original += was_nan
        self.new_nan += new_nan
        nearness = np.inf if new_nan else difference / tolerance if tolerance else difference
        if nearness > self.nearest:
            self.nearest, self.case, self.tolerance = float(nearness), label, tolerance
        self.worst = max(self.worst, difference)

    def result(self) -> OutputResult:
        within = self.nearest <= 1 if self.tolerance else self.worst == 0
        passed = self.compared > 0 and self.new_nan == 0 and within
        return OutputResult(
            self.name,
            self.dtype,
            self.compared,
            self.nan_in_original,
            self.new_nan,
            self.worst,
            self.tolerance,
            self.case,
            passed,
        )


def _difference(expected: np.ndarray, actual: np.ndarray) -> tuple[float, float, int, int]:
    """Largest difference, its tolerance, elements NaN in the original, elements NaN only in the rewritten."""
    tolerance = TOLERANCES.get(expected.dtype.name)
    if tolerance is None:
        return float(np.count_nonzero(expected != actual)), 0.0, 0, 0
    first, second = expected.astype(np.float64), actual.astype(np.float64)
    comparable = ~np.isnan(first)
    was_nan = int(first.size - np.count_nonzero(comparable))
    first, second = first[comparable], second[comparable]
    new_nan = int(np.count_nonzero(np.isnan(second)))
    with np.errstate(invalid="ignore"):
        difference = np.where(first == second, 0.0, np.abs(first - second))
    # NaN - x is NaN, which every comparison with a tolerance would let pass.
    difference = np.where(np.isnan(difference), np.inf, difference)
    magnitudes = np.abs(first[np.isfinite(first)])
    return (
        float(difference.max(initial=0.0)),
        tolerance * max(1.0, float(magnitudes.max(initial=0.0))),
        was_nan,
        new_nan,
    )

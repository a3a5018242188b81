"""Original against rewritten in ONNX Runtime, output by output.

Models in float32 and float64 are compared with each other. A float16 model is held against two results of the original:
what it gives as it is, and what it gives when it is computed in float32. A rewrite that saves roundings moves towards
the second, one that repeats the original's arithmetic stays at the first; so each element is compared with the nearer
of the two, and may be as far from it as the original's own roundings usually take it from the float32 result, times
ROUNDING_MARGIN, plus a few roundings. Whatever is wrong is far from both.

The standard Attention operator has two results too: what ONNX Runtime's kernel gives and what ONNX defines, which
differ in rows that may attend to nothing. The nearer counts, and the rewritten model may be computed either way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, TensorProto

from attngraft.errors import VerificationError
from attngraft.onnx_graph import without_weights
from attngraft.verify.definition import has_attention
from attngraft.verify.inside import made_in
from attngraft.verify.original import (
    OriginalCase,
    OriginalRun,
    open_inside,
    run_original,
    wide_feeds,
)
from attngraft.verify.progress import Progress, Ticker, silent
from attngraft.verify.results import OutputResult, VerificationReport
from attngraft.verify.session import Model, ReferenceSession, load_description, model_folder
from attngraft.verify.shapes import input_specs
from attngraft.verify.widen import widened

__all__ = ["ROUNDING_MARGIN", "TOLERANCES", "compare_with", "verify_models"]

TOLERANCES: dict[str, float] = {
    # Times the largest magnitude in the output, or 1. Both models sum in fp32 in other orders; a 12-layer model
    # amplifies one rounding (6e-8) some hundred times.
    "float32": 1e-4,
    "float64": 1e-4,  # the softmax computes in fp32 whatever surrounds it
    # One rounding is 4.9e-4; scale, mask and softmax round three times in the original and once in the rewritten model.
    "float16": 1e-2,
}
"""Largest difference allowed, by output type. Integer and boolean outputs must be equal. Where a float16 model's own
roundings could be measured, HALF_ROUNDINGS and ROUNDING_MARGIN take the place of this one, except for inputs with rows
in which everything is masked: scores that -65504 was added to, or twice, keep but two decimals."""

INSIDE_TOLERANCE = 3e-5
"""Largest difference allowed in the result of an attention site in float32, times the largest magnitude in it.
Measured: right lowerings differ by 3e-7 at most in 105 one-layer exports and by 9e-6 in 24 layers with sharp attention,
which amplify roundings; wrong ones, all scales 10 % off, by 7e-5 at least in the former."""

HALF_ROUNDINGS = {TensorProto.FLOAT16: 1e-3, TensorProto.BFLOAT16: 8e-3}
"""Two roundings of the type, times the largest magnitude in the output, or 1. Where both models are computed in
float32, their constants are still numbers of the half type: a scale that moved is rounded once more."""

ROUNDING_MARGIN = 3.0
"""How many times as far as the original's own roundings usually go, the rewritten model may be from the nearer of the
two results. Over 12 inputs the largest error of one and the same model varies by less than a factor of two; a third
part is for a rewrite whose roundings differ from the original's. Measured: right lowerings of 24 layers with sharp
attention stay below two thirds of the tolerance."""


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
    inputs or outputs differ, or when no size runs in the original; a difference is for the report to tell.
    """
    say = progress or silent
    run = run_original(original, shapes, seed, say)
    return compare_with(run, rewritten, say)


def compare_with(run: OriginalRun, rewritten: Model, say: Progress = silent) -> VerificationReport:
    """Runs the rewritten model on the inputs that the original ran on, and compares every output. Raises
    VerificationError when it does not load or run, or has other inputs or outputs."""
    description = without_weights(load_description(rewritten))
    _check_same_interface(run.description, description)
    say(f"verify: running the rewritten model on {len(run.cases)} inputs")
    report = _compare(run, rewritten, description, has_attention(description), say)
    if report.passed or not has_attention(description):
        return report
    try:
        by_kernel = _compare(run, rewritten, description, False, say)
    except VerificationError:  # the kernel takes not all that ONNX allows
        return report
    return by_kernel if by_kernel.passed else report


def _compare(
    run: OriginalRun, rewritten: Model, description: ModelProto, defined: bool, say: Progress
) -> VerificationReport:
    """`defined`: whether Attention nodes of the rewritten model are computed as ONNX defines them."""
    session, is_wide, inside = _open_rewritten(run, rewritten, defined, made_in(description, run.inside))
    names = [value.name for value in run.description.graph.output]
    comparisons = [_Comparison(name, run.dtype, is_wide, run.rounding(name)) for name in names]
    comparisons += [_Comparison(name, run.dtype, is_wide, run.rounding(name), is_inside=True) for name in inside]
    ticker = Ticker(say, "verify: rewritten model")
    for case in run.cases:
        actual = session.run(wide_feeds(case.inputs.feeds) if is_wide else case.inputs.feeds)
        for comparison in comparisons:
            comparison.add(case, actual[comparison.name])
        ticker.step(case.inputs.label)
    cases = tuple(case.inputs.label for case in run.cases)
    notes = (*run.notes, *_notes(run, description, is_wide), *_inside_note(comparisons))
    shown = (comparison.result() for comparison in comparisons if not (comparison.is_inside and comparison.is_equal))
    return VerificationReport(tuple(shown), cases, notes)


def _inside_note(comparisons: Sequence[_Comparison]) -> list[str]:
    inside = [comparison for comparison in comparisons if comparison.is_inside and comparison.compared]
    equal = sum(comparison.is_equal for comparison in inside)
    zero = sum(comparison.largest == 0 for comparison in inside)
    notes = [f"compared inside the model too: {equal} results of attention sites are equal"] if equal else []
    if zero:
        notes.append(f"{zero} results of attention sites are 0 everywhere, which proves little: random weights?")
    return notes


def _check_same_interface(original: ModelProto, rewritten: ModelProto) -> None:
    """Raises VerificationError when the names of inputs or outputs differ."""
    for what, first, second in (
        ("inputs", [spec.name for spec in input_specs(original)], [spec.name for spec in input_specs(rewritten)]),
        ("outputs", [v.name for v in original.graph.output], [v.name for v in rewritten.graph.output]),
    ):
        if first != second:
            raise VerificationError(
                f"the models have different {what}: {first} and {second}; compare a model with its rewrite"
            )


def _open_rewritten(
    run: OriginalRun, rewritten: Model, defined: bool, inside: tuple[str, ...]
) -> tuple[ReferenceSession, bool, tuple[str, ...]]:
    """The session, and whether it computes in float32 what the model has in a half type: always so for bfloat16, and
    for a float16 model that loads no more than the original does; and which tensors inside the model it gives."""
    if run.dtype != TensorProto.BFLOAT16:
        try:
            session, inside = open_inside(rewritten, "rewritten", defined, inside)
            return session, False, inside
        except VerificationError:
            if any(case.outputs is not None for case in run.cases):
                raise
    wide = widened(load_description(rewritten), model_folder(rewritten))
    session, inside = open_inside(wide, "rewritten", defined, inside)
    return session, True, inside


def _notes(run: OriginalRun, rewritten: ModelProto, is_wide: bool) -> list[str]:
    notes = _type_notes(run, is_wide)
    if has_attention(run.description) or has_attention(rewritten):
        notes.append("Attention nodes were computed both by ONNX Runtime's kernel and as ONNX defines them")
    return notes


def _type_notes(run: OriginalRun, is_wide: bool) -> list[str]:
    if run.dtype == TensorProto.BFLOAT16:
        return ["bfloat16 was computed as float32: ONNX Runtime has no bfloat16 kernels on the CPU"]
    if any(case.outputs is not None for case in run.cases):
        return []
    both = "both models were" if is_wide else "the original was"
    return [f"{both} computed as float32"]


@dataclass
class _Comparison:
    """One output, gathering cases. `model_dtype`: the narrowest type of the original; `is_wide`: whether the rewritten
    model was computed in float32; `rounding`: the original's own distance from the float32 result; `is_inside`: the
    output is none of the model's but the result of an attention site."""

    name: str
    model_dtype: int
    is_wide: bool
    rounding: float | None
    is_inside: bool = False
    dtype: str = ""
    compared: int = 0
    nan_in_original: int = 0
    new_nan: int = 0
    worst: float = 0.0
    largest: float = 0.0
    tolerance: float = 0.0
    case: str = ""
    nearest: float = field(default=-1.0)

    def add(self, case: OriginalCase, actual: np.ndarray) -> None:
        expected = case.either().get(self.name)
        if expected is None:  # from inside the model, and too large
            return
        self.dtype = expected.dtype.name
        # Casts may move past a tensor inside the model.
        same_type = expected.dtype == actual.dtype or case.outputs is None or self.is_inside
        if expected.shape != actual.shape or not same_type:
            raise VerificationError(
                f"output {self.name!r} is {expected.dtype}{list(expected.shape)} in the original and "
                f"{actual.dtype}{list(actual.shape)} in the rewritten model"
            )
        if expected.size == 0:
            return
        results = [side[self.name] for side in (case.outputs, case.reference) if side is not None]
        difference, magnitude, was_nan, new_nan = _difference(results, actual)
        scale = magnitude if self.is_inside else max(1.0, magnitude)
        tolerance = self._tolerance(expected.dtype.name, scale, case.inputs.has_empty_rows)
        self.largest = max(self.largest, magnitude)
        self.compared += int(expected.size - was_nan)
        self.nan_in_original += was_nan
        self.new_nan += new_nan
        nearness = np.inf if new_nan else difference / tolerance if tolerance else difference
        if nearness > self.nearest:
            self.nearest, self.case, self.tolerance = float(nearness), case.inputs.label, tolerance
        self.worst = max(self.worst, difference)

    def _tolerance(self, dtype: str, magnitude: float, has_empty_rows: bool) -> float:
        if dtype not in TOLERANCES:
            return 0.0
        roundings = HALF_ROUNDINGS.get(self.model_dtype)
        if roundings is None:
            return (INSIDE_TOLERANCE if self.is_inside else TOLERANCES[dtype]) * magnitude
        if self.is_wide:
            return roundings * magnitude
        loose = TOLERANCES["float16"] * magnitude
        if self.rounding is None:
            return loose
        tight = roundings * magnitude + ROUNDING_MARGIN * self.rounding
        return max(tight, loose) if has_empty_rows else tight

    @property
    def is_equal(self) -> bool:
        """Nothing was too far away; nothing at all may have been compared, which fails only an output."""
        within = self.nearest <= 1 if self.tolerance else self.worst == 0
        return self.new_nan == 0 and within

    def result(self) -> OutputResult:
        passed = self.is_equal and self.compared > 0
        return OutputResult(
            f"{self.name} (inside)" if self.is_inside else self.name,
            self.dtype,
            self.compared,
            self.nan_in_original,
            self.new_nan,
            self.worst,
            self.tolerance,
            self.case,
            passed,
        )


def _difference(results: list[np.ndarray], actual: np.ndarray) -> tuple[float, float, int, int]:
    """The largest distance of `actual` from the nearer of the original's results (for integers and booleans the number
    of elements that differ), the largest finite magnitude in them, the elements that are NaN in the first of
    them, and those that are NaN only in `actual`."""
    if results[0].dtype.name not in TOLERANCES:
        unequal = np.all([result != actual for result in results], axis=0)
        return float(np.count_nonzero(unequal)), 1.0, 0, 0
    second = actual.astype(np.float64)
    comparable = ~np.isnan(results[0].astype(np.float64))
    new_nan = int(np.count_nonzero(np.isnan(second) & comparable))
    distance = np.full(second.shape, np.inf)
    magnitude = 0.0
    for result in results:
        first = result.astype(np.float64)
        with np.errstate(invalid="ignore"):
            difference = np.where(first == second, 0.0, np.abs(first - second))
        # NaN - x is NaN, which every comparison with a tolerance would let pass; fmin takes the other side.
        distance = np.fmin(distance, difference)
        magnitude = max(magnitude, float(np.abs(first[np.isfinite(first)]).max(initial=0.0)))
    distance = distance[comparable]
    return float(distance.max(initial=0.0)), magnitude, int(np.count_nonzero(~comparable)), new_nan

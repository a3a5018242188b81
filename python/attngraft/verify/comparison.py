"""One output of two models, held against each other case by case: tolerances, what is nearest to them, and NaN."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from attngraft.errors import VerificationError
from attngraft.verify.original import OriginalCase
from attngraft.verify.results import OutputResult

__all__ = ["ROUNDING_MARGIN", "TOLERANCES", "Comparison", "largest_difference"]

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


@dataclass
class Comparison:
    """One output, gathering cases. `model_dtype`: the narrowest type of the original; `is_wide`: whether the rewritten
    model was computed in float32; `rounding`: the original's own distance from the float32 result; `is_inside`: the
    output is none of the model's but the result of an attention site. Where something else than ONNX Runtime computes,
    `least` is what is allowed in any case and `usual` how far its arithmetic usually goes, times the magnitude."""

    name: str
    model_dtype: int
    is_wide: bool
    rounding: float | None
    is_inside: bool = False
    least: float = 0.0
    usual: float = 0.0
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
                f"{actual.dtype}{list(actual.shape)} in what is compared with it"
            )
        if expected.size == 0:
            return
        difference, magnitude, was_nan, new_nan = largest_difference(case.results(self.name), actual)
        scale = magnitude if self.is_inside else max(1.0, magnitude)
        tolerance = self._tolerance(expected.dtype.name, scale, case.inputs.has_empty_rows)
        if tolerance:  # integers and booleans have none
            tolerance = max(tolerance, self.least * scale, self._usual_tolerance(scale))
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

    def _usual_tolerance(self, magnitude: float) -> float:
        if not self.usual:
            return 0.0
        return (HALF_ROUNDINGS.get(self.model_dtype, 0.0) + ROUNDING_MARGIN * self.usual) * magnitude

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


def largest_difference(results: list[np.ndarray], actual: np.ndarray) -> tuple[float, float, int, int]:
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

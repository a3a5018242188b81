"""What something that is no ONNX model computes, an engine for one, against what the original computes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import TensorProto

from attngraft.errors import VerificationError
from attngraft.verify.comparison import TOLERANCES, Comparison, largest_difference
from attngraft.verify.original import OriginalRun
from attngraft.verify.progress import Progress, Ticker, silent
from attngraft.verify.results import VerificationReport

__all__ = ["ENGINE_TOLERANCES", "compare_outputs", "usual_distances"]

Arrays = Mapping[str, np.ndarray]

ENGINE_TOLERANCES = {
    TensorProto.FLOAT: TOLERANCES["float32"],
    TensorProto.FLOAT16: TOLERANCES["float16"],
    # A bfloat16 rounds to 8 bits where float16 rounds to 11: as many roundings are eight times as much.
    TensorProto.BFLOAT16: 8 * TOLERANCES["float16"],
}
"""Least tolerance for an engine, by the narrowest type of the model, times the largest magnitude in the output, or 1.
The roundings of ONNX Runtime's own kernels, which verification goes by, tell little of those of other kernels."""

USUAL_LIMIT = 2.0
"""Times the least tolerance: an engine whose results are usually farther away than this has more than roundings in
them. Measured with TensorRT 10.6: a Llama of ten layers and hidden size 2048 in float16, as it is, is 1.3 % of the
largest magnitude away."""

TF32_TOLERANCE = TOLERANCES["float16"]
"""TF32 keeps as many bits of what it multiplies as float16 does."""


def compare_outputs(
    run: OriginalRun,
    outputs_of: Callable[[Arrays], Arrays],
    *,
    tf32: bool = False,
    usual: Mapping[str, float] | None = None,
    what: str = "engine",
    say: Progress = silent,
) -> VerificationReport:
    """Calls `outputs_of` with the inputs of every case that the original ran on, and compares every output.

    tf32: whether products of fp32 values may be made in TF32. usual: by output, how far the arithmetic of what computes
    usually goes, from `usual_distances`. what: the name of what computes, for progress. Raises VerificationError for an
    output that is missing or of another shape or type; a difference is for the report.
    """
    least = _least(run, tf32)
    names = [value.name for value in run.description.graph.output]
    comparisons = [
        Comparison(name, run.dtype, False, run.rounding(name), least=least, usual=(usual or {}).get(name, 0.0))
        for name in names
    ]
    ticker = Ticker(say, f"verify: {what}")
    for case in run.cases:
        actual = outputs_of(case.inputs.feeds)
        for comparison in comparisons:
            _check_there(comparison.name, actual)
            comparison.add(case, np.asarray(actual[comparison.name]))
        ticker.step(case.inputs.label)
    cases = tuple(case.inputs.label for case in run.cases)
    return VerificationReport(tuple(comparison.result() for comparison in comparisons), cases, run.notes)


def usual_distances(run: OriginalRun, outputs: Sequence[Arrays], *, tf32: bool = False) -> dict[str, float]:
    """How far the roundings of what gave `outputs` for the cases of `run` take it from the original: for each output
    the median over the cases of the largest difference, in shares of the largest magnitude, or 1. Without outputs for
    which that is too far for roundings."""
    found = {}
    for value in run.description.graph.output:
        shares = []
        for case, actual in zip(run.cases, outputs, strict=True):
            _check_there(value.name, actual)
            results = case.results(value.name)
            if results[0].shape == np.shape(actual[value.name]) and results[0].size:
                difference, magnitude, *_ = largest_difference(results, np.asarray(actual[value.name]))
                shares.append(difference / max(magnitude, 1.0))
        usual = statistics.median(shares) if shares else 0.0
        if usual <= USUAL_LIMIT * _least(run, tf32):
            found[value.name] = usual
    return found


def _least(run: OriginalRun, tf32: bool) -> float:
    return TF32_TOLERANCE if tf32 and run.dtype == TensorProto.FLOAT else ENGINE_TOLERANCES[run.dtype]


def _check_there(name: str, actual: Arrays) -> None:
    if name not in actual:
        raise VerificationError(f"output {name!r} is missing; it has {', '.join(actual)}")

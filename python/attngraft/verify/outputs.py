"""What something that is no ONNX model computes, an engine for one, against what the original computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import TensorProto

from attngraft.errors import VerificationError
from attngraft.verify.comparison import TOLERANCES, Comparison
from attngraft.verify.original import OriginalRun
from attngraft.verify.progress import Progress, Ticker, silent
from attngraft.verify.results import VerificationReport

__all__ = ["ENGINE_TOLERANCES", "compare_outputs"]

Arrays = Mapping[str, np.ndarray]

ENGINE_TOLERANCES = {
    TensorProto.FLOAT: TOLERANCES["float32"],
    TensorProto.FLOAT16: TOLERANCES["float16"],
    # A bfloat16 rounds to 8 bits where float16 rounds to 11: as many roundings are eight times as much.
    TensorProto.BFLOAT16: 8 * TOLERANCES["float16"],
}
"""Least tolerance for an engine, by the narrowest type of the model, times the largest magnitude in the output, or 1.
The roundings of ONNX Runtime's own kernels, which verification goes by, tell little of those of other kernels."""

TF32_TOLERANCE = TOLERANCES["float16"]
"""TF32 keeps as many bits of what it multiplies as float16 does."""


def compare_outputs(
    run: OriginalRun,
    outputs_of: Callable[[Arrays], Arrays],
    *,
    tf32: bool = False,
    what: str = "engine",
    say: Progress = silent,
) -> VerificationReport:
    """Calls `outputs_of` with the inputs of every case that the original ran on, and compares every output.

    tf32: whether products of fp32 values may be made in TF32. what: the name of what computes, for progress. Raises
    VerificationError for an output that is missing or of another shape or type; a difference is for the report.
    """
    least = ENGINE_TOLERANCES[run.dtype]
    if tf32 and run.dtype == TensorProto.FLOAT:
        least = TF32_TOLERANCE
    names = [value.name for value in run.description.graph.output]
    comparisons = [Comparison(name, run.dtype, False, run.rounding(name), least=least) for name in names]
    ticker = Ticker(say, f"verify: {what}")
    for case in run.cases:
        actual = outputs_of(case.inputs.feeds)
        for comparison in comparisons:
            if comparison.name not in actual:
                raise VerificationError(f"output {comparison.name!r} is missing; it has {', '.join(actual)}")
            comparison.add(case, np.asarray(actual[comparison.name]))
        ticker.step(case.inputs.label)
    cases = tuple(case.inputs.label for case in run.cases)
    return VerificationReport(tuple(comparison.result() for comparison in comparisons), cases, run.notes)

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
from onnx import ModelProto, TensorProto

from attngraft.errors import VerificationError
from attngraft.onnx_graph import without_weights
from attngraft.verify.comparison import ROUNDING_MARGIN, TOLERANCES, Comparison
from attngraft.verify.definition import has_attention
from attngraft.verify.inside import made_in
from attngraft.verify.original import OriginalRun, open_inside, run_original, wide_feeds
from attngraft.verify.progress import Progress, Ticker, silent
from attngraft.verify.results import VerificationReport
from attngraft.verify.session import Model, ReferenceSession, load_description, model_folder
from attngraft.verify.shapes import input_specs
from attngraft.verify.widen import widened

__all__ = ["ROUNDING_MARGIN", "TOLERANCES", "compare_with", "verify_models"]


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
    comparisons = [Comparison(name, run.dtype, is_wide, run.rounding(name)) for name in names]
    comparisons += [Comparison(name, run.dtype, is_wide, run.rounding(name), is_inside=True) for name in inside]
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


def _inside_note(comparisons: Sequence[Comparison]) -> list[str]:
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

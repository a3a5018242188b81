"""What engines must give. In: a model and its profiles. Out: inputs, and what ONNX Runtime makes of
them, or the plain engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from attngraft.errors import VerificationError
from attngraft.match import inline_attention, match_model
from attngraft.onnx_graph import without_weights
from attngraft.pick.recipe import Profile, Recipe
from attngraft.rewrite import VERIFICATION_SEED
from attngraft.verify import OriginalRun, compare_outputs, run_original, usual_distances
from attngraft.verify.inputs import InputCase, draw_inputs, input_kinds
from attngraft.verify.original import OriginalCase
from attngraft.verify.progress import Progress
from attngraft.verify.widen import narrowest_type

__all__ = [
    "ONNX_RUNTIME",
    "PLAIN_ENGINE",
    "Arrays",
    "Reference",
    "Run",
    "from_onnx_runtime",
    "from_plain_engine",
    "plain_outputs",
    "repeating",
    "with_plain_engine",
]

ONNX_RUNTIME, PLAIN_ENGINE = "ONNX Runtime", "plain engine"

Arrays = Mapping[str, np.ndarray]

Run = Callable[[Path], AbstractContextManager[Callable[[Arrays], Arrays]]]
"""Opens an engine; what it gives computes outputs from inputs."""


@dataclass(frozen=True)
class Reference:
    """Results at each profile's usual shapes and at the first one's smallest, masks in all patterns.

    against  where they are from. feeds  inputs to time each profile with, of its usual shapes; nothing is masked in
    them, so that no engine gains by padding that others may not have. notes  what was not to be had. usual  by output,
    how far TensorRT's arithmetic usually goes.
    """

    run: OriginalRun
    against: str
    feeds: tuple[Arrays, ...]
    notes: tuple[str, ...] = ()
    usual: Mapping[str, float] = field(default_factory=dict)


def from_onnx_runtime(recipe: Recipe, say: Progress) -> Reference:
    """Raises VerificationError when ONNX Runtime runs the model at none of a profile's usual shapes."""
    usual = [run_original(recipe.source, shapes, VERIFICATION_SEED, say) for shapes in _usual(recipe)]
    feeds = tuple(run.cases[0].inputs.feeds for run in usual)
    notes: tuple[str, ...] = ()
    smallest = _smallest(recipe.profiles[0])
    if smallest is not None:
        try:
            usual.append(run_original(recipe.source, smallest, VERIFICATION_SEED, say))
        except VerificationError as error:  # a convolution over one pixel, for example
            notes = (f"not compared at the smallest shapes: {error}",)
    cases = tuple(case for run in usual for case in run.cases)
    return Reference(replace(usual[0], cases=cases), ONNX_RUNTIME, feeds, notes)


def from_plain_engine(recipe: Recipe, engine: Path, run_engine: Run, why: str) -> Reference:
    """What the engine of the model as it is gives; `why` ONNX Runtime does not."""
    drawn = [_drawn(recipe, shapes) for shapes in _usual(recipe)]
    smallest = _smallest(recipe.profiles[0])
    extra = [] if smallest is None else _drawn(recipe, smallest)
    with run_engine(engine) as compute:
        # As a reference and not as the original's own outputs: these would have to be of the type that is compared.
        cases = tuple(
            OriginalCase(case, None, _comparable(compute(case.feeds))) for cases in (*drawn, extra) for case in cases
        )
    run = OriginalRun(without_weights(recipe.model), narrowest_type(recipe.model), cases, ())
    note = f"compared with the engine of the model as it is, since ONNX Runtime cannot run it: {why}"
    return Reference(run, PLAIN_ENGINE, tuple(cases[0].feeds for cases in drawn), (note,))


def plain_outputs(reference: Reference, engine: Path, run_engine: Run) -> list[Arrays]:
    """What an engine gives for the reference's inputs."""
    with run_engine(engine) as compute:
        return [_comparable(compute(case.inputs.feeds)) for case in reference.run.cases]


def repeating(outputs: Sequence[Arrays]) -> Run:
    """Stands for the engine that gave these, for one more look at them in their order."""
    given = iter(outputs)
    return lambda _: nullcontext(lambda _: next(given))


def with_plain_engine(reference: Reference, outputs: Sequence[Arrays], tf32: bool) -> Reference:
    """The reference with what the engine of the model as it is, which gave `outputs`, tells of TensorRT: how far its
    arithmetic usually takes it from the reference; and, where that engine is right otherwise, its own results for
    inputs whose masks leave rows without a key, beside the reference's. TensorRT's fused attention goes its own way in
    such rows, which a model's users know from their engine or never see."""
    run = reference.run
    known = replace(reference, usual=usual_distances(run, outputs, tf32=tf32))
    with_empty = [case.inputs.has_empty_rows or case.inputs.has_early_rows for case in run.cases]
    if not any(with_empty) or _is_right(known, outputs, tf32, [True] * len(outputs)):
        return known
    if not _is_right(known, outputs, tf32, [not empty for empty in with_empty]):
        return known
    cases = tuple(
        replace(case, accepted=output) if empty else case
        for case, output, empty in zip(run.cases, outputs, with_empty, strict=True)
    )
    note = (
        f"the engine of the model as it is differs from {reference.against} in rows without a key; other engines may "
        "give there what either gives"
    )
    return replace(known, run=replace(run, cases=cases), notes=(*known.notes, note))


def _is_right(reference: Reference, outputs: Sequence[Arrays], tf32: bool, chosen: Sequence[bool]) -> bool:
    """Whether outputs are right for the chosen cases, of which there is one at least."""
    cases = tuple(itertools.compress(reference.run.cases, chosen))
    given = itertools.compress(outputs, chosen)
    run = replace(reference.run, cases=cases)
    return bool(cases) and compare_outputs(run, lambda _: next(given), tf32=tf32, usual=reference.usual).passed


def _comparable(outputs: Arrays) -> dict[str, np.ndarray]:
    """bfloat16, which NumPy itself does not know, as float32."""
    return {name: a.astype(np.float32) if a.dtype.name == "bfloat16" else a for name, a in outputs.items()}


def _usual(recipe: Recipe) -> list[dict[str, tuple[int, ...]]]:
    return [{name: shapes.opt for name, shapes in profile.items()} for profile in recipe.profiles]


def _smallest(profile: Profile) -> dict[str, tuple[int, ...]] | None:
    """None where they are the usual ones, or hold nothing."""
    smallest = {name: shapes.min for name, shapes in profile.items()}
    usual = {name: shapes.opt for name, shapes in profile.items()}
    return None if smallest == usual or any(0 in shape for shape in smallest.values()) else smallest


def _drawn(recipe: Recipe, shapes: Mapping[str, tuple[int, ...]]) -> list[InputCase]:
    shown, _ = inline_attention(recipe.model)
    return list(draw_inputs(input_kinds(shown, match_model(shown).sites), shapes, VERIFICATION_SEED))

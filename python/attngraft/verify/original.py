"""The original's side of a comparison: run once, on every input, however many rewritten models are compared with it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorProto

from attngraft.errors import VerificationError
from attngraft.match import inline_attention, match_model
from attngraft.onnx_graph import HALF_NAMES, without_weights
from attngraft.verify.definition import has_attention
from attngraft.verify.inputs import InputCase, draw_inputs, input_kinds
from attngraft.verify.inside import MAX_INSIDE_ELEMENTS, inside_tensors, made_in
from attngraft.verify.progress import Progress, Ticker
from attngraft.verify.session import LoadFailure, Model, ReferenceSession, load_description, model_folder
from attngraft.verify.shapes import size_plans
from attngraft.verify.widen import narrowest_type, widened

__all__ = ["OriginalCase", "OriginalRun", "open_inside", "run_original", "wide_feeds"]

Outputs = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class OriginalCase:
    """One set of inputs and what the original gives for it.

    outputs    of the model as it is; None where ONNX Runtime cannot run it (bfloat16, mixed types, some masks).
    reference  of the model with Attention nodes as ONNX defines them and half types computed in float32; None for
               models that have neither, and for half types above 2 GB.
    accepted   a further result that is as good.
    """

    inputs: InputCase
    outputs: Outputs | None
    reference: Outputs | None
    accepted: Outputs | None = None

    def has_both(self, output: str) -> bool:
        """Whether an output is known in both forms."""
        return all(side is not None and output in side for side in (self.outputs, self.reference))

    def results(self, output: str) -> list[np.ndarray]:
        """All results that are as good as each other."""
        sides = (self.outputs, self.reference, self.accepted)
        return [side[output] for side in sides if side is not None]

    def either(self) -> Outputs:
        """The outputs as they are, or else the reference."""
        found = self.outputs if self.outputs is not None else self.reference
        assert found is not None  # run_original makes one of the two at least
        return found


@dataclass(frozen=True)
class OriginalRun:
    """All cases of one model. `description` is the model without its weights, `dtype` the narrowest type that it
    computes in (ONNX's number), `notes` what could not be tried and why, `inside` the tensors among the cases' outputs
    that are none of the model's."""

    description: ModelProto
    dtype: int
    cases: tuple[OriginalCase, ...]
    notes: tuple[str, ...]
    inside: tuple[str, ...] = ()

    def rounding(self, output: str) -> float | None:
        """How far the roundings of a half-type model usually take an output from the reference: the median over the
        cases of the largest difference, which a few cases of another kind (overflow, rows without a key) do not move.
        None when one of the two sides is missing."""
        errors = [
            _largest_difference(case.outputs[output], case.reference[output])
            for case in self.cases
            if case.has_both(output) and case.outputs[output].size
        ]
        return statistics.median(errors) if errors else None


def run_original(
    original: Model, shapes: Mapping[str, tuple[int, ...]] | None, seed: int, say: Progress
) -> OriginalRun:
    """Runs the original with several sets of sizes and every input pattern.

    Raises VerificationError when ONNX Runtime loads neither the model nor its float32 form, or accepts no sizes.
    """
    description = load_description(original)
    dtype = narrowest_type(description)
    defined = has_attention(description)
    run = _Run(description, shapes, seed, say)
    say("verify: running the original in ONNX Runtime")
    outputs = reference = None
    # The reference comes first, since it accepts more: ONNX Runtime's kernel takes not all masks that ONNX allows.
    if dtype != TensorProto.FLOAT:
        reference = run.outputs_of(
            lambda: widened(description, model_folder(original)), "original in float32", defined=defined, wide=True
        )
    elif defined:
        reference = run.outputs_of(lambda: original, "original by ONNX's definitions", defined=True)
    if dtype != TensorProto.BFLOAT16:
        outputs = run.outputs_of(lambda: original, "original")
    if outputs is None and reference is None:
        raise run.errors[-1]
    nothing = [None] * len(run.inputs)
    cases = map(OriginalCase, run.inputs, outputs or nothing, reference or nothing)
    return OriginalRun(
        without_weights(description), dtype, tuple(cases), (*run.notes, *map(_note, run.errors)), run.inside
    )


def _note(error: VerificationError) -> str:
    """What went wrong with one of two forms of the original, the other one being there."""
    return error.note if isinstance(error, LoadFailure) else str(error)


def open_inside(
    model: Model, what: str, defined: bool, inside: tuple[str, ...]
) -> tuple[ReferenceSession, tuple[str, ...]]:
    """A session with the tensors `inside` as further outputs, or without them where ONNX Runtime cannot give them."""
    if inside:
        try:
            return ReferenceSession(model, what, defined=defined, inside=inside), inside
        except VerificationError:  # the next attempt tells whether the model itself does not load
            pass
    return ReferenceSession(model, what, defined=defined), ()


def wide_feeds(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs for the float32 form of a model: half types become float32, the rest stays."""
    return {n: array.astype(np.float32) if array.dtype.name in HALF_NAMES else array for n, array in feeds.items()}


class _Run:
    """The inputs, which the first model that loads decides on, and what went wrong. One session at a time: two models
    in memory may be one too many."""

    def __init__(
        self, description: ModelProto, shapes: Mapping[str, tuple[int, ...]] | None, seed: int, say: Progress
    ) -> None:
        shown, _ = inline_attention(description)  # the masks of attention in local functions are masks too
        sites = match_model(shown).sites
        self._kinds = input_kinds(shown, sites)
        self.inside = made_in(description, inside_tensors(description, sites))
        self._plans = size_plans(self._kinds.specs, shapes, self._kinds.masks)
        self._seed = seed
        self._say = say
        self.inputs: list[InputCase] = []
        self.notes: list[str] = []
        self.errors: list[VerificationError] = []

    def outputs_of(
        self, model: Callable[[], Model], what: str, *, defined: bool = False, wide: bool = False
    ) -> list[Outputs | None] | None:
        """The outputs for all inputs, None for those that it does not run with; None for a model that does not load or
        run at all. `defined`: with
        Attention nodes as ONNX defines them. `wide`: the model has float32 inputs for half types."""
        feeds = wide_feeds if wide else dict
        ticker = Ticker(self._say, f"verify: {what}")
        try:
            session, self.inside = open_inside(model(), what, defined, self.inside)
            if not self.inputs:
                return self._first(session, feeds, ticker)
        except VerificationError as error:
            self.errors.append(error)
            return None
        return [self._attempt(session, feeds(case.feeds), case.label, ticker) for case in self.inputs]

    def _first(
        self,
        session: ReferenceSession,
        feeds: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]],
        ticker: Ticker,
    ) -> list[Outputs | None]:
        """Of each group of size plans, the first that runs, with all its patterns."""
        outputs: list[Outputs | None] = []
        refused: list[str] = []
        for group in self._plans:
            for shapes in group:
                cases = list(draw_inputs(self._kinds, shapes, self._seed))
                try:
                    outputs += [self._run_case(session, feeds(case.feeds), case.label, ticker) for case in cases]
                except VerificationError as error:
                    refused.append(str(error))
                    continue
                self.inputs += cases
                break
            else:
                self.notes += [f"not tried: {refused[-1]}"]
        if not outputs:
            self.notes.clear()
            raise VerificationError(f"{refused[0]}; give its input shapes with --shape name=1x3x224x224")
        return outputs

    def _attempt(
        self, session: ReferenceSession, feeds: Mapping[str, np.ndarray], label: str, ticker: Ticker
    ) -> Outputs | None:
        try:
            return self._run_case(session, feeds, label, ticker)
        except VerificationError as error:
            if not any(str(error) == str(known) for known in self.errors):
                self.errors.append(error)
            return None

    def _run_case(
        self, session: ReferenceSession, feeds: Mapping[str, np.ndarray], label: str, ticker: Ticker
    ) -> Outputs:
        """The outputs, without tensors from inside the model that are too large to keep."""
        outputs = session.run(feeds)
        ticker.step(label)
        kept = (n for n in outputs if n not in self.inside or outputs[n].size <= MAX_INSIDE_ELEMENTS)
        return {name: outputs[name] for name in kept}


def _largest_difference(first: np.ndarray, second: np.ndarray) -> float:
    """Over the elements that are finite on both sides."""
    both = np.isfinite(first.astype(np.float64)) & np.isfinite(second.astype(np.float64))
    return float(np.abs(first[both].astype(np.float64) - second[both].astype(np.float64)).max(initial=0.0))

"""A model file in, a rewritten and proved model file out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from attngraft.errors import RewriteError, VerificationError
from attngraft.lower import Repair, Target, choose_lowerings, lower_model, repair_model
from attngraft.lower.choose import AUTO
from attngraft.match import ModelSites, inline_attention, match_model
from attngraft.onnx_graph import StagedModel, load_model, stage_model, structure_fault
from attngraft.verify import OriginalRun, VerificationReport, compare_with, run_original, take_back
from attngraft.verify.progress import Progress, silent

__all__ = ["RewritePlan", "RewriteResult", "plan_model", "plan_rewrite", "rewrite_model", "write_rewrite"]

Shapes = Mapping[str, "tuple[int, ...]"]

REPAIRING = frozenset({AUTO, "native", "attention"})
"""The lowerings that are for TensorRT; "softmax" is for any runtime, and "keep" changes nothing."""

VERIFICATION_SEED = 0
"""Of the inputs: the same model gives the same verdict."""


@dataclass(frozen=True)
class RewritePlan:
    """A model that was read, repaired and matched, and what is to become of each site (`choices`, by name; `reasons`
    for those that are kept)."""

    source: Path
    model: onnx.ModelProto
    sites: ModelSites
    choices: Mapping[str, str]
    reasons: Mapping[str, str]
    target: Target | None = None
    """The TensorRT that the model is lowered for; None for any."""
    repairs: tuple[str, ...] = ()
    """What was mended or inlined beside the sites, a line each; what is written has it already."""
    unlowered: onnx.ModelProto | None = None
    """What is written in place of `model`, since no site is to be lowered: its local functions are still there."""

    @property
    def changes(self) -> bool:
        """Whether what is written will differ from the source."""
        return bool(self.lowered_names or self.repairs)

    @property
    def lowered(self) -> int:
        """How many sites are to be changed."""
        return len(self.lowered_names)

    @property
    def lowered_names(self) -> tuple[str, ...]:
        """The sites to be changed, in the model's order."""
        return tuple(site.name for site in self.sites.sites if self.choices.get(site.name, "keep") != "keep")

    def only(self, names: Sequence[str]) -> dict[str, str]:
        """The choices when, of the sites to be changed, only those in `names` are."""
        kept = frozenset(names)
        return {name: choice if name in kept else "keep" for name, choice in self.choices.items()}


@dataclass(frozen=True)
class RewriteResult:
    """What was written, what became of each site (`choices`, by name), why sites were kept, and the proof.

    `report` is None without verification, and when nothing was changed: the file is then the same model.
    `repairs` says what was mended beside the sites, a line each.
    `taken_back` names the sites whose lowering made the outputs differ, each with the difference; they are kept, and
    `reasons` says so too.
    """

    target: Path
    sites: ModelSites
    choices: Mapping[str, str]
    reasons: Mapping[str, str]
    lowered: int
    """How many sites were changed."""
    report: VerificationReport | None
    taken_back: Mapping[str, str] = field(default_factory=dict)
    repairs: tuple[str, ...] = ()


def rewrite_model(
    source: str | Path,
    output: str | Path,
    *,
    lower: str = "auto",
    verify: bool = True,
    shapes: Shapes | None = None,
    progress: Progress | None = None,
    target: Target | None = None,
) -> RewriteResult:
    """Rewrites the attention sites of `source` and writes `output`, whose file appears only when everything has worked.

    lower: "auto" (what measurements recommend), "keep", "native", "softmax" or "attention". verify: compare both models
    in ONNX Runtime first, and take back the sites that make them differ. shapes: input shapes for that comparison,
    where the model's symbols do not tell. progress: called with one-line reports. target: the TensorRT that the model
    is meant for; None for what suits all.

    Raises ModelError for the source, RewriteError for the lowering, VerificationError when nothing can be compared.
    """
    plan = plan_rewrite(source, lower, progress=progress, target=target)
    return write_rewrite(plan, output, verify=verify, shapes=shapes, progress=progress)


def plan_rewrite(
    source: str | Path, lower: str, *, progress: Progress | None = None, target: Target | None = None
) -> RewritePlan:
    """The first half of `rewrite_model`: reads, repairs and matches the model and chooses lowerings. Writes nothing."""
    say = progress or silent
    source = Path(source)
    say(f"rewrite: reading {source}")
    return plan_model(load_model(source), source, lower, target)


def plan_model(given: onnx.ModelProto, source: Path, lower: str, target: Target | None = None) -> RewritePlan:
    """The plan for a model that was read from `source`, and is not changed.

    Local functions that hold attention are inlined, but not in vain: if no site is to be lowered, they stay.
    """
    inlined, functions = (given, ()) if lower == "keep" else inline_attention(given)
    model, repairs = _repaired(inlined, lower, target)
    sites = match_model(model)
    choices, reasons = choose_lowerings(sites, lower, target)
    plan = RewritePlan(source, model, sites, choices, reasons, target, tuple(map(str, repairs)))
    if not functions:
        return plan
    inlinings = tuple(str(Repair(f"function {f.domain}::{f.name}", "inlined", f.reason)) for f in functions)
    if plan.lowered:
        return replace(plan, repairs=(*inlinings, *plan.repairs))
    model, repairs = _repaired(given, lower, target)
    return replace(plan, unlowered=model, repairs=tuple(map(str, repairs)))


def _repaired(model: onnx.ModelProto, lower: str, target: Target | None) -> tuple[onnx.ModelProto, tuple[Repair, ...]]:
    return repair_model(model, target) if lower in REPAIRING else (model, ())


def write_rewrite(
    plan: RewritePlan,
    output: str | Path,
    *,
    verify: bool = True,
    shapes: Shapes | None = None,
    progress: Progress | None = None,
    original: OriginalRun | None = None,
) -> RewriteResult:
    """The second half of `rewrite_model`: lowers, compares and writes. `original`: what run_original gave for the
    source, in place of running it on `shapes`."""
    say = progress or silent
    output = Path(output)
    names = plan.lowered_names
    say(f"rewrite: {len(names)} of {len(plan.sites.sites)} attention sites to lower, {len(plan.repairs)} repairs")
    proof = _Proof(plan, output, shapes, say, original) if verify and plan.changes else None
    taken_back: dict[str, str] = {}
    with _staged(plan, names, output) as staged:
        failure = proof.failure_of_file(staged.path) if proof else None
        if failure is None:
            staged.commit()
    if proof and failure is not None:
        names, taken_back = proof.provable(names, failure)
        with _staged(plan, names, output) as staged:
            staged.commit()
    say(f"rewrite: wrote {output}")
    reasons = {**plan.reasons, **{name: f"taken back: {reason}" for name, reason in taken_back.items()}}
    report = proof.report if proof and (names or plan.repairs) else None
    return RewriteResult(output, plan.sites, plan.only(names), reasons, len(names), report, taken_back, plan.repairs)


class _Proof:
    """Trials of one plan against one run of its original. `report` is that of the last trial that passed."""

    def __init__(
        self, plan: RewritePlan, output: Path, shapes: Shapes | None, say: Progress, run: OriginalRun | None
    ) -> None:
        self._plan = plan
        self._output = output
        self._say = say
        self._run = run or run_original(plan.source, shapes, VERIFICATION_SEED, say)
        self.report: VerificationReport | None = None

    def provable(self, names: tuple[str, ...], failure: str) -> tuple[tuple[str, ...], dict[str, str]]:
        """Of sites that fail together, those that can be lowered with equal outputs, and the others with what
        differs. Raises VerificationError when the repairs alone make the outputs differ."""
        self._say(f"rewrite: {failure}; looking for the site that causes it")
        broken = self.failure_of(()) if self._plan.repairs else None
        if broken is not None:
            raise VerificationError(
                f"{self._plan.source}: {broken} with no site lowered, so a repair is wrong ({self._plan.repairs[0]}); "
                "use --lower softmax or keep, which repair nothing, and report the model"
            )
        kept, taken_back = take_back(names, self.failure_of)
        for name, reason in taken_back.items():
            self._say(f"rewrite: {name} is taken back: {reason}")
        return kept, taken_back

    def failure_of(self, names: tuple[str, ...]) -> str | None:
        """What is wrong when these sites are lowered; None if the outputs are equal."""
        with _staged(self._plan, names, self._output) as staged:
            return self.failure_of_file(staged.path)

    def failure_of_file(self, path: Path) -> str | None:
        """What is wrong with a rewritten model; None if its outputs are equal. Raises VerificationError when the
        original's outputs are such that nothing can be compared."""
        try:
            report = compare_with(self._run, path, self._say)
        except VerificationError as error:
            return str(error)
        if not report.is_comparable:
            report.raise_if_failed()
        if report.passed:
            self.report = report
        return report.failure


@contextmanager
def _staged(plan: RewritePlan, names: Sequence[str], output: Path) -> Iterator[StagedModel]:
    """The model with these sites lowered, complete, checked, and under a temporary name."""
    unlowered = plan.model if plan.unlowered is None else plan.unlowered
    rewritten = lower_model(plan.model, plan.sites, plan.only(names), plan.target) if names else unlowered
    fault = structure_fault(rewritten) if names else None
    # What the checker finds in the source already is not the rewrite's fault.
    if fault is not None and structure_fault(plan.model) is None:
        raise RewriteError(
            f"{plan.source}: the rewritten model is not valid ONNX ({fault}); keep its sites and report it"
        )
    with stage_model(rewritten, output, plan.source.parent) as staged:
        yield staged

"""A model file in, a rewritten and proved model file out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from attngraft.errors import RewriteError
from attngraft.lower import choose_lowerings, lower_model
from attngraft.match import ModelSites, match_model
from attngraft.onnx_graph import load_model, stage_model
from attngraft.verify import VerificationReport, verify_models

__all__ = ["RewritePlan", "RewriteResult", "plan_rewrite", "rewrite_model", "write_rewrite"]


@dataclass(frozen=True)
class RewritePlan:
    """A model that was read and matched, and what is to become of each site (`choices`, by name; `reasons` for those
    that are kept)."""

    source: Path
    model: onnx.ModelProto
    sites: ModelSites
    choices: Mapping[str, str]
    reasons: Mapping[str, str]

    @property
    def lowered(self) -> int:
        """How many sites are to be changed."""
        return sum(choice != "keep" for choice in self.choices.values())


@dataclass(frozen=True)
class RewriteResult:
    """What was written, what became of each site (`choices`, by name), why sites were kept, and the proof.

    `report` is None without verification, and when no site was lowered: the file is then the same model.
    """

    target: Path
    sites: ModelSites
    choices: Mapping[str, str]
    reasons: Mapping[str, str]
    lowered: int
    """How many sites were changed."""
    report: VerificationReport | None


def rewrite_model(
    source: str | Path,
    target: str | Path,
    *,
    lower: str = "auto",
    verify: bool = True,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> RewriteResult:
    """Rewrites the attention sites of `source` and writes `target`, whose file appears only when everything has worked.

    lower: "auto" (what measurements recommend), "keep" or "softmax". verify: compare both models in ONNX Runtime first.
    shapes: input shapes for that comparison, where the model's symbols do not tell. progress: called with one-line
    reports.

    Raises ModelError for the source, RewriteError for the lowering, VerificationError when the results differ.
    """
    plan = plan_rewrite(source, lower, progress=progress)
    return write_rewrite(plan, target, verify=verify, shapes=shapes, progress=progress)


def plan_rewrite(source: str | Path, lower: str, *, progress: Callable[[str], None] | None = None) -> RewritePlan:
    """The first half of `rewrite_model`: reads and matches the model and chooses lowerings. Writes nothing."""
    say = progress or (lambda message: None)
    source = Path(source)
    say(f"rewrite: reading {source}")
    model = load_model(source)
    sites = match_model(model)
    choices, reasons = choose_lowerings(sites, lower)
    return RewritePlan(source, model, sites, choices, reasons)


def write_rewrite(
    plan: RewritePlan,
    target: str | Path,
    *,
    verify: bool = True,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    progress: Callable[[str], None] | None = None,
) -> RewriteResult:
    """The second half of `rewrite_model`: lowers, compares and writes."""
    say = progress or (lambda message: None)
    target = Path(target)
    say(f"rewrite: {plan.lowered} of {len(plan.sites.sites)} attention sites to lower")
    rewritten = lower_model(plan.model, plan.sites, plan.choices) if plan.lowered else plan.model
    with stage_model(rewritten, target, plan.source.parent) as staged:
        report = None
        if plan.lowered:
            _check(staged.path, plan.source)
        if plan.lowered and verify:
            report = verify_models(plan.source, staged.path, shapes=shapes, progress=progress)
            report.raise_if_failed()
        staged.commit()
    say(f"rewrite: wrote {target}")
    return RewriteResult(target, plan.sites, plan.choices, plan.reasons, plan.lowered, report)


def _check(written: Path, source: Path) -> None:
    """The ONNX checker on the new file; what it finds in the source already is not the rewrite's fault."""
    try:
        onnx.checker.check_model(str(written))
    except onnx.checker.ValidationError as error:
        try:
            onnx.checker.check_model(str(source))
        except onnx.checker.ValidationError:
            return
        first = " ".join(str(error).split())[:200]
        raise RewriteError(
            f"{source}: the rewritten model is not valid ONNX ({first}); keep its sites and report it"
        ) from None

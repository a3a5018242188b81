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

__all__ = ["RewriteResult", "rewrite_model"]


@dataclass(frozen=True)
class RewriteResult:
    """What was written, what became of each site (`choices`, by name), why sites were kept, and the proof.

    `report` is None without verification, and when no site was lowered: the file is then the same model.
    """

    target: Path
    sites: ModelSites
    choices: Mapping[str, str]
    reasons: Mapping[str, str]
    report: VerificationReport | None

    @property
    def lowered(self) -> int:
        """How many sites were changed."""
        return sum(choice != "keep" for choice in self.choices.values())


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
    say = progress or (lambda message: None)
    source, target = Path(source), Path(target)
    say(f"rewrite: reading {source}")
    model = load_model(source)
    sites = match_model(model)
    choices, reasons = choose_lowerings(sites, lower)
    lowered = sum(choice != "keep" for choice in choices.values())
    say(f"rewrite: {lowered} of {len(sites.sites)} attention sites to lower")
    rewritten = lower_model(model, sites, choices) if lowered else model
    with stage_model(rewritten, target, source.parent) as staged:
        report = None
        if lowered:
            _check(staged.path, source)
        if lowered and verify:
            report = verify_models(source, staged.path, shapes=shapes, progress=progress)
            report.raise_if_failed()
        staged.commit()
    say(f"rewrite: wrote {target}")
    return RewriteResult(target, sites, choices, reasons, report)


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

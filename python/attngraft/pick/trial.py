"""One candidate: rewritten, built and checked. In: a plan. Out: an engine with its proof, or one line why not."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from attngraft.engine import Origin, build_engine
from attngraft.engine.builder import BuildResult
from attngraft.engine.plan import reason_of
from attngraft.engine.sidecar import SiteCard, WorstDifference
from attngraft.errors import AttngraftError, BuildError, WriteError
from attngraft.match import ModelSites
from attngraft.pick.candidates import KEEP
from attngraft.pick.recipe import Recipe
from attngraft.pick.reference import Reference, Run
from attngraft.pick.speed import Speed
from attngraft.rewrite import RewritePlan, write_rewrite
from attngraft.verify import OriginalRun, VerificationReport, compare_outputs
from attngraft.verify.progress import Progress

__all__ = ["Trial", "build_trial", "check_trial", "failed_trial", "site_cards", "worst_difference"]


@dataclass(frozen=True)
class Trial:
    """What became of one candidate.

    plan        how the sites were lowered; None where the rewriter refused.
    failure     why it cannot be picked, one line; None if it can.
    same_as     the candidate before it that is the same model; it was not built again then.
    built       what was built, under a temporary name.
    report      its outputs against the reference's. speed  its GPU time, of the last timing.
    """

    name: str
    plan: RewritePlan | None = None
    failure: str | None = None
    same_as: str | None = None
    built: BuildResult | None = None
    sites: tuple[SiteCard, ...] = ()
    report: VerificationReport | None = None
    speed: Speed | None = None
    seconds: float = 0.0
    taken_back: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_candidate(self) -> bool:
        """Whether it is an engine of its own that gives the right results."""
        return self.failure is None and self.built is not None and self.report is not None

    @property
    def lowered(self) -> dict[str, int]:
        """Number of sites by lowering."""
        return dict(Counter(site.lowering for site in self.sites))

    @property
    def nan(self) -> int:
        """Elements that are NaN in the reference, and were not compared."""
        return sum(row.nan_in_original for row in self.report.outputs) if self.report is not None else 0


def failed_trial(trial: Trial, error: AttngraftError, folder: Path) -> Trial:
    """The trial of a candidate that came to an error; raises it again where no other candidate would fare better.
    `folder`: that of temporary files, which means nothing to a reader."""
    if isinstance(error, WriteError):
        raise error
    reason = reason_of(error) if isinstance(error, BuildError) else str(error)
    return replace(trial, failure=" ".join(reason.replace(f"{folder}/", "").split()))


def build_trial(
    recipe: Recipe,
    trial: Trial,
    engine: Path,
    original: OriginalRun | None,
    log_path: Path | None,
    progress: Callable[[str], None] | None,
) -> Trial:
    """Rewrites and builds the plan of a trial. `original`: the run that its rewrite is proved against; None: it is not
    proved. A refusal is in the trial; raises WriteError when a file cannot be written."""
    started = time.monotonic()
    plan = trial.plan
    assert plan is not None
    with tempfile.TemporaryDirectory(prefix="model-", dir=engine.parent) as folder:
        try:
            model = recipe.source
            if plan.changes:
                model = Path(folder) / recipe.source.name
                result = write_rewrite(plan, model, verify=original is not None, progress=progress, original=original)
                plan = replace(plan, choices=dict(result.choices))
                trial = replace(
                    trial, plan=plan, sites=site_cards(plan.sites, plan.choices), taken_back=dict(result.taken_back)
                )
                if trial.taken_back and not result.lowered:
                    return replace(trial, failure=f"taken back: {next(iter(trial.taken_back.values()))}")
            built = build_engine(
                model,
                engine,
                progress=progress,
                log_path=log_path,
                timing_cache=recipe.timing_cache,
                origin=Origin(recipe.source, recipe.digest),
                **recipe.build_options,
            )
        except AttngraftError as error:
            return failed_trial(trial, error, Path(folder))
    return replace(trial, built=built, sites=site_cards(plan.sites, plan.choices), seconds=time.monotonic() - started)


def check_trial(recipe: Recipe, trial: Trial, reference: Reference, run: Run, folder: Path, say: Progress) -> Trial:
    """The trial with the comparison of its engine, and the failure that it shows, if any."""
    assert trial.built is not None
    try:
        with run(trial.built.engine_path) as compute:
            what = f"engine {trial.name}"
            report = compare_outputs(
                reference.run, compute, tf32=recipe.tf32, usual=reference.usual, what=what, say=say
            )
    except AttngraftError as error:
        return failed_trial(trial, error, folder)
    return replace(trial, failure=report.failure, report=report)


def site_cards(sites: ModelSites, choices: Mapping[str, str]) -> tuple[SiteCard, ...]:
    """Every site of a model with its lowering."""
    return tuple(SiteCard(site.name, choices.get(site.name, KEEP)) for site in sites.sites)


def worst_difference(report: VerificationReport, of: str, against: str) -> WorstDifference | None:
    """The output that came nearest to its tolerance; None if nothing was compared."""
    rows = [row for row in report.outputs if row.compared]
    if not rows:
        return None
    row = max(rows, key=lambda item: item.worst / item.tolerance if item.tolerance else item.worst)
    nan = sum(item.nan_in_original for item in report.outputs)
    return WorstDifference(of, against, row.name, row.worst, row.tolerance, nan)

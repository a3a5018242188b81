"""All candidates of one model, tried one after the other. In: a recipe. Out: trials, and the verdict over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from attngraft.errors import AttngraftError, BuildError, RewriteError, VerificationError
from attngraft.pick.candidates import KEEP, UNIFORM, SiteClass, graph_digest, plan_uniform, site_classes
from attngraft.pick.mixes import combined_mix, single_mixes
from attngraft.pick.recipe import Recipe
from attngraft.pick.reference import (
    Reference,
    Run,
    from_onnx_runtime,
    from_plain_engine,
    plain_outputs,
    repeating,
    with_plain_engine,
)
from attngraft.pick.speed import Timer, measure
from attngraft.pick.trial import Trial, build_trial, check_trial, failed_trial
from attngraft.pick.verdict import Verdict, choose
from attngraft.rewrite import RewritePlan
from attngraft.verify import OriginalRun
from attngraft.verify.progress import Progress, silent

__all__ = ["Search"]


class Search:
    """Trials so far, what they are compared with, and the models that were built already; `_original` is what rewritten
    models are proved against in ONNX Runtime before they are built, None where they are not. What is written goes to
    `folder`."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        run: Run,
        timer: Timer,
        progress: Callable[[str], None] | None,
        log_path: Path | None,
    ) -> None:
        cached = recipe.timing_cache is not None or recipe.backend.is_rtx  # TensorRT-RTX has no timing cache
        self._recipe = recipe if cached else replace(recipe, timing_cache=folder / "timing.cache")
        self._folder = folder
        self._run = run
        self._timer = timer
        self._progress = progress
        self._say: Progress = progress or silent
        self._log_path = log_path
        self._built: dict[str, str] = {}
        self._original: OriginalRun | None = None
        self._reference: Reference | None = None
        self._no_reference = ""
        self.trials: list[Trial] = []
        self.classes: tuple[SiteClass, ...] = ()
        """Of the sites that mixes tell apart; empty where there is no mix."""

    @property
    def reference(self) -> Reference:
        """What engines are compared with; there is one when `find` has returned."""
        assert self._reference is not None
        return self._reference

    def find(self) -> Verdict:
        """Tries everything. Raises BuildError when nothing is left."""
        self._ask_onnx_runtime()
        for name in UNIFORM:
            self._try(name, lambda name=name: plan_uniform(self._recipe, name))
        self._raise_if_none()
        best = self._timed()
        return self._mixed(best)

    def _mixed(self, best: Verdict) -> Verdict:
        """The verdict with mixes of the winner among the candidates."""
        mixes = single_mixes(self._recipe, plan_uniform(self._recipe, "auto"), best.winner)
        if not mixes:
            return best
        self.classes = site_classes(mixes[0].start.sites)
        for mix in mixes:
            self._try(mix.name, lambda mix=mix: mix.plan)
        start, best = best.winner.name, self._timed()
        combined = combined_mix(mixes, self.trials, start)
        if combined is None:
            return best
        name, plan = combined
        self._try(name, lambda: plan)
        return self._timed()

    def _ask_onnx_runtime(self) -> None:
        try:
            self._reference = from_onnx_runtime(self._recipe, self._say)
            if self._recipe.verify:
                self._original = self._reference.run
        except VerificationError as error:
            self._no_reference = str(error)

    def _try(self, name: str, plan_of: Callable[[], RewritePlan]) -> None:
        """Adds the trial of one candidate."""
        self._say(f"pick: candidate {name}")
        try:
            plan = plan_of()
        except RewriteError as error:
            trial = failed_trial(Trial(name), error, self._folder)
        else:
            trial = self._same_or_built(name, plan)
        self.trials.append(trial)
        self._say(f"pick: {name}: {_outcome(trial)}")

    def _same_or_built(self, name: str, plan: RewritePlan) -> Trial:
        first = self._built.setdefault(graph_digest(self._recipe, plan), name)
        if first != name:
            return Trial(name, plan, same_as=first)
        number = len(self.trials)
        log_path = None if self._log_path is None else self._log_path.with_name(f"{self._log_path.name}.{number}")
        engine = self._folder / f"{number}.engine"
        trial = build_trial(self._recipe, Trial(name, plan), engine, self._original, log_path, self._progress)
        if trial.taken_back and trial.failure is None:
            # With sites taken back it may be what was built before.
            first = self._built.setdefault(graph_digest(self._recipe, trial.plan), name)
            if first != name:
                return replace(trial, same_as=first, built=None)
        return self._checked(trial)

    def _checked(self, trial: Trial) -> Trial:
        if trial.failure is not None:
            return trial
        run = self._run
        if trial.name == KEEP:
            try:
                run = self._ask_plain_engine(trial.built.engine_path)
            except AttngraftError as error:
                return failed_trial(trial, error, self._folder)
        if self._reference is None:
            return replace(trial, failure=f"nothing to compare it with: {self._no_reference}")
        return check_trial(self._recipe, trial, self._reference, run, self._folder, self._say)

    def _ask_plain_engine(self, engine: Path) -> Run:
        """Learns what TensorRT makes of the model as it is, beside ONNX Runtime's results or in their place. Returns
        what gives that engine's results for its own check."""
        if self._reference is None:
            self._reference = from_plain_engine(self._recipe, engine, self._run, self._no_reference)
            return self._run
        outputs = plain_outputs(self._reference, engine, self._run)
        self._reference = with_plain_engine(self._reference, outputs, self._recipe.tf32)
        return repeating(outputs)

    def _raise_if_none(self) -> None:
        if any(trial.is_candidate for trial in self.trials):
            return
        told = "; ".join(f"{trial.name}: {trial.failure or f'the same as {trial.same_as}'}" for trial in self.trials)
        raise BuildError(f"{self._recipe.source}: no candidate is left: {told}")

    def _timed(self) -> Verdict:
        """Times all candidates anew, in turns."""
        alive = [trial for trial in self.trials if trial.is_candidate]
        self._say(f"pick: timing {len(alive)} engines in turns")
        engines = [trial.built.engine_path for trial in alive]
        speeds = measure(engines, self.reference.feeds, self._timer, self._progress)
        self.trials = [
            replace(trial, speed=speeds[trial.built.engine_path]) if trial.is_candidate else trial
            for trial in self.trials
        ]
        return choose([trial for trial in self.trials if trial.is_candidate])


def _outcome(trial: Trial) -> str:
    if trial.same_as is not None:
        return f"the same model as {trial.same_as}"
    return f"failed: {trial.failure}" if trial.failure is not None else "built, and right"

"""Other lowerings for some classes of sites only. In: the fastest candidate that treats all alike. Out: mixes to try.

Each mix changes one class; the changes that are faster by more than the noise are then put together. So a model with
few classes costs few builds, and what is put together is built, checked and timed like any other candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from attngraft.errors import RewriteError
from attngraft.lower import choose_lowerings
from attngraft.pick.candidates import KEEP, SiteClass, mix_plan, other_lowerings, site_classes
from attngraft.pick.recipe import Recipe
from attngraft.pick.speed import Speed, gain_us, noise_us
from attngraft.pick.trial import Trial
from attngraft.rewrite import RewritePlan

__all__ = ["MAX_MIXES", "Mix", "combined_mix", "single_mixes"]

MAX_MIXES = 9
"""Three classes with three other lowerings each: TensorRT builds a large model for minutes."""


@dataclass(frozen=True)
class Mix:
    """A candidate, `start` but for the sites of one class."""

    name: str
    start: RewritePlan
    group: SiteClass
    lowering: str

    @property
    def plan(self) -> RewritePlan:
        return mix_plan(self.start, {self.group: self.lowering})


def single_mixes(recipe: Recipe, base: RewritePlan, winner: Trial) -> tuple[Mix, ...]:
    """The mixes that differ from the winner in one class; none where all sites are of one. The largest classes come
    first, and MAX_MIXES are the most.

    base: a plan for the model as it is repaired for TensorRT, whose sites are mixed.
    """
    classes = site_classes(base.sites)
    if len(classes) < 2:
        return ()
    start = replace(base, choices=_choices(recipe, base, winner), reasons={}, unlowered=None)
    mixes = [
        Mix(f"{winner.name}, {group.letter} {lowering}", start, group, lowering)
        for group in sorted(classes, key=lambda group: -len(group.names))
        for lowering in other_lowerings(start, group, recipe.target)
    ]
    return tuple(mixes[:MAX_MIXES])


def combined_mix(mixes: Sequence[Mix], trials: Sequence[Trial], start: str) -> tuple[str, RewritePlan] | None:
    """Name and plan of the mix with the best lowering of each class, of those that were timed as `mixes`; None where
    fewer than two classes gain over the candidate `start`."""
    speeds = {trial.name: trial.speed for trial in trials if trial.speed is not None}
    if start not in speeds:
        return None
    best: dict[SiteClass, tuple[float, str]] = {}
    for mix in mixes:
        gain = _gain(speeds, mix.name, start)
        if gain > best.get(mix.group, (0.0, ""))[0]:
            best[mix.group] = (gain, mix.lowering)
    if len(best) < 2:
        return None
    chosen = {group: lowering for group, (_, lowering) in best.items()}
    told = ", ".join(f"{group.letter} {lowering}" for group, lowering in chosen.items())
    return f"{start}, {told}", mix_plan(mixes[0].start, chosen)


def _gain(speeds: Mapping[str, Speed], name: str, start: str) -> float:
    """Microseconds by which it is faster than `start`; 0 within the noise."""
    if name not in speeds:
        return 0.0
    gain = gain_us(speeds[name], speeds[start])
    return gain if gain > noise_us(speeds[name], speeds[start]) else 0.0


def _choices(recipe: Recipe, base: RewritePlan, winner: Trial) -> dict[str, str]:
    """What the winner gives each site of `base`."""
    try:
        choices, _ = choose_lowerings(base.sites, winner.name, recipe.target)
    except RewriteError:  # the sites that take it are none of the repaired model's
        choices = {site.name: KEEP for site in base.sites.sites}
    return {name: KEEP if name in winner.taken_back else lowering for name, lowering in choices.items()}

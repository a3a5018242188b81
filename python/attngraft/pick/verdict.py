"""Which of the timed engines is kept. In: trials with speeds. Out: the winner, and by how much it wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attngraft.pick.candidates import KEEP
from attngraft.pick.speed import gain_us, noise_us
from attngraft.pick.trial import Trial

__all__ = ["Verdict", "choose"]


@dataclass(frozen=True)
class Verdict:
    """The winner; those that it ties with, by name; and what it gains.

    over_plain  time of the model as it is over the winner's; None where that is no candidate. 1 where it is the winner.
    lead        time of the fastest that it does not tie with, over its own; None where there is no other.
    """

    winner: Trial
    ties: tuple[str, ...]
    over_plain: float | None
    lead: float | None

    @property
    def gains_nothing(self) -> bool:
        """Whether the model as it is was picked, or ties with what was."""
        return self.winner.name == KEEP or KEEP in self.ties


def choose(trials: Sequence[Trial]) -> Verdict:
    """The fastest; of those that tie with it, the one with the fewest plugin layers, then with the fewest lowered
    sites. Each trial has an engine and a speed; there is one at least."""
    fastest = min(trials, key=_us)
    untied = [_us(trial) for trial in trials if not _ties(fastest, trial)]
    # An engine whose own times scatter widely does not tie past a steady one that is faster.
    tied = [trial for trial in trials if _ties(fastest, trial) and _us(trial) <= min(untied, default=_us(trial))]
    winner = min(tied, key=lambda trial: (trial.built.plugin_layers, _changed(trial), _us(trial)))
    plain = next((trial for trial in trials if trial.name == KEEP), None)
    slower = [_us(trial) for trial in trials if trial not in tied]
    return Verdict(
        winner,
        tuple(trial.name for trial in tied if trial is not winner),
        None if plain is None else _us(plain) / _us(winner),
        min(slower) / _us(winner) if slower else None,
    )


def _ties(fastest: Trial, other: Trial) -> bool:
    return other is fastest or gain_us(fastest.speed, other.speed) <= noise_us(fastest.speed, other.speed)


def _us(trial: Trial) -> float:
    return trial.speed.us


def _changed(trial: Trial) -> int:
    """Whether anything is changed at all comes first: repairs are no sites."""
    repaired = trial.name != KEEP
    return repaired + sum(count for lowering, count in trial.lowered.items() if lowering != KEEP)

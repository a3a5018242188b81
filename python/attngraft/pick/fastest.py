"""The fastest correct engine of a model. In: a recipe. Out: the engine, its card, and what every candidate gave."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attngraft.engine.device import describe_device
from attngraft.engine.files import move_together, write_atomically
from attngraft.engine.sidecar import card_path, read_card
from attngraft.errors import CaptureError, MissingDependency
from attngraft.pick.candidates import SiteClass
from attngraft.pick.recipe import Recipe
from attngraft.pick.reference import Arrays, Run
from attngraft.pick.search import Search
from attngraft.pick.speed import EngineSamples, Timer
from attngraft.pick.trial import Trial, worst_difference
from attngraft.pick.verdict import Verdict

__all__ = ["PickResult", "pick_fastest"]


@dataclass(frozen=True)
class PickResult:
    """The picked engine, in its place, and how it was found.

    trials   every candidate, in the order in which they were tried; the engines that were not picked are gone.
    against  what engines were compared with. classes: of sites that mixes tell apart.
    """

    engine_path: Path
    label: str
    """The TensorRT, with its version."""
    verdict: Verdict
    trials: tuple[Trial, ...]
    against: str
    classes: tuple[SiteClass, ...]
    notes: tuple[str, ...]
    seconds: float


def pick_fastest(
    recipe: Recipe,
    *,
    run: Run | None = None,
    timer: Timer | None = None,
    progress: Callable[[str], None] | None = None,
    log_path: Path | None = None,
) -> PickResult:
    """Builds the model as it is, with each lowering, and with mixes of them; checks every engine on inputs with all
    patterns of masks, times those that are right in turns, and keeps the fastest with its card.

    run, timer: what runs and times engines, by default a Session and time_engines, which need a GPU. log_path: where
    TensorRT's messages go, `.0`, `.1`, ... behind the name, by the candidate's number in the result.
    Raises BuildError when no candidate is left, WriteError when a file cannot be written (the engine's place stays as
    it was), MissingDependency without a GPU.
    """
    started = time.monotonic()
    if (run is None or timer is None) and describe_device() is None:
        raise MissingDependency(
            "--pick fastest runs and times engines, and there is no NVIDIA GPU here; pick where the engine is to run, "
            "or build without it"
        )
    with tempfile.TemporaryDirectory(prefix=".attngraft-", dir=recipe.engine.absolute().parent) as folder:
        search = Search(recipe, Path(folder), run or _session, timer or _time_engines, progress, log_path)
        verdict = search.find()
        _install(recipe, verdict.winner, search.reference.against)
    notes = (*search.reference.run.notes, *search.reference.notes)
    return PickResult(
        recipe.engine,
        recipe.backend.label,
        verdict,
        tuple(search.trials),
        search.reference.against,
        search.classes,
        tuple(dict.fromkeys(notes)),
        time.monotonic() - started,
    )


def _install(recipe: Recipe, winner: Trial, against: str) -> None:
    """Puts the winner's engine in its place, with a card that says what it is and what was found."""
    assert winner.built is not None and winner.report is not None
    staged = winner.built.engine_path
    card = read_card(staged)
    assert card is not None
    worst = worst_difference(winner.report, "engine", against)
    text = replace(card, sites=winner.sites, worst_difference=worst).to_json()
    write_atomically({card_path(staged): text.encode()})
    move_together({staged: recipe.engine, card_path(staged): card_path(recipe.engine)})


@contextmanager
def _session(engine: Path) -> Iterator[Callable[[Arrays], Arrays]]:
    from attngraft.runtime import Session

    with Session(engine) as session:
        yield session.run


def _time_engines(engines: Sequence[Path], inputs: Arrays, **options: Any) -> Sequence[EngineSamples]:
    """Graph replays, or plain runs of all engines where one of them cannot be captured."""
    from attngraft.runtime.timing import time_engines

    try:
        return time_engines(engines, inputs, modes=("graph",), **options)
    except CaptureError as error:
        if options.get("progress") is not None:
            options["progress"](f"pick: timing plain runs, since an engine cannot be captured: {error}")
        return time_engines(engines, inputs, modes=("plain",), **options)

"""Reports from long work: how many of how many are done, and for how long it has been going on."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Progress", "Ticker", "silent"]

Progress = Callable[[str], None]

SECONDS_BETWEEN = 5.0
"""Short work says nothing; long work says something often enough to be seen alive."""


def silent(_: str) -> None:
    """The progress of those who asked for none."""


class Ticker:
    """Counts steps of work and reports at most every SECONDS_BETWEEN."""

    def __init__(self, say: Progress, what: str) -> None:
        self._say = say
        self._what = what
        self._start = self._last = time.monotonic()
        self._done = 0

    def step(self, label: str) -> None:
        """One step is done; `label` names it."""
        self._done += 1
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN:
            self._last = now
            self._say(f"{self._what}: {self._done} done in {now - self._start:.0f} s, last {label}")

"""Jobs in forked processes, a few at a time: a crash or a hang costs one job, and imports are paid once."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

__all__ = ["Outcome", "run_forked"]

JobT = TypeVar("JobT")

POLL_SECONDS = 1.0
MAX_REASON = 300
"""Characters of a failure's first line that are kept."""


@dataclass(frozen=True)
class Outcome(Generic[JobT]):
    """What became of a job: its value, or the reason of the failure in one line."""

    job: JobT
    value: Any
    error: str | None
    seconds: float


def run_forked(
    jobs: Iterable[JobT], work: Callable[[JobT], Any], *, processes: int = 2, time_limit: float = 300.0
) -> Iterator[Outcome[JobT]]:
    """Yields an outcome for every job, in the order in which they end. `work` runs in a child of its own, whose value
    must be picklable; the child's output is discarded. `time_limit`: seconds for one job."""
    pending = iter(jobs)
    running: list[_Child[JobT]] = []
    while True:
        while len(running) < processes and (job := next(pending, _NOTHING)) is not _NOTHING:
            running.append(_Child(job, work))
        if not running:
            return
        wait([child.reader for child in running], timeout=POLL_SECONDS)
        for child in list(running):
            outcome = child.outcome(time_limit)
            if outcome is not None:
                running.remove(child)
                yield outcome


_NOTHING: Any = object()


class _Child(Generic[JobT]):
    def __init__(self, job: JobT, work: Callable[[JobT], Any]) -> None:
        context = multiprocessing.get_context("fork")
        self.reader, writer = context.Pipe(duplex=False)
        self._job, self._started = job, time.monotonic()
        self._process = context.Process(target=_run, args=(writer, work, job))
        self._process.start()
        writer.close()

    def outcome(self, time_limit: float) -> Outcome[JobT] | None:
        """None while it runs within its time."""
        if self.reader.poll():
            try:
                value, error = self.reader.recv()
            except EOFError:  # it ended without a word
                self._process.join()
                value, error = None, f"the process died with exit code {self._process.exitcode}"
        elif time.monotonic() - self._started > time_limit:
            self._process.kill()
            value, error = None, f"stopped after {time_limit:.0f} s"
        else:
            return None
        self._process.join()
        self.reader.close()
        return Outcome(self._job, value, error, time.monotonic() - self._started)


def _run(writer: Connection, work: Callable[[JobT], Any], job: JobT) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        result = work(job), None
    except BaseException as error:  # the child ends here, so whatever was raised becomes the job's reason
        result = None, _reason(error)
    writer.send(result)
    writer.close()
    os._exit(0)  # without the parent's handlers at exit


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text}"[:MAX_REASON]

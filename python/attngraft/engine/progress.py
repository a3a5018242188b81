"""How far a build is. In: TensorRT's progress callbacks. Out: one-line reports to a function, now and then."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

__all__ = ["BuildProgress"]

REPORT_INTERVAL_S = 1.0
"""At most one report of steps a second: TensorRT counts thousands of steps."""


class BuildProgress:
    """Reports phases at once and steps at intervals. `report` gets one line without a line break, or is None."""

    def __init__(self, report: Callable[[str], None] | None) -> None:
        self._report = report
        self._last = 0.0
        self._phases: dict[str, int] = {}
        self._lock = threading.Lock()
        self._failure: BaseException | None = None

    def phase(self, text: str) -> None:
        """A step of the whole build, always reported."""
        if self._report is not None:
            self._report(text)

    def step(self, phase: str, step: int) -> None:
        """A step inside TensorRT, reported when the last report is old enough."""
        with self._lock:
            total, now = self._phases.get(phase, 0), time.monotonic()
            if self._report is None or now - self._last < REPORT_INTERVAL_S:
                return
            self._last = now
        self._report(f"  {phase}: {step} of {total}" if total else f"  {phase}: {step}")

    def attach(self, tensorrt: ModuleType, config: Any) -> Any:
        """Sets this as the builder's progress monitor. The monitor returned must outlive the build."""
        monitor = _make_monitor(tensorrt, self)
        config.progress_monitor = monitor
        return monitor

    def start(self, phase: str, total: int) -> None:
        """TensorRT begins a phase of that many steps."""
        with self._lock:
            self._phases[phase] = total

    def guarded(self, action: Callable[[], None]) -> bool:
        """Runs the action; keeps what it raises, Ctrl-C included. False: the build is to stop."""
        try:
            action()
        except BaseException as error:
            self._failure = error
        return self._failure is None

    @contextlib.contextmanager
    def interrupts_kept(self) -> Iterator[None]:
        """Keeps a Ctrl-C until `raise_failure`, and stops the build for it: raised while TensorRT logs a message, it
        would be lost in TensorRT's C++. Handlers that the caller has set stay."""
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, lambda *_: self._keep(KeyboardInterrupt()))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _keep(self, error: BaseException) -> None:
        self._failure = error

    def raise_failure(self) -> None:
        """Raises, once the build has stopped, what was raised while it ran."""
        if self._failure is not None:
            raise self._failure


def _make_monitor(tensorrt: ModuleType, progress: BuildProgress) -> Any:
    """TensorRT calls these from its own threads and C++; an exception must not cross that border."""

    class Monitor(tensorrt.IProgressMonitor):
        def __init__(self) -> None:
            tensorrt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            progress.guarded(lambda: progress.start(phase_name, num_steps))

        def phase_finish(self, phase_name: str) -> None:
            pass

        def step_complete(self, phase_name: str, step: int) -> bool:
            return progress.guarded(lambda: progress.step(phase_name, step))

    return Monitor()

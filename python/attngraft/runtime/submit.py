"""Runs in the background. In: inputs, from any thread. Out: futures, fulfilled in the order of submission.

Inputs are looked at where they are submitted: what a device array waits for is known to its own thread only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["Worker", "failed"]


class Worker:
    """One thread, started with the first task."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="attngraft-session", initializer=self._begin)
        self._thread: threading.Thread | None = None

    def _begin(self) -> None:
        self._thread = threading.current_thread()

    def submit(self, task: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Queues a task. Raises RuntimeError once the worker is closed."""
        return self._executor.submit(task, *arguments)

    def close(self) -> None:
        """Cancels what has not begun, and waits for what has. The worker's own thread does not wait for itself."""
        self._executor.shutdown(wait=threading.current_thread() is not self._thread, cancel_futures=True)


def failed(error: Exception) -> Future[Any]:
    """A future that has its error already."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future

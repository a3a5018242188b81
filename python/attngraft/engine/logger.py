"""TensorRT's messages. In: what TensorRT logs, from any thread. Out: the errors kept, and a log file when asked.

TensorRT remembers the first logger of a process for good and calls it long after its builder is gone. So there is
one logger for each TensorRT package, which lives as long as the process and hands messages on to whoever listens.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections import deque
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, TextIO

from attngraft.engine.layers import LAYERS_MESSAGE
from attngraft.errors import BuildError

__all__ = ["MessageLog", "one_line", "process_logger"]

KEPT_ERRORS = 32
"""Errors kept in memory. TensorRT repeats one cause in a handful of lines; the first and the last tell it."""

PLUGIN_PREFIX = "[attngraft]"
"""How the plugin's log lines begin (plugin/tensorrt/log.cpp)."""

_loggers: dict[str, Any] = {}
_listeners: list[MessageLog] = []
_lock = threading.RLock()  # reentrant: the garbage collector may close a log while a message is being taken


def one_line(text: str) -> str:
    """The text without line breaks and runs of blanks."""
    return " ".join(text.split())


class MessageLog:
    """Collects TensorRT's messages while it is open.

    `with` opens and closes it. Messages do not say which builder or session sent them, so logs that are open at the
    same time share them.
    `path`: every message, verbose ones included, is written there too. Raises BuildError when it cannot be opened.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._errors: deque[str] = deque(maxlen=KEPT_ERRORS)
        self._layers: str | None = None

    def __enter__(self) -> MessageLog:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> MessageLog:
        """Starts listening; `close()` ends it. Returns itself."""
        if self._path is not None:
            try:
                self._file = open(self._path, "w", encoding="utf-8")
            except OSError as error:
                raise BuildError(f"log file {self._path}: {error.strerror}; choose another with --log") from None
        with _lock:
            _listeners.append(self)
        return self

    def close(self) -> None:
        """Stops listening. A second call does nothing."""
        with _lock:
            if self in _listeners:
                _listeners.remove(self)
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # what a full disk has not taken is lost; the build goes on
                self._file.close()
            self._file = None

    def clear(self) -> None:
        """Forgets the errors so far."""
        self._errors.clear()

    @property
    def first_error(self) -> str | None:
        """The cause, as a rule: what follows it are consequences."""
        return self._errors[0] if self._errors else None

    @property
    def plugin_error(self) -> str | None:
        """The first error that attngraft's plugin logged, which says more than what TensorRT makes of it."""
        said = [error for error in self._errors if error.startswith(PLUGIN_PREFIX)]
        return said[0].removeprefix(PLUGIN_PREFIX).strip() if said else None

    @property
    def layers_message(self) -> str | None:
        """The message that lists the layers of the engine that was built last; None while there is none."""
        return self._layers

    def add(self, severity: str, message: str) -> None:
        """Takes one message; `severity` is TensorRT's name for it, for example `ERROR`."""
        if message.startswith(LAYERS_MESSAGE):
            self._layers = message
        if severity in ("ERROR", "INTERNAL_ERROR"):
            self._errors.append(one_line(message))
        if self._file is not None:
            try:
                self._file.write(f"[{severity}] {message}\n")
            except OSError:
                self._close_file()


def process_logger(tensorrt: ModuleType) -> Any:
    """The one logger of this process for a TensorRT package (an `ILogger` of that package)."""
    with _lock:
        if tensorrt.__name__ not in _loggers:
            _loggers[tensorrt.__name__] = _make_logger(tensorrt)
        return _loggers[tensorrt.__name__]


def _make_logger(tensorrt: ModuleType) -> Any:
    class ProcessLogger(tensorrt.ILogger):
        def __init__(self) -> None:
            tensorrt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            try:
                with _lock:
                    for listener in tuple(_listeners):
                        listener.add(severity.name, message)
            except KeyboardInterrupt:  # an exception must not enter TensorRT's C++: raise it again later
                _thread.interrupt_main()

    return ProcessLogger()

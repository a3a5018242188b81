"""TensorRT's messages: who hears them, what is kept, and what may go wrong while they come in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attngraft.engine import logger
from attngraft.engine.logger import MessageLog, process_logger
from attngraft.errors import BuildError


@pytest.fixture
def tensorrt() -> Iterator[SimpleNamespace]:
    """What stands for a TensorRT package: all that the logger needs of it is the base class."""
    module = SimpleNamespace(__name__="tensorrt_for_logger_tests", ILogger=type("ILogger", (), {}))
    yield module
    logger._loggers.pop(module.__name__, None)


def say(tensorrt: Any, severity: str, message: str) -> None:
    process_logger(tensorrt).log(SimpleNamespace(name=severity), message)


def test_one_logger_a_package(tensorrt: Any) -> None:
    assert process_logger(tensorrt) is process_logger(tensorrt)
    other = SimpleNamespace(__name__="another_for_logger_tests", ILogger=tensorrt.ILogger)
    assert process_logger(other) is not process_logger(tensorrt)
    del logger._loggers[other.__name__]


def test_errors_are_kept_in_order_and_on_one_line(tensorrt: Any) -> None:
    with MessageLog() as messages:
        assert messages.first_error is None
        for severity, text in [("WARNING", "w"), ("ERROR", "the\n  cause"), ("INTERNAL_ERROR", "what follows")]:
            say(tensorrt, severity, text)
        assert messages.first_error == "the cause"
        messages.clear()
        assert messages.first_error is None


def test_the_plugin_says_more(tensorrt: Any) -> None:
    with MessageLog() as messages:
        say(tensorrt, "ERROR", "something failed")
        assert messages.plugin_error is None
        say(tensorrt, "ERROR", "[attngraft] keep does not broadcast")
        assert (messages.first_error, messages.plugin_error) == ("something failed", "keep does not broadcast")


def test_logs_that_are_open_together_share_messages(tensorrt: Any) -> None:
    with MessageLog() as outer:
        with MessageLog() as inner:
            say(tensorrt, "ERROR", "first")
        say(tensorrt, "ERROR", "second")
        assert (outer.first_error, inner.first_error) == ("first", "first")
        inner.clear()
        say(tensorrt, "ERROR", "third")
        assert inner.first_error is None


def test_a_closed_log_hears_nothing(tensorrt: Any) -> None:
    messages = MessageLog().open()
    messages.close()
    messages.close()
    say(tensorrt, "ERROR", "late")
    assert messages.first_error is None


def test_everything_goes_to_the_file(tensorrt: Any, tmp_path: Path) -> None:
    with MessageLog(tmp_path / "build.log"):
        say(tensorrt, "VERBOSE", "a detail")
        say(tensorrt, "ERROR", "a failure")
    assert (tmp_path / "build.log").read_text() == "[VERBOSE] a detail\n[ERROR] a failure\n"


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="log file .*nowhere.*choose another"):
        MessageLog(tmp_path / "nowhere" / "build.log").open()


def test_a_full_disk_ends_the_log_and_nothing_else(tensorrt: Any) -> None:
    with MessageLog("/dev/full") as messages:
        for _ in range(10_000):  # more than is buffered
            say(tensorrt, "ERROR", "a failure")
        assert messages.first_error == "a failure"


def test_ctrl_c_in_a_message_is_raised_later(tensorrt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: MessageLog, severity: str, message: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(MessageLog, "add", interrupt)
    with pytest.raises(KeyboardInterrupt), MessageLog():
        say(tensorrt, "ERROR", "while Ctrl-C is pressed")


def test_a_log_may_be_closed_by_a_message_in_the_making(tensorrt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the garbage collector finds a session while TensorRT is logging."""
    victim = MessageLog().open()

    def collect(self: MessageLog, severity: str, message: str) -> None:
        victim.close()

    monkeypatch.setattr(MessageLog, "add", collect)
    say(tensorrt, "ERROR", "anything")
    assert victim not in logger._listeners

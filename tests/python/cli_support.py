"""Running the command line inside the test process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attngraft.cli import main

Write = Callable[..., Path]


def run_cli(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def error_line(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Runs a command that must fail, and returns its error: one line, status 1, nothing on standard output."""
    assert run_cli(*arguments) == 1
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert lines[-1].startswith("attngraft: error: ")
    assert sum(line.startswith("attngraft: error: ") for line in lines) == 1
    assert "Traceback" not in captured.err
    return lines[-1]

"""Results files: works measured before stay, and those of another environment are not dropped in silence."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import results_file
from benchmarks.results_file import Row, read_results, write_results


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of its own, and a name for the GPU that a results file asks for."""
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "one")
    monkeypatch.setenv("ATTNGRAFT_COMMIT", "a" * 40)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)


def measured(work: str, microseconds: float) -> Row:
    return Row(work, "float16", microseconds, {}, 1.0)


def times() -> dict[str, float]:
    content = read_results("some")
    assert content is not None
    return {row["work"]: row["ours_us"] for row in content["rows"]}


def test_works_measured_before_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    write_results("some", [measured("a", 1.0), measured("b", 2.0)])
    monkeypatch.setenv("ATTNGRAFT_COMMIT", "b" * 40)
    write_results("some", [measured("b", 3.0)])
    assert times() == {"a": 1.0, "b": 3.0}
    content = read_results("some")
    assert content is not None
    assert {row["work"]: row["commit"][0] for row in content["rows"]} == {"a": "a", "b": "b"}


def test_works_of_another_device_are_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results("some", [measured("a", 1.0), measured("b", 2.0)])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "another")
    write_results("some", [measured("b", 3.0)])
    assert times() == {"b": 3.0}
    assert "1 works measured before are left out: device one is now another" in capsys.readouterr().err


def test_a_tensorrt_that_the_run_does_not_use_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels alone: whether TensorRT is installed drops no measured work."""
    write_results("some", [measured("a", 1.0)])
    (tmp_path / "tensorrt.py").write_text('__version__ = "10.6.0"\n')
    monkeypatch.syspath_prepend(tmp_path)
    write_results("some", [measured("b", 2.0)])
    assert times() == {"a": 1.0, "b": 2.0}


def test_the_tensorrt_that_a_run_uses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__="10.6.0"))
    write_results("some", [measured("a", 1.0)])
    content = read_results("some")
    assert content is not None and content["tensorrt"] == "10.6.0"

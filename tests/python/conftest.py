"""Fixtures for all Python tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest
from hypothesis import settings

# Shared machines stall for seconds; an example is slow only if the test's own timeout says so.
settings.register_profile("attngraft", deadline=None)
settings.load_profile("attngraft")

# A shell starts background work with Ctrl-C ignored, which programs that tests start and interrupt would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from fake_bench import Bench

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture
def data_folder() -> Path:
    """The folder of the small real exports."""
    return DATA


@pytest.fixture
def written(tmp_path: Path):
    """Writes a model into the test's folder and returns its path."""

    def write(model: onnx.ModelProto, name: str = "model.onnx") -> Path:
        path = tmp_path / name
        onnx.save(model, path)
        return path

    return write


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A fake GPU and a fake TensorRT in the places of the real ones."""
    from fake_bench import open_bench  # it needs cuda-python, which few tests do

    yield from open_bench(tmp_path, monkeypatch)

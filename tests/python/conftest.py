"""Fixtures for all Python tests."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import settings

# Shared machines stall for seconds; an example is slow only if the test's own timeout says so.
settings.register_profile("attngraft", deadline=None)
settings.load_profile("attngraft")

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

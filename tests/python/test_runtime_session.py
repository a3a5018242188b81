"""What a session says on a machine where it cannot run: no GPU, no cuda-python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from attngraft.contract import MaskedSoftmax
from attngraft.engine import build_engine
from engine_models import softmax_model

OPEN_SESSION = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
from attngraft.errors import AttngraftError
from attngraft.runtime import Session
try:
    Session({engine!r})
except AttngraftError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("session")
    onnx.save(softmax_model(MaskedSoftmax(), (1, 3, 5)), folder / "model.onnx")
    return build_engine(folder / "model.onnx", folder / "model.engine", backend="rtx").engine_path


def open_session(engine: Path, blocked: list[str]) -> str:
    """What the attempt prints, in a process that sees no GPU."""
    program = OPEN_SESSION.format(blocked=blocked, engine=str(engine))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
    return done.stdout


def test_no_gpu(engine: Path) -> None:
    assert open_session(engine, []).startswith("MissingDependency no NVIDIA GPU can be used here")


def test_no_cuda_python(engine: Path) -> None:
    assert "attngraft[runtime]" in open_session(engine, ["cuda", "cuda.bindings"])


def test_no_tensorrt(engine: Path) -> None:
    assert "attngraft[rtx]" in open_session(engine, ["tensorrt_rtx"])

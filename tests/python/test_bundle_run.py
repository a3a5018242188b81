"""The script that a bundle brings: it runs without attngraft, over a GPU and a TensorRT of a few lines."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bundle_cases import CARD, tensor, write_engine
from fake_gpu import SUCCESS, FakeRuntime
from fake_tensorrt import FakeContext, FakeEngine, fake_tensorrt

from attngraft.bundle import write_bundle
from attngraft.engine.shapes import ShapeRange

ADDER = replace(
    CARD,
    inputs=(tensor("x", "float32", -1, 4),),
    outputs=(tensor("y", "float32", -1, 4),),
    profiles=({"x": ShapeRange.parse("1x4:2x4:8x4")},),
)
"""The fake engine's card."""

FLOAT, HALF, BF16, INT64 = (
    SimpleNamespace(name=name, itemsize=size) for name, size in (("FLOAT", 4), ("HALF", 2), ("BF16", 2), ("INT64", 8))
)
"""TensorRT's types."""


class Runtime(FakeRuntime):
    """With the calls that only the script makes."""

    def cudaMalloc(self, nbytes: int) -> tuple[Any, int]:  # noqa: N802
        return self._allocate(nbytes)

    def cudaFree(self, address: int) -> tuple[Any]:  # noqa: N802
        del self.memory[address]
        return (SUCCESS,)

    def cudaMemcpy(self, target: int, source: int, nbytes: int, kind: Any) -> tuple[Any]:  # noqa: N802
        ctypes.memmove(target, source, nbytes)
        return (SUCCESS,)

    def cudaDeviceSynchronize(self) -> tuple[Any]:  # noqa: N802
        return (SUCCESS,)


class Machine:
    """The script out of a bundle as a module, and what it runs on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu = Runtime()
        self.trt, self.behaviour = fake_tensorrt(self.gpu)
        self.profiles: list[int] = []
        self.loaded: list[str] = []
        self.host_code: list[bool] = []
        self.script = load_script(folder)
        self._dress_up(monkeypatch)
        modules = {"tensorrt": self.trt, "cuda.bindings.runtime": self.gpu}
        monkeypatch.setattr(self.script, "import_package", modules.__getitem__)

    def _dress_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        machine = self

        def select(context: FakeContext, profile: int, stream: int) -> bool:
            machine.profiles.append(profile)
            return True

        def deserialize(runtime: Any, plan: bytes) -> FakeEngine:
            machine.host_code.append(runtime.engine_host_code_allowed)
            return FakeEngine(machine.gpu, machine.behaviour)

        monkeypatch.setattr(FakeContext, "set_optimization_profile_async", select, raising=False)
        monkeypatch.setattr(FakeEngine, "get_tensor_dtype", lambda engine, name: FLOAT)
        self.trt.Runtime.deserialize_cuda_engine = deserialize
        self.trt.Logger = type("Logger", (), {"WARNING": 2, "__init__": lambda logger, severity: None})
        registry = SimpleNamespace(load_library=lambda path: self.loaded.append(path) or "handle")
        self.trt.get_plugin_registry = lambda: registry


_numbers = itertools.count()


def load_script(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bundle_run_{next(_numbers)}", folder / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bundle(write_engine(tmp_path, ADDER), tmp_path / "bundle", "directory").folder


@pytest.fixture
def machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(folder, monkeypatch)


def error_of(machine: Machine, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert machine.script.main(list(arguments)) == 1
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("run.py: error: ")
    return line


def test_every_shape_is_captured_and_replayed(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.script.main(["--replays", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\d+\.\d{3} ms", "T", line) for line in lines] == [
        "profile 0 opt (x 2x4): plain T, graph T",
        "profile 0 max (x 8x4): plain T, graph T",
    ]
    assert machine.gpu.launches == 2 * 7
    assert machine.profiles == [0, 0]
    assert machine.gpu.memory == {}
    assert machine.host_code == [True] and machine.loaded == []


def test_inputs_are_no_zeros(machine: Machine) -> None:
    """With zeros a GPU is faster than it is."""
    made_up = machine.script.made_up
    for dtype, numpy_type in ((FLOAT, np.float32), (HALF, np.float16), (BF16, ml_dtypes.bfloat16)):
        values = np.frombuffer(made_up(dtype, 10000 * dtype.itemsize), numpy_type).astype(np.float32)
        assert values.size == 10000
        assert abs(values.mean()) < 0.1 and abs(values.std() - 1) < 0.1
    assert (np.frombuffer(made_up(INT64, 80), np.int64) == 1).all()


def test_a_library_beside_the_engine_is_loaded_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = write_engine(tmp_path, replace(ADDER, plugin_embedded=False))
    folder = write_bundle(engine, tmp_path / "bundle", "directory").folder
    machine = Machine(folder, monkeypatch)
    assert machine.script.main(["--replays", "1"]) == 0
    assert machine.loaded == [str(folder / "libattngraft.so")]
    assert machine.host_code == [False]
    machine.trt.get_plugin_registry = lambda: SimpleNamespace(load_library=lambda path: None)
    assert "TensorRT cannot load the plugin library" in error_of(machine, capsys)


def test_changed_files_are_found_before_anything_is_loaded(
    folder: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(folder / "model.engine", "r+b") as file:
        file.seek(100)
        file.write(b"!")
    assert "model.engine: is not the file that the bundle was written with" in error_of(machine, capsys)
    (folder / "model.engine").unlink()
    assert "model.engine: No such file or directory; copy the bundle again" in error_of(machine, capsys)
    assert machine.host_code == []


def test_another_version(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.trt.__version__ = "10.7.0"
    assert "the engine needs fake_tensorrt 10.6.0, but 10.7.0 is installed" in error_of(machine, capsys)


def test_what_fails_while_running(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--replays 0: give 1 or more" in error_of(machine, capsys, "--replays", "0")
    machine.behaviour.fail = True
    assert "TensorRT reports an error while running" in error_of(machine, capsys)


def test_an_output_whose_shape_depends_on_data(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.behaviour.data_dependent = True
    assert "its shape depends on data" in error_of(machine, capsys)


def test_the_script_needs_no_attngraft(folder: Path) -> None:
    """In an interpreter that sees no packages at all: TensorRT is the first that it misses."""
    done = subprocess.run([sys.executable, "-I", "-S", folder / "run.py"], capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("run.py: error: tensorrt cannot be imported (No module named 'tensorrt')")

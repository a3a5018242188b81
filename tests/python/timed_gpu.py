"""The GPU of fake_gpu.py with clocks: the host's, which every call moves on, and the GPU's, which work moves on."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from attngraft.engine.backends import Backend
from attngraft.runtime import loading, preflight, timed_engine, timing
from attngraft.runtime.cuda import cuda_driver, cuda_runtime
from fake_gpu import SUCCESS, FakeDriver, FakeRuntime
from fake_tensorrt import Behaviour, FakeContext, FakeEngine, fake_tensorrt, write_fake_plan

COPY_US, PLAIN_LAUNCH_US, GRAPH_LAUNCH_US = 3, 40, 5
WORK_US = {"fast.engine": 100, "slow.engine": 250}
"""GPU time of a run of each engine, by the name of its file."""

HEADER_BYTES = 28
"""Of the plan that write_fake_plan writes."""

LAYERS_MS = {"_gemm_mha_v2_myl0_7": 0.03, "/layer.0/out_myl0_8": 0.05, "plain name": 0.02}
"""What the profiler is told of one run."""


class TimedRuntime(FakeRuntime):
    """Microseconds of both clocks, and every run as (engine, "plain" or "graph")."""

    def __init__(self) -> None:
        super().__init__()
        self.host_us = self.gpu_us = 0.0
        self.ran: list[tuple[str, str]] = []
        self._reached: dict[int, float] = {}

    def work(self, us: float) -> None:
        """Moves the GPU's clock on by work that begins once the host has put it into the stream."""
        self.gpu_us = max(self.gpu_us, self.host_us) + us

    def cudaEventRecord(self, event: int, stream: int) -> tuple[Any]:  # noqa: N802
        self.work(0)
        self._reached[event] = self.gpu_us
        return (SUCCESS,)

    def cudaEventSynchronize(self, event: int) -> tuple[Any]:  # noqa: N802
        self.host_us = max(self.host_us, self._reached.get(event, 0.0))
        return (SUCCESS,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[Any]:  # noqa: N802
        self.host_us = max(self.host_us, self.gpu_us)
        return (SUCCESS,)

    def cudaEventElapsedTime(self, start: int, end: int) -> tuple[Any, float]:  # noqa: N802
        return SUCCESS, (self._reached[end] - self._reached[start]) / 1e3

    def cudaMemcpyAsync(self, target: int, source: int, nbytes: int, kind: Any, stream: int) -> tuple[Any]:  # noqa: N802
        self.work(COPY_US)
        return super().cudaMemcpyAsync(target, source, nbytes, kind, stream)

    def cudaGraphLaunch(self, executable: int, stream: int) -> tuple[Any]:  # noqa: N802
        self.host_us += GRAPH_LAUNCH_US
        return super().cudaGraphLaunch(executable, stream)


class TimedContext(FakeContext):
    """y = 2 x + 1, at the speed of the engine's file."""

    def __init__(self, gpu: TimedRuntime, name: str, behaviour: Behaviour) -> None:
        super().__init__(gpu, behaviour)
        self.name = name
        self.profiler: Any = None

    def execute_async_v3(self, stream: int) -> bool:
        gpu, is_captured = self._gpu, stream in self._gpu.captures
        if not is_captured:
            gpu.host_us += PLAIN_LAUNCH_US

        def run() -> None:
            gpu.work(WORK_US[self.name])
            gpu.ran.append((self.name, "graph" if is_captured else "plain"))

        gpu.put(stream, run)
        done = super().execute_async_v3(stream)
        for layer, ms in LAYERS_MS.items() if self.profiler is not None else ():
            self.profiler.report_layer_time(layer, ms)
        return done


class TimedEngineOfTensorRT(FakeEngine):
    """Its inspector answers the machine's layers, in the JSON that TensorRT gives."""

    def __init__(self, machine: TimedMachine, name: str) -> None:
        super().__init__(machine.gpu, machine.behaviour)
        self._machine = machine
        self._name = name

    def create_execution_context(self) -> TimedContext:
        self._machine.contexts.append(TimedContext(self._machine.gpu, self._name, self._machine.behaviour))
        return self._machine.contexts[-1]

    def create_engine_inspector(self) -> Any:
        return SimpleNamespace(get_engine_information=lambda form: json.dumps({"Layers": self._machine.layers}))


class TimedMachine:
    """A GPU, a TensorRT and a folder for engines; `contexts` are those of the engines that were loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gpu = TimedRuntime()
        self.contexts: list[TimedContext] = []
        self.behaviour = Behaviour()
        self.layers: list[Any] = [
            {"Name": "_gemm_mha_v2_myl0_7", "LayerType": "kgen", "Metadata": "[ONNX Layer: /layer.0/Softmax]"},
            {"Name": "/layer.0/out_myl0_8", "LayerType": "gemm", "Metadata": "[ONNX Layer: /layer.0/out]"},
        ]
        self.module, _ = fake_tensorrt(self.gpu)
        self.module.Runtime = self._runtime()
        self.module.IProfiler = type("IProfiler", (), {})
        self.module.LayerInformationFormat = SimpleNamespace(JSON="json")

    def _runtime(self) -> type:
        machine = self

        class Runtime:
            engine_host_code_allowed = False

            def __init__(self, logger: object) -> None:
                pass

            def deserialize_cuda_engine(self, plan: bytes) -> FakeEngine | None:
                name = plan[HEADER_BYTES:].decode()
                if name == "broken.engine":
                    return None
                return TimedEngineOfTensorRT(machine, name)

        return Runtime

    def engine(self, name: str) -> Path:
        """An engine file, whose plan holds its name behind the header."""
        path = write_fake_plan(self.folder / name)
        path.write_bytes(path.read_bytes() + name.encode())
        return path

    def patch(self, monkeypatch: pytest.MonkeyPatch, bindings: ModuleType) -> None:
        """Puts itself in the place of CUDA, TensorRT and the clocks."""
        monkeypatch.setattr(bindings, "runtime", self.gpu)
        monkeypatch.setattr(bindings, "driver", FakeDriver)
        cuda_runtime.cache_clear()
        cuda_driver.cache_clear()
        for user in (preflight, loading):
            monkeypatch.setattr(user, "load_backend", lambda name: Backend("tensorrt", "TensorRT", self.module))
        monkeypatch.setattr(preflight, "describe_device", lambda index: None)
        monkeypatch.setattr(timed_engine, "perf_counter_ns", lambda: int(self.gpu.host_us * 1e3))
        clock = SimpleNamespace(monotonic=lambda: self.gpu.host_us / 1e6)
        monkeypatch.setattr(timing, "time", clock)

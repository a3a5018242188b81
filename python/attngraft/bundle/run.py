"""Runs the bundle that this file lies in: checks its files, then times the engine at the shapes in graphs.json.

    python run.py [--replays N]

It is copied into bundles and needs no attngraft, only TensorRT's Python package (tensorrt or tensorrt_rtx, of the
version that built the engine) and cuda-python (cuda.bindings). The inputs are made up.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import hashlib
import importlib
import json
import math
import random
import struct
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["main"]

PACKAGES = {"tensorrt": "tensorrt", "rtx": "tensorrt_rtx"}
NON_BLOCKING = 1  # cudaStreamNonBlocking
FLOATS = {"FLOAT": "f", "HALF": "e", "BF16": "f"}  # TensorRT's names, and struct's letters
DRAWN = 4096  # values, which are repeated


class Problem(Exception):
    """What is wrong and what to do, in one line."""


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    for name, expected in manifest["files"].items():
        digest = hashlib.sha256()
        try:
            with open(folder / name, "rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
        except OSError as error:
            raise Problem(f"{folder / name}: {error.strerror}; copy the bundle again") from None
        if digest.hexdigest() != expected["sha256"]:
            raise Problem(f"{folder / name}: is not the file that the bundle was written with; copy the bundle again")


@functools.cache
def import_package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise Problem(f"{name} cannot be imported ({error}); install it for this Python") from None


def cuda(name: str, *arguments: Any) -> Any:
    """Calls a function of the CUDA runtime; returns its value, or None."""
    runtime = import_package("cuda.bindings.runtime")
    error, *values = getattr(runtime, name)(*arguments)
    if error != runtime.cudaError_t.cudaSuccess:
        raise Problem(f"{name}: {error.name}")
    return values[0] if values else None


def load_engine(folder: Path, manifest: dict[str, Any]) -> tuple[Any, Any]:
    """TensorRT's runtime, which must outlive the engine, and the engine."""
    trt = import_package(PACKAGES[manifest["backend"]])
    release, needed = trt.__version__.split(".")[:3], manifest["tensorrt_version"].split(".")[:3]
    if release != needed:
        raise Problem(f"the engine needs {trt.__name__} {'.'.join(needed)}, but {trt.__version__} is installed")
    logger = trt.Logger(trt.Logger.WARNING)
    library = manifest["library"]
    if library is not None and trt.get_plugin_registry().load_library(str((folder / library).absolute())) is None:
        raise Problem(f"{folder / library}: TensorRT cannot load the plugin library")
    runtime = trt.Runtime(logger)
    runtime.engine_host_code_allowed = library is None  # the engine may carry the library
    engine = runtime.deserialize_cuda_engine((folder / manifest["engine"]).read_bytes())
    if engine is None:
        raise Problem(f"{folder / manifest['engine']}: TensorRT cannot load it, see above")
    return runtime, engine


def made_up(dtype: Any, nbytes: int) -> bytes:
    """Normal values in floating types, by which a GPU is as fast as it will be (with zeros it would be faster); else
    ones, which are legal as ids and in masks."""
    block = (1).to_bytes(dtype.itemsize, "little")
    if dtype.name in FLOATS:
        draw = random.Random(0)
        block = struct.pack(f"<{DRAWN}{FLOATS[dtype.name]}", *(draw.gauss(0, 1) for _ in range(DRAWN)))
    if dtype.name == "BF16":  # the upper half of each float32
        block = b"".join(block[at + 2 : at + 4] for at in range(0, len(block), 4))
    return (block * (nbytes // len(block) + 1))[:nbytes]


def prepare(engine: Any, graph: dict[str, Any], stream: Any) -> tuple[Any, list[Any]]:
    """An execution context with its input shapes and buffers, the inputs' filled, and the buffers."""
    context = engine.create_execution_context()
    if context is None or not context.set_optimization_profile_async(graph["profile"], int(stream)):
        raise Problem("TensorRT cannot prepare the engine to run, see above")
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    for name, shape in graph["shapes"].items():
        if not context.set_input_shape(name, tuple(shape)):
            raise Problem(f"input {name!r}: TensorRT refuses the shape {shape}")
    buffers = []
    for name in names:
        shape = tuple(context.get_tensor_shape(name))
        if min(shape, default=0) < 0:
            raise Problem(f"output {name!r}: its shape depends on data, which a graph cannot serve")
        dtype = engine.get_tensor_dtype(name)
        nbytes = max(math.prod(shape) * dtype.itemsize, 1)
        buffers.append(cuda("cudaMalloc", nbytes))
        if name in graph["shapes"]:
            values = (ctypes.c_char * nbytes).from_buffer_copy(made_up(dtype, nbytes))
            to_device = import_package("cuda.bindings.runtime").cudaMemcpyKind.cudaMemcpyHostToDevice
            cuda("cudaMemcpy", buffers[-1], ctypes.addressof(values), nbytes, to_device)
        if not context.set_tensor_address(name, int(buffers[-1])):
            raise Problem(f"tensor {name!r}: TensorRT refuses the buffer")
    cuda("cudaDeviceSynchronize")
    return context, buffers


def milliseconds(work: Any, stream: Any, times: int) -> float:
    """Mean wall time of one of `times` runs, put into the stream one behind the other."""
    start = time.perf_counter()
    for _ in range(times):
        work()
    cuda("cudaStreamSynchronize", stream)
    return (time.perf_counter() - start) * 1e3 / times


def time_graph(engine: Any, graph: dict[str, Any], replays: int) -> str:
    """One plain run, the capture, then the plain runs and the replays that are timed; a line of text."""
    stream = cuda("cudaStreamCreateWithFlags", NON_BLOCKING)
    context, buffers = prepare(engine, graph, stream)

    def enqueue() -> None:
        if not context.execute_async_v3(int(stream)):
            raise Problem("TensorRT reports an error while running, see above")

    milliseconds(enqueue, stream, 1)  # what TensorRT sets up at the first run must not be captured
    modes = import_package("cuda.bindings.runtime").cudaStreamCaptureMode
    cuda("cudaStreamBeginCapture", stream, modes.cudaStreamCaptureModeThreadLocal)
    enqueue()
    captured = cuda("cudaStreamEndCapture", stream)
    executable = cuda("cudaGraphInstantiate", captured, 0)
    cuda("cudaGraphDestroy", captured)
    plain = milliseconds(enqueue, stream, replays)
    replayed = milliseconds(lambda: cuda("cudaGraphLaunch", executable, stream), stream, replays)
    cuda("cudaGraphExecDestroy", executable)
    for buffer in buffers:
        cuda("cudaFree", buffer)
    cuda("cudaStreamDestroy", stream)
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in graph["shapes"].items())
    return f"profile {graph['profile']} {graph['corner']} ({shapes}): plain {plain:.3f} ms, graph {replayed:.3f} ms"


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 1 with one line on standard error when something is wrong."""
    parser = argparse.ArgumentParser(description="Checks this bundle and times its engine.")
    parser.add_argument("--replays", type=int, default=100, help="runs that are timed, at each shape (default 100)")
    options = parser.parse_args(arguments)
    folder = Path(__file__).resolve().parent
    try:
        if options.replays < 1:
            raise Problem(f"--replays {options.replays}: give 1 or more")
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        check_files(folder, manifest)
        _runtime, engine = load_engine(folder, manifest)
        for graph in json.loads((folder / "graphs.json").read_text(encoding="utf-8"))["graphs"]:
            print(time_graph(engine, graph, options.replays), flush=True)
    except (Problem, OSError, ValueError, KeyError, TypeError) as error:
        print(f"run.py: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What serving costs, with CUDA graphs and without, and what the session's Python adds: results/session.json.

For each engine and batch two interleaved runs. In one the engine takes inputs from page-locked memory and gives its
outputs back there, enqueued plainly and replayed as a graph. In the other `Session.run` gets tensors that are on the
GPU, and a `bind` of them runs in place, against a loop that does nothing but launch the same graph and wait for it,
and one that copies inputs and outputs on the GPU too, as `Session.run` does. TensorRT builds a 12-layer model in one to
two minutes.

A wall time holds the GPU's work and hides how long the CPU was busy. So the same calls are made in a stream of the
caller's, where they return at once, and what they take until then is measured too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from attngraft.engine import ShapeRange, build_engine, parse_shape_option
from attngraft.report.bench import percentiles
from attngraft.runtime import Session
from attngraft.runtime.buffers import copy_async
from attngraft.runtime.sweep import Sweep, fill_inputs, sweep_engines, sweep_points
from attngraft.runtime.timed_engine import TimedEngine, opened_engines
from attngraft.runtime.timing import warm_up
from benchmarks.model_works import exported, half_floats, padded_text, transformer_operations
from benchmarks.results_file import Row, write_results
from benchmarks.timing import matrix_rate

__all__ = ["row_of"]

BATCHES = (1, 8)
ROUNDS, RUNS = 20, 50

Arrays = Mapping[str, np.ndarray]
Samples = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Served:
    """One engine at one batch. `operations`: floating-point operations of its transformer layers; 0 if not known."""

    work: str
    dtype: str
    engine: Path
    inputs: Arrays
    operations: float = 0.0


@dataclass(frozen=True)
class Model:
    """One model that is built where no engine is given."""

    title: str
    dtype: str
    export: Callable[[Path], Path]
    inputs: Callable[[int], Arrays]
    size: str
    operations: Callable[[int], float]


MODELS = {
    "bert": Model("BERT-base fp16", "float16", exported("bert-base", "fp16", "eager"),
                  lambda batch: padded_text(batch, 384), "S384",
                  lambda batch: transformer_operations(batch, tokens=384, hidden=768, layers=12)),
    "vit": Model("ViT-S fp16", "float16", exported("vit-small", "fp16", "sdpa"),
                 lambda batch: {"pixel_values": half_floats(batch, 3, 224, 224)}, "224x224",
                 lambda batch: transformer_operations(batch, tokens=197, hidden=384, layers=12)),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("given", type=Path, nargs="*", metavar="ENGINE|MODEL.onnx", help="in place of the usual models")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=MIN:OPT:MAX", help="to build MODEL.onnx")
    parser.add_argument("--model", choices=sorted(MODELS), action="append", help="only these of the usual models")
    options = parser.parse_args()
    shapes = dict(parse_shape_option(option) for option in options.shape)
    with tempfile.TemporaryDirectory() as folder:
        found = _given(options.given, shapes, Path(folder)) if options.given else _usual(options.model, Path(folder))
        for served in found:
            row = measure(served)
            print(f"{row.work}: session {row.ours_us:.1f} us, {row.peers_us}, {row.notes}", flush=True)
            print(write_results("session", [row]))
    return 0


def _usual(names: Sequence[str] | None, folder: Path) -> Iterator[Served]:
    for name in names or MODELS:
        model = MODELS[name]
        smallest, largest = model.inputs(BATCHES[0]), model.inputs(BATCHES[-1])
        shapes = {key: ShapeRange(smallest[key].shape, array.shape, array.shape) for key, array in largest.items()}
        target = folder / f"{name}.engine"
        engine = build_engine(model.export(folder), target, backend="tensorrt", shapes=shapes).engine_path
        for batch in BATCHES:
            work = f"{model.title} B{batch} {model.size}"
            yield Served(work, model.dtype, engine, model.inputs(batch), model.operations(batch))


def _given(paths: Sequence[Path], shapes: Mapping[str, ShapeRange], folder: Path) -> Iterator[Served]:
    for path in paths:
        engine = path
        if path.suffix == ".onnx":
            target = folder / f"{path.stem}.engine"
            engine = build_engine(path, target, backend="tensorrt", shapes=shapes).engine_path
        with opened_engines([engine]) as (timed,):
            specs = timed.specs
        dtype = next((spec.dtype for spec in specs if "float" in spec.dtype), specs[0].dtype)
        for point in sweep_points(specs, Sweep(batches=BATCHES)):
            yield Served(f"{path.stem} B{point.batch}", dtype, engine, fill_inputs(specs, point.shapes, {}, seed=0))


def measure(served: Served) -> Row:
    """Both interleaved runs of one engine at one batch."""
    _, (point,) = sweep_engines([served.engine], Sweep(given=served.inputs), modes=("plain", "graph"), rounds=ROUNDS)
    whole = {times.mode: times.samples_us["total"] for times in point.times}
    rate = matrix_rate(getattr(torch, served.dtype)) if served.operations else 1.0
    on_device, on_host = _session_samples(served)
    return row_of(served.work, served.dtype, whole, on_device, on_host, served.operations / rate)


def row_of(work: str, dtype: str, whole: Samples, served: Samples, on_host: Samples, bound_us: float) -> Row:
    """A row from samples in microseconds.

    whole: "plain" and "graph", host to host. served: "session", "session-plain" and "session-bound", and the loops
    "bare-graph" and "bare-graph-and-copies", device to device. on_host: of these "session", "session-bound" and
    "bare-graph-and-copies", until the call has put its work into a stream.
    """
    found = {name: percentiles(samples) for name, samples in {**whole, **served}.items()}
    session = found["session"]["p50"]
    return Row(
        work=work,
        dtype=dtype,
        ours_us=session,
        peers_us={name: found[name]["p50"] for name in served if name != "session"},
        bound_us=bound_us,
        notes={
            "percentiles_us": found,
            "session_adds_us": session - found["bare-graph"]["p50"],
            "python_adds_us": session - found["bare-graph-and-copies"]["p50"],
            "bound_adds_us": found["session-bound"]["p50"] - found["bare-graph"]["p50"],
            "host_us": {name: percentiles(samples) for name, samples in on_host.items()},
        },
    )


def _session_samples(served: Served) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Until the work is done, and until it is in a stream."""
    tensors = {name: torch.from_numpy(array).cuda() for name, array in served.inputs.items()}
    with (
        Session(served.engine) as session,
        Session(served.engine, cuda_graph=False) as plain,
        opened_engines([served.engine]) as (bare,),
    ):
        bare.prepare(served.inputs)
        bare.capture()
        bound = session.bind(tensors)
        launch, launch_and_copy = _bare(bare, {}), _bare(bare, tensors)
        calls = {
            "session": lambda: session.run(tensors),
            "session-plain": lambda: plain.run(tensors),
            "session-bound": bound.run,
            "bare-graph": _waiting(bare, launch),
            "bare-graph-and-copies": _waiting(bare, launch_and_copy),
        }
        samples = _interleaved_us(calls)
        stream = torch.cuda.Stream().cuda_stream
        issued = {
            "session": lambda: session.run(tensors, stream=stream),
            "session-bound": lambda: bound.run(stream=stream),
            "bare-graph-and-copies": launch_and_copy,
        }
        on_host = _interleaved_us(issued, between=torch.cuda.synchronize)
        replays = session.statistics.replays
        if replays < ROUNDS * RUNS:
            sys.exit(f"{served.work}: the session replayed {replays} times only: {session.statistics}")
        return samples, on_host


def _bare(bare: TimedEngine, tensors: Mapping[str, torch.Tensor]) -> Callable[[], None]:
    """A launch; with tensors, what a session copies on the GPU before and behind it."""
    stream, address = bare.stream.handle, bare.context.get_tensor_address
    before = [(int(address(name)), tensor.data_ptr(), tensor.nbytes) for name, tensor in tensors.items()]
    outputs = _outputs(bare) if tensors else []
    behind = [(output.data_ptr(), source, output.nbytes) for output, source in outputs]

    def run(_kept: object = (tensors, outputs)) -> None:  # which the addresses are those of
        for copy in before:
            copy_async(*copy, stream)
        bare.replay()
        for copy in behind:
            copy_async(*copy, stream)

    return run


def _waiting(bare: TimedEngine, launch: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        launch()
        bare.stream.wait()

    return run


def _outputs(bare: TimedEngine) -> list[tuple[torch.Tensor, int]]:
    """A tensor for each output, and where the engine puts it."""
    found = []
    for spec in bare.specs:
        if not spec.is_input:
            shape = tuple(bare.context.get_tensor_shape(spec.name))
            tensor = torch.empty(shape, dtype=getattr(torch, spec.dtype), device="cuda")
            found.append((tensor, int(bare.context.get_tensor_address(spec.name))))
    return found


def _interleaved_us(
    calls: Mapping[str, Callable[[], object]], between: Callable[[], object] | None = None
) -> dict[str, list[float]]:
    """Wall time of every call, in turns of RUNS, after a warm-up of all of them. between: done behind each call, and
    not timed."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    warm_up(calls.values())
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            for _ in range(RUNS):
                started = time.perf_counter_ns()
                call()
                samples[name].append((time.perf_counter_ns() - started) / 1e3)
                if between is not None:
                    between()
    return samples


if __name__ == "__main__":
    sys.exit(main())

"""Time and memory of rewriting without verification: results/rewriter-speed.json. Needs no GPU.

Decoder layers repeated up to 1,000, 10,000 and 100,000 nodes with small weights, and one model of 2 GB of weights in a
sparse file beside it. Every rewrite runs in a process of its own, whose peak of resident memory is reported beside that
of the same process before it began.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from attngraft.rewrite import rewrite_model
from benchmarks.results_file import CountRow, write_counts
from benchmarks.zoo.forked import run_forked

__all__ = ["layered_model", "main", "measure"]

NODE_COUNTS = (1_000, 10_000, 100_000)
LOWERINGS = ("softmax", "native")
LARGE_BYTES = 2 << 30
LARGE_LAYERS = 48
HIDDEN, HEADS = 32, 4
OPSET = 17
PACKAGES = ("onnx", "onnxruntime")
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Trial:
    """One model file and what is done to it."""

    title: str
    path: Path
    lower: str
    nodes: int


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, action="append", metavar="N", help="only models of so many (repeatable)")
    options = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        trials = list(_trials(Path(folder), tuple(options.nodes or NODE_COUNTS), large=not options.nodes))
        for outcome in run_forked(trials, measure, processes=1, time_limit=3600.0):
            if outcome.error is not None:
                raise RuntimeError(f"{outcome.job.title}: {outcome.error}")
            rows.append(CountRow(f"{outcome.job.title} {outcome.job.lower}", outcome.value))
            print(rows[-1], flush=True)
    if not options.nodes:
        print(write_counts("rewriter-speed", {"rewriting": rows}, PACKAGES))
    return 0


def _trials(folder: Path, node_counts: tuple[int, ...], large: bool) -> list[Trial]:
    makers: list[tuple[str, Callable[[Path], int]]] = [
        (f"{count} nodes", lambda path, count=count: _save_small(path, count)) for count in node_counts
    ]
    if large:
        makers.append(("2 GB external", _save_large))
    trials = []
    for number, (title, make) in enumerate(makers):
        path = folder / f"model{number}.onnx"
        nodes = make(path)
        trials += [Trial(title, path, lower, nodes) for lower in LOWERINGS]
    return trials


def measure(trial: Trial) -> dict[str, int]:
    """Milliseconds and peak memory of one rewrite; to be called in a fresh process."""
    before = _peak_bytes()
    started = time.monotonic()
    result = rewrite_model(trial.path, trial.path.with_suffix(f".{trial.lower}"), lower=trial.lower, verify=False)
    elapsed = time.monotonic() - started
    return {
        "nodes": trial.nodes,
        "sites": len(result.sites.sites),
        "lowered": result.lowered,
        "milliseconds": round(1000 * elapsed),
        "peak MiB": _peak_bytes() // MEBIBYTE,
        "peak MiB before": before // MEBIBYTE,
    }


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def layered_model(layers: int, hidden: int = HIDDEN) -> onnx.ModelProto:
    """Attention layers with projections of float32 weights [hidden, hidden], each with a scale, an additive mask and a
    residual; weights without data, `hidden`^2 * 16 bytes a layer."""
    nodes, weights = [], []
    states = "states"
    for layer in range(layers):
        prefix = f"layer{layer}"
        weights += [_weight(f"{prefix}.{part}", hidden) for part in ("query", "key", "value", "out")]
        states = _add_layer(nodes, prefix, states)
    shape = ["batch", "sequence", hidden]
    graph = helper.make_graph(
        nodes,
        "layers",
        [
            helper.make_tensor_value_info("states", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", 1, 1, "sequence"]),
        ],
        [helper.make_tensor_value_info(states, TensorProto.FLOAT, shape)],
        [
            numpy_helper.from_array(np.array([0, 0, HEADS, hidden // HEADS]), "split_shape"),
            numpy_helper.from_array(np.array([0, 0, hidden]), "joined_shape"),
            numpy_helper.from_array(np.array((hidden // HEADS) ** -0.5, np.float32), "scale"),
            *weights,
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def _weight(name: str, hidden: int) -> TensorProto:
    return TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[hidden, hidden])


def _add_layer(nodes: list[onnx.NodeProto], prefix: str, states: str) -> str:
    def add(operator: str, inputs: list[str], name: str, **attributes: object) -> str:
        output = f"{prefix}/{name}"
        nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    heads = {}
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        projected = add("MatMul", [states, f"{prefix}.{part}"], f"{part}/MatMul")
        split = add("Reshape", [projected, "split_shape"], f"{part}/Reshape")
        heads[part] = add("Transpose", [split], f"{part}/Transpose", perm=order)
    scores = add("MatMul", [heads["query"], heads["key"]], "scores/MatMul")
    scaled = add("Mul", [scores, "scale"], "scores/Mul")
    masked = add("Add", [scaled, "mask"], "scores/Add")
    probabilities = add("Softmax", [masked], "scores/Softmax", axis=-1)
    context = add("MatMul", [probabilities, heads["value"]], "context/MatMul")
    turned = add("Transpose", [context], "context/Transpose", perm=[0, 2, 1, 3])
    joined = add("Reshape", [turned, "joined_shape"], "context/Reshape")
    out = add("MatMul", [joined, f"{prefix}.out"], "out/MatMul")
    return add("Add", [states, out], "out/Add")


def _save_small(path: Path, node_count: int) -> int:
    layer_nodes = len(layered_model(1).graph.node)
    model = layered_model(max(1, node_count // layer_nodes))
    for tensor in model.graph.initializer:
        if not tensor.raw_data:
            tensor.raw_data = bytes(4 * int(np.prod(tensor.dims)))
    onnx.save(model, path)
    return len(model.graph.node)


def _save_large(path: Path) -> int:
    """Weights of LARGE_BYTES in a sparse file: they take no room on the disk, and reading them would show."""
    hidden = int((LARGE_BYTES / (16 * LARGE_LAYERS)) ** 0.5) // 64 * 64
    model = layered_model(LARGE_LAYERS, hidden)
    offset = 0
    for tensor in model.graph.initializer:
        if tensor.raw_data:
            continue
        length = 4 * hidden * hidden
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", f"{path.name}.data"), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
        offset += length
    onnx.save(model, path)
    with open(f"{path}.data", "wb") as file:
        file.truncate(offset)
    return len(model.graph.node)


if __name__ == "__main__":
    sys.exit(main())

"""Rewriting grows with the number of nodes, not with its square, and holds no weight more often than it must.

Calls of functions and peaks are counted, not seconds, which depend on the machine; those are in
benchmarks/rewriter_speed.py.
"""

from __future__ import annotations

import cProfile
import pstats
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto

from attngraft.lower import lower_model
from attngraft.match import match_model
from attngraft.onnx_graph import load_model, save_model

FEW, MANY = 3_000, 12_000
"""Nodes of the two models whose calls are counted."""

MAX_GROWTH = 4.4
"""What four times the nodes may cost. Linear is 4, quadratic 16; the rest is for logarithms."""

WEIGHT_BYTES = 2**28
"""Weights inside the model file whose copies are counted."""

HEADS, HEAD_SIZE = 4, 16
WIDTH = HEADS * HEAD_SIZE


def layer(number: int, hidden: str) -> tuple[list[NodeProto], str]:
    """One transformer layer as exporters write it: a guard, a mask of its own, constants that all layers share."""
    nodes: list[NodeProto] = []

    def add(op_type: str, *inputs: str, **attributes: object) -> str:
        output = f"layer{number}_{len(nodes)}"
        nodes.append(onnx.helper.make_node(op_type, inputs, [output], name=f"/{output}/{op_type}", **attributes))
        return output

    def project(permutation: list[int]) -> str:
        added = add("Add", add("MatMul", hidden, "weight"), "bias")
        return add("Transpose", add("Reshape", added, "split_shape"), perm=permutation)

    query, key, value = (project(permutation) for permutation in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    scores = add("Mul", add("MatMul", query, key), "scale")
    masked = add("Add", scores, add("Where", "mask", "zero", "minus_infinity"))
    weights = add("Softmax", masked, axis=-1)
    guarded = add("Where", add("IsNaN", weights), "zero", weights)
    merged = add("Reshape", add("Transpose", add("MatMul", guarded, value), perm=[0, 2, 1, 3]), "merged_shape")
    attended = add("Add", add("MatMul", merged, "weight"), hidden)
    return nodes, add("Add", add("Relu", add("MatMul", attended, "weight")), attended)


def transformer(nodes: int) -> ModelProto:
    """About as many nodes, in layers."""
    graph_nodes: list[NodeProto] = []
    hidden = "x"
    while len(graph_nodes) < nodes:
        made, hidden = layer(len(graph_nodes), hidden)
        graph_nodes += made
    constants = {
        "scale": np.float32(0.25),
        "zero": np.float32(0),
        "minus_infinity": np.float32(-np.inf),
        "split_shape": np.array([0, 0, HEADS, HEAD_SIZE]),
        "merged_shape": np.array([0, 0, WIDTH]),
        "weight": np.full((WIDTH, WIDTH), 0.01, np.float32),
        "bias": np.zeros(WIDTH, np.float32),
    }
    graph = onnx.helper.make_graph(
        graph_nodes,
        "transformer",
        [
            onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "S", WIDTH]),
            onnx.helper.make_tensor_value_info("mask", TensorProto.BOOL, ["B", 1, 1, "S"]),
        ],
        [onnx.helper.make_tensor_value_info(hidden, TensorProto.FLOAT, ["B", "S", WIDTH])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def in_branches(model: ModelProto) -> ModelProto:
    """The same nodes as one branch of an If."""
    inner = onnx.GraphProto(name="branch", node=model.graph.node, output=model.graph.output)
    other = onnx.GraphProto(name="other", output=model.graph.output)
    name = model.graph.output[0].name
    other.node.append(onnx.helper.make_node("Identity", ["x"], [name]))
    outer = ModelProto()
    outer.CopyFrom(model)
    del outer.graph.node[:]
    outer.graph.input.append(onnx.helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    outer.graph.node.append(onnx.helper.make_node("If", ["flag"], ["result"], then_branch=inner, else_branch=other))
    outer.graph.output[0].name = "result"
    return outer


def rewrite_file(path: Path) -> int:
    """Everything that a rewrite does, without verification. The number of sites."""
    model = load_model(path)
    sites = match_model(model)
    both = ("softmax", "native")
    choices = {site.name: both[number % 2] for number, site in enumerate(sites.sites)}
    lowered = lower_model(model, sites, choices)
    save_model(lowered, path.with_suffix(".out.onnx"), path.parent)
    return len(sites.sites)


def calls(path: Path) -> int:
    """Calls of functions, Python's and C's, that rewriting a file takes."""
    profile = cProfile.Profile()
    profile.runcall(rewrite_file, path)
    return pstats.Stats(profile).total_calls


@pytest.mark.parametrize("arrange", [transformer, lambda nodes: in_branches(transformer(nodes))], ids=["main", "if"])
def test_work_grows_with_the_nodes(tmp_path: Path, arrange: Callable[[int], ModelProto]) -> None:
    paths = []
    for nodes in (FEW, MANY):
        paths.append(tmp_path / f"{nodes}.onnx")
        onnx.save(arrange(nodes), paths[-1])
    assert rewrite_file(paths[0]) > FEW // 40  # and caches are filled
    few, many = map(calls, paths)
    assert many < MAX_GROWTH * few, f"{FEW} nodes {few} calls, {MANY} nodes {many} calls"


REWRITE_AND_TELL_PEAKS = """
import re, sys
from attngraft.rewrite import rewrite_model
def peak():  # getrusage's includes the parent's memory
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read()).group(1)) * 1024
before = peak()
result = rewrite_model(sys.argv[1], sys.argv[2], lower="softmax", verify=False)
print(result.lowered, peak() - before)
"""


def test_weights_in_the_file_are_in_memory_twice_at_most(tmp_path: Path) -> None:
    """Once while the file's bytes are parsed, or once in each of the two models: never a third time."""
    model = transformer(100)
    parts = 8
    blob = np.random.default_rng(0).bytes(WEIGHT_BYTES // parts)
    for number in range(parts):
        tensor = model.graph.initializer.add(name=f"large{number}", data_type=TensorProto.FLOAT16)
        tensor.dims[:] = [len(blob) // 2]
        tensor.raw_data = blob
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    target = tmp_path / "out.onnx"
    command = [sys.executable, "-c", REWRITE_AND_TELL_PEAKS, str(path), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    lowered, growth = map(int, done.stdout.split())
    assert lowered == 4
    assert growth < 2.5 * WEIGHT_BYTES
    written = onnx.load(target)
    assert [t.raw_data for t in written.graph.initializer if t.name.startswith("large")] == [blob] * parts
    onnx.checker.check_model(target)

"""A file in, a checked model out. External data stays where it is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto

from attngraft.errors import ModelError
from attngraft.onnx_graph.dtypes import is_known_dtype
from attngraft.onnx_graph.external import check_external_data, load_small_tensors
from attngraft.onnx_graph.walk import default_opset, graph_attributes, walk_graphs, walk_tensors

__all__ = ["MIN_OPSET", "load_model"]

MIN_OPSET = 11
"""The oldest operator set in which every mask has a standard form (Gather and Slice with negative axes, Equal on
floats)."""


def load_model(path: str | Path) -> ModelProto:
    """Reads an ONNX file without its external data, except tensors of at most 1 KiB.

    Checks that it is ONNX and whole, that its external files exist and are long enough, that its graphs have no cycle
    and no undefined tensor, that its opset is at least 11 and its element types are known. Raises ModelError, one
    line, otherwise.
    """
    path = Path(path)
    model = _parse(path)
    opset = default_opset(model)
    if opset < MIN_OPSET:
        raise ModelError(
            f"{path}: opset {opset} is older than {MIN_OPSET}, the oldest supported; "
            "convert it with onnx.version_converter or export the model again"
        )
    _check_dtypes(model, path)
    _check_order(model.graph, set(), path)
    check_external_data(model, path)
    load_small_tensors(model, path.parent)
    return model


def _parse(path: Path) -> ModelProto:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; give the path of an ONNX model") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); give the path of an ONNX model") from None
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise ModelError(
            f"{path}: is not an ONNX file or is truncated ({len(data)} bytes do not parse); export or copy it again"
        ) from None
    # A text file can parse as an empty protobuf message, and a cut one can lose its end without a parse error.
    if not model.opset_import or not model.ir_version:
        raise ModelError(f"{path}: is not an ONNX file or is truncated (no opset import); export or copy it again")
    if not model.graph.output or not (model.graph.node or model.graph.input):
        raise ModelError(f"{path}: holds no graph with an output; it is truncated or no model, export or copy it again")
    return model


def _check_dtypes(model: ModelProto, path: Path) -> None:
    for tensor in walk_tensors(model):
        if not is_known_dtype(tensor.data_type):
            raise ModelError(_unknown_type(path, tensor.name, tensor.data_type))
    for _, graph in walk_graphs(model.graph):
        for value in (*graph.input, *graph.output):
            number = value.type.tensor_type.elem_type
            if number and not is_known_dtype(number):  # 0: no tensor, or of a type that only inference tells
                raise ModelError(_unknown_type(path, value.name, number))


def _unknown_type(path: Path, name: str, number: int) -> str:
    return (
        f"{path}: {name!r} has element type {number}, which onnx {onnx.__version__} does not know; "
        "update the onnx package or export with a standard type"
    )


def _check_order(graph: GraphProto, outer: set[str], path: Path) -> None:
    """ONNX wants nodes in topological order; an input that no earlier node makes is a cycle, or nothing at all."""
    known = outer | {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    known |= {sparse.values.name for sparse in graph.sparse_initializer} | {""}
    later = {output for node in graph.node for output in node.output}
    for node in graph.node:
        _check_inputs(node, known, later, graph, path)
        for _, inner in graph_attributes(node):
            _check_order(inner, known, path)
        known.update(node.output)
    for value in graph.output:
        if value.name not in known:
            raise ModelError(f"{path}: output {value.name!r} is made by no node; the file is damaged, export it again")


def _check_inputs(node: NodeProto, known: set[str], later: set[str], graph: GraphProto, path: Path) -> None:
    for name in node.input:
        if name in known:
            continue
        where = f"{path}: node {node.name or node.op_type!r} needs {name!r}"
        if name not in later:
            raise ModelError(f"{where}, which nothing makes; the file is damaged, export it again")
        if _in_cycle(name, graph.node):
            raise ModelError(f"{where}, which depends on that node: the graph has a cycle; export the model again")
        raise ModelError(f"{where} before it is made: the nodes are not in topological order; sort or export it again")


def _in_cycle(name: str, nodes: Iterable[NodeProto]) -> bool:
    """Whether `name` depends on itself."""
    makers = {output: node for node in nodes for output in node.output if output}
    seen: set[str] = set()
    pending = list(makers[name].input)
    while pending:
        current = pending.pop()
        if current == name:
            return True
        if current in makers and current not in seen:
            seen.add(current)
            pending.extend(makers[current].input)
    return False

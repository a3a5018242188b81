"""From an ONNX model to a TensorRT network. In: a model and its path. Out: a parsed network and what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from attngraft.contract import DOMAIN
from attngraft.engine.backends import Backend
from attngraft.engine.logger import MessageLog, one_line, process_logger
from attngraft.engine.sidecar import TensorCard
from attngraft.errors import BuildError
from attngraft.lower import strip_functions
from attngraft.onnx_graph import walk_graphs

__all__ = ["DTYPE_NAMES", "count_plugin_layers", "parse_network", "plugin_node_count", "tensor_cards"]

DTYPE_NAMES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}
"""NumPy's names of the TensorRT types that arrays can carry in and out."""


def plugin_node_count(model: onnx.ModelProto) -> int:
    """How many nodes of the model's graph and subgraphs are attngraft operators."""
    return sum(node.domain == DOMAIN for _, graph in walk_graphs(model.graph) for node in graph.node)


def parse_network(backend: Backend, builder: Any, messages: MessageLog, model: onnx.ModelProto, path: Path) -> Any:
    """Parses the model into a strongly typed network. `path` is where its external data is looked up.

    The portable functions are stripped first: the parser would inline them instead of looking for the plugin. Raises
    BuildError with the parser's first error, or the plugin's.
    """
    trt = backend.module
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if typed is None else 1 << int(typed))
    parser = trt.OnnxParser(network, process_logger(trt))
    if not parser.parse(strip_functions(model).SerializeToString(), str(path)):
        raise BuildError(f"{path}: {backend.label} cannot parse it: {_parser_error(parser, messages)}")
    return network


def _parser_error(parser: Any, messages: MessageLog) -> str:
    if parser.num_errors == 0:
        return "no reason given; see the build log (--log FILE)"
    error = parser.get_error(0)
    where = f"node {error.node_name()!r} ({error.node_operator()}): " if error.node_operator() else ""
    return where + (messages.plugin_error or one_line(error.desc()))


def count_plugin_layers(backend: Backend, network: Any) -> int:
    """Plugin layers of attngraft's namespace in the network."""
    trt = backend.module
    count = 0
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.PLUGIN_V3:
            layer.__class__ = trt.IPluginV3Layer  # the bindings hand out the base class
            core = layer.plugin.get_capability_interface(trt.PluginCapabilityType.CORE)
            count += core.plugin_namespace == DOMAIN
    return count


def tensor_cards(tensors: list[Any]) -> tuple[TensorCard, ...]:
    """Names, types and shapes of network inputs or outputs. Raises BuildError for a type that arrays cannot carry."""
    cards = []
    for tensor in tensors:
        if tensor.dtype.name not in DTYPE_NAMES:
            raise BuildError(
                f"tensor {tensor.name!r}: inputs and outputs of type {tensor.dtype.name} are not supported; cast it in "
                f"the model to one of {', '.join(DTYPE_NAMES.values())}"
            )
        cards.append(TensorCard(tensor.name, DTYPE_NAMES[tensor.dtype.name], tuple(tensor.shape)))
    return tuple(cards)

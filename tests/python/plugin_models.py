"""One-node networks of the plugins, built with TensorRT-RTX's parser and builder. No GPU needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from build_support import run_python
from onnx import TensorProto, helper

from attngraft.contract import (
    DOMAIN,
    FUSED_ATTENTION,
    MASKED_SOFTMAX,
    PLUGIN_VERSION,
    FusedAttention,
    MaskConfig,
    MaskedSoftmax,
)
from attngraft.plugin_library import plugin_library

BUILD = """
import ctypes, json, sys
import tensorrt_rtx as tensorrt
model, library, shim = sys.argv[1:4]
class Logger(tensorrt.ILogger):
    def __init__(self):
        super().__init__()
        self.errors = []
    def log(self, severity, message):
        if severity <= tensorrt.ILogger.ERROR:
            self.errors.append(message)
logger = Logger()
ctypes.CDLL(shim)
tensorrt.get_plugin_registry().load_library(library)
builder = tensorrt.Builder(logger)
network = builder.create_network()
parsed = tensorrt.OnnxParser(network, logger).parse_from_file(model)
engine = None
if parsed:
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        sizes = [[size if size > 0 else dynamic for size in tensor.shape] for dynamic in (1, 8, 64)]
        profile.set_shape(tensor.name, *sizes)
    config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
plugins = [network.get_layer(i).name for i in range(network.num_layers)
           if network.get_layer(i).type == tensorrt.LayerType.PLUGIN_V3]
print(json.dumps({
    "plugins": plugins,
    "bytes": 0 if engine is None else engine.nbytes,
    "output": list(network.get_output(0).shape) if parsed else [],
    "errors": logger.errors,
}))
"""


Inputs = dict[str, tuple[int, list]]
"""Name -> (element type, shape)."""

OPERATORS = {MaskedSoftmax: MASKED_SOFTMAX, FusedAttention: FUSED_ATTENTION}


def plugin_node(config: MaskConfig, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
    values = {**config.attributes(), "plugin_version": PLUGIN_VERSION, "plugin_namespace": DOMAIN, **attributes}
    return helper.make_node(OPERATORS[type(config)], inputs, [output], domain=DOMAIN, name="site", **values)


def save_graph(
    path: Path, nodes: list[onnx.NodeProto], inputs: Inputs, weights: Sequence[onnx.TensorProto] = ()
) -> Path:
    """A model whose output, of the first input's type, is the last node's."""
    element_type, _ = next(iter(inputs.values()))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, *value) for name, value in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output[0], element_type, None)],
        initializer=weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def write_model(path: Path, config: MaskConfig, inputs: Inputs, **attributes: object) -> Path:
    """One node of the configuration's operator over `inputs`, those of its own first."""
    return save_graph(path, [plugin_node(config, list(inputs), "output", **attributes)], inputs)


def build(model: Path) -> dict:
    library = plugin_library()
    return run_python(BUILD, model, library, library.with_name("libtensorrt_rtx.so"))


ROLE_INPUTS = {
    "bias": (TensorProto.FLOAT, ["batch", 1, 1, "keys"]),
    "keep": (TensorProto.BOOL, ["queries", "keys"]),
    "kv_lengths": (TensorProto.INT32, ["batch"]),
    "kv_starts": (TensorProto.INT32, ["batch"]),
}

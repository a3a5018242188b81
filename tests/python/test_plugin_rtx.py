"""A network with the plugin through TensorRT-RTX's parser and builder. No GPU needed."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from build_support import run_python
from onnx import TensorProto, helper

from attngraft.contract import DOMAIN, MASKED_SOFTMAX, PLUGIN_VERSION, MaskedSoftmax
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
print(json.dumps({"plugins": plugins, "bytes": 0 if engine is None else engine.nbytes, "errors": logger.errors}))
"""


def write_model(path: Path, config: MaskedSoftmax, inputs: dict[str, tuple[int, list]], **attributes: object) -> Path:
    """One MaskedSoftmax node over `inputs`: name -> (element type, shape), the scores first."""
    values = {**config.attributes(), "plugin_version": PLUGIN_VERSION, "plugin_namespace": DOMAIN, **attributes}
    node = helper.make_node(MASKED_SOFTMAX, list(inputs), ["probabilities"], domain=DOMAIN, name="site", **values)
    element_type, shape = next(iter(inputs.values()))
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info(name, *value) for name, value in inputs.items()],
        [helper.make_tensor_value_info("probabilities", element_type, shape)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def build(model: Path) -> dict:
    library = plugin_library()
    return run_python(BUILD, model, library, library.with_name("libtensorrt_rtx.so"))


SCORES = ["batch", 12, "queries", "keys"]
OPERANDS = {
    "bias": (TensorProto.FLOAT, ["batch", 1, 1, "keys"]),
    "keep": (TensorProto.BOOL, ["queries", "keys"]),
    "kv_lengths": (TensorProto.INT32, ["batch"]),
    "kv_starts": (TensorProto.INT32, ["batch"]),
}


@pytest.mark.parametrize("element_type", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("operands", [(), ("bias",), ("bias", "keep"), ("kv_starts", "keep", "kv_lengths", "bias")])
def test_builds_every_mix_of_operands(tmp_path: Path, element_type: int, operands: tuple[str, ...]) -> None:
    inputs = {"scores": (element_type, SCORES), **{role: OPERANDS[role] for role in operands}}
    config = MaskedSoftmax(operands=operands, scale=0.125, causal="bottom_right", window_left=16)
    built = build(write_model(tmp_path / "model.onnx", config, inputs))
    assert built["plugins"] == ["site"] and built["bytes"] > 0, built["errors"]


@pytest.mark.parametrize("keep_type", [TensorProto.BOOL, TensorProto.INT8, TensorProto.INT32, TensorProto.INT64])
def test_builds_every_type_of_keep(tmp_path: Path, keep_type: int) -> None:
    inputs = {"scores": (TensorProto.FLOAT16, SCORES), "keep": (keep_type, ["keys"])}
    built = build(write_model(tmp_path / "model.onnx", MaskedSoftmax(operands=("keep",)), inputs))
    assert built["plugins"] == ["site"] and built["bytes"] > 0, built["errors"]


@pytest.mark.parametrize("rank", [2, 3, 4, 5, 6])
def test_builds_every_rank(tmp_path: Path, rank: int) -> None:
    inputs = {"scores": (TensorProto.FLOAT16, [2, 3, 4, 5][: rank - 2] + ["queries", 77])}
    built = build(write_model(tmp_path / "model.onnx", MaskedSoftmax(), inputs))
    assert built["plugins"] == ["site"] and built["bytes"] > 0, built["errors"]


def test_a_mask_that_does_not_broadcast_is_named(tmp_path: Path) -> None:
    inputs = {"scores": (TensorProto.FLOAT16, ["batch", 12, 77, 77]), "bias": (TensorProto.FLOAT16, [76])}
    built = build(write_model(tmp_path / "model.onnx", MaskedSoftmax(operands=("bias",)), inputs))
    expected = (
        "[attngraft] MaskedSoftmax 'site': bias: has 76 where the scores have 77 in dimension 3; it does not broadcast"
    )
    assert built["bytes"] == 0 and expected in built["errors"]


def test_an_illegal_attribute_is_named(tmp_path: Path) -> None:
    inputs = {"scores": (TensorProto.FLOAT16, SCORES)}
    built = build(write_model(tmp_path / "model.onnx", MaskedSoftmax(), inputs, causal="sideways"))
    expected = (
        "[attngraft] MaskedSoftmax 'site' cannot be created: "
        "field 'causal': 'sideways' is not one of none, top_left, bottom_right"
    )
    assert built["bytes"] == 0 and expected in built["errors"]


def test_an_unsupported_type_builds_nothing(tmp_path: Path) -> None:
    inputs = {"scores": (TensorProto.INT32, SCORES)}
    built = build(write_model(tmp_path / "model.onnx", MaskedSoftmax(), inputs))
    assert built["bytes"] == 0 and built["errors"]

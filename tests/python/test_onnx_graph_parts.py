"""Large models in parts: written tensor by tensor, checked without their weights."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from chain_models import FORMS, attention
from onnx import ModelProto, TensorProto

from attngraft.onnx_graph import structure_fault
from attngraft.onnx_graph.external import stored_bytes
from attngraft.onnx_graph.wire import write_in_parts


def with_weights(*sizes: int) -> ModelProto:
    model = FORMS["where before the scale"].model()
    model.producer_name = "someone"
    model.metadata_props.add(key="key", value="value")
    for number, size in enumerate(sizes):
        array = np.arange(size, dtype=np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, f"weight{number}"))
    return model


@pytest.mark.parametrize("sizes", [(), (0,), (1, 127, 128), (5_000, 70_000)])
def test_parts_are_the_same_model(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    model = with_weights(*sizes)
    file = io.BytesIO(b"")
    assert write_in_parts(model, file) == len(file.getvalue())
    read = ModelProto()
    read.ParseFromString(file.getvalue())
    assert read == model
    path = tmp_path / "model.onnx"
    path.write_bytes(file.getvalue())
    onnx.checker.check_model(path)
    onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_local_functions_and_subgraphs_are_written_too() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (bool flag, float[N] x) => (float[N] out) {
            out = If(flag) <
                then_branch = yes () => (float[N] a) { a = local.twice(x) },
                else_branch = no () => (float[N] b) { b = Identity(x) }
            >
        }
        <domain: "local", opset_import: ["" : 17]> twice (x) => (y) { y = Add(x, x) }
    """)
    file = io.BytesIO()
    write_in_parts(model, file)
    assert ModelProto.FromString(file.getvalue()) == model


def test_a_sound_model_has_no_fault() -> None:
    model = with_weights(3, 10_000)
    before = model.SerializeToString()
    assert structure_fault(model) is None
    assert model.SerializeToString() == before


def test_a_fault_is_one_line() -> None:
    model = with_weights(10_000)
    model.graph.node[0].op_type = "NoSuchOperator"
    fault = structure_fault(model)
    assert "NoSuchOperator" in fault
    assert "\n" not in fault


def test_large_weights_are_checked_by_name() -> None:
    model = attention("s = MatMul(q, kt) t = Add(s, large) p = Softmax<axis = -1>(t)")
    assert "large" in structure_fault(model)
    tensor = model.graph.initializer.add(name="large", data_type=TensorProto.FLOAT, dims=[1, 2, 300, 300])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="nowhere.bin")
    assert structure_fault(model) is None


@pytest.mark.parametrize("array", [np.zeros((3, 5), np.float16), np.array(["ab", "c"], object), np.zeros(0, np.int64)])
def test_sizes_of_stored_values(array: np.ndarray) -> None:
    expected = {np.dtype(np.float16): 30, np.dtype(object): 3, np.dtype(np.int64): 0}[array.dtype]
    assert stored_bytes(onnx.numpy_helper.from_array(array, "x")) == expected

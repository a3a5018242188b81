"""Lowering `native`: the same results, and a form that TensorRT-RTX fuses wherever it can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from native_models import BLOCKS, fused_kernels, fusion, lowered
from onnx import TensorProto

from attngraft.lower import parse_target
from attngraft.lower.tensor_types import TensorTypes
from attngraft.verify import verify_models


@pytest.mark.parametrize("name", BLOCKS)
def test_results_are_equal(name: str) -> None:
    model = BLOCKS[name].model()
    native = lowered(model)
    onnx.checker.check_model(native, full_check=True)
    report = verify_models(model, native)
    assert report.passed, report.failure


@pytest.mark.parametrize("name", BLOCKS)
def test_what_tensorrt_fuses_before_and_after(name: str) -> None:
    block = BLOCKS[name]
    model = block.model()
    given = fused_kernels(model)
    assert given == (None if block.fused is None else block.sites * block.fused)
    assert fused_kernels(lowered(model)) == block.sites * block.fused_native


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_the_attention_operator_is_written_where_the_target_has_it() -> None:
    model = BLOCKS["no mask, opset 23"].model()
    assert "Attention" in operators(lowered(model))
    assert "Attention" in operators(lowered(model, target=parse_target("10.14")))
    assert "Attention" not in operators(lowered(model, target=parse_target("10.6")))
    assert "Attention" not in operators(lowered(model, target=None))
    assert "Attention" not in operators(lowered(BLOCKS["no mask"].model()))
    assert "Attention" not in operators(lowered(BLOCKS["Attention, boolean mask"].model()))


def test_no_guard_is_left() -> None:
    for name in ("causal", "roots, added lowest, guard", "roots, added -inf, guard", "guard between casts"):
        native = operators(lowered(BLOCKS[name].model()))
        assert "IsNaN" not in native
        assert ("ReduceMax" in native) == (name in ("roots, added -inf, guard", "guard between casts"))


def test_the_scale_stands_on_the_query_alone() -> None:
    for name in ("roots, added -inf, guard", "filled -inf", "causal"):
        native = lowered(BLOCKS[name].model())
        assert operators(native).count("Mul") == 1
        (scale,) = (node for node in native.graph.node if node.op_type == "Mul")
        assert scale.input[0] == "q"


def normalised(name: str) -> onnx.ModelProto:
    """A block with what follows it in a model: bias, residual and normalisation."""
    model = BLOCKS[name].model()
    width = model.graph.output[0].type.tensor_type.shape.dim[2].dim_value
    rest = onnx.parser.parse_graph(f"""
        rest (float16[B,S,{width}] y, float16[B,S,{width}] x, float16[{width}] ones) => (float16[B,S,{width}] z)
        {{ biased = Add(y, ones) sum = Add(biased, x) z = LayerNormalization(sum, ones, ones) }}
    """)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(width, np.float16), "ones"))
    model.graph.node.extend(rest.node)
    model.graph.output[0].name = "z"
    return model


def test_a_guard_costs_no_kernel() -> None:
    """The zeros and the search for rows without a key are part of the kernel that adds and normalises."""
    guarded, free = (fusion(lowered(normalised(name))) for name in ("roots, added -inf, guard", "no mask"))
    assert guarded.kernels == free.kernels == 1
    assert guarded.launches == free.launches


def test_a_mask_of_keys_is_not_spread_over_the_queries() -> None:
    block = BLOCKS["padding spread over queries, guard"]
    assert "Expand" not in operators(lowered(block.model()))
    other_batch = replace(
        block, extra=block.extra.replace("B", "N")
    )  # TensorRT does not fuse what it may have to spread
    assert "Expand" in operators(lowered(other_batch.model()))


@pytest.mark.parametrize("name", ["torchscript", "softmax in fp32"])
def test_a_half_type_is_left_only_where_the_softmax_was_in_fp32(name: str) -> None:
    native = lowered(BLOCKS[name].model())
    types = TensorTypes(native)
    wide = {node.op_type for node in native.graph.node if types.of(node.output[0]) == TensorProto.FLOAT}
    assert wide <= {"Cast", "Add", "Where", "Softmax"}
    assert "Softmax" in wide

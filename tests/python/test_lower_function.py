"""The portable function body equals the oracle, for every mix of the contract, in old and new opsets."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from test_oracle import problems

from attngraft.contract import DOMAIN, MASKED_SOFTMAX, EmptyRows, MaskedSoftmax
from attngraft.errors import ContractError
from attngraft.lower.onnx_function import masked_softmax_function
from attngraft.onnx_graph import onnx_dtype
from attngraft.verify.oracle import masked_softmax

OPSETS = (11, 13, 17, 18, 21)
BFLOAT16_SINCE = 13
"""The opset that gave Cast and arithmetic bfloat16."""

TOLERANCE = {"float32": 2e-6, "float16": 6e-4, "bfloat16": 4e-3}
"""Absolute, of probabilities: a few roundings in fp32, then one to the output's type."""


def run_function(scores: np.ndarray, config: MaskedSoftmax, operands: dict[str, np.ndarray], opset: int) -> np.ndarray:
    """The function's result in ONNX Runtime, as float32. bfloat16 goes in and out through casts: NumPy has no such
    type."""
    dtype = onnx_dtype(scores.dtype.name)
    function = masked_softmax_function(config, dtype, scores.ndim, opset)
    node = helper.make_node(
        MASKED_SOFTMAX, ["typed", *config.operands], ["p"], domain=DOMAIN, plugin_version="1", **config.attributes()
    )
    nodes = [
        helper.make_node("Cast", ["scores"], ["typed"], to=dtype),
        node,
        helper.make_node("Cast", ["p"], ["out"], to=TensorProto.FLOAT),
    ]
    inputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, scores.shape)]
    for role in config.operands:
        inputs.append(helper.make_tensor_value_info(role, onnx_dtype(operands[role].dtype.name), operands[role].shape))
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, scores.shape)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)],
        functions=[function],
        ir_version=8,
    )
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"scores": scores.astype(np.float32), **{r: operands[r] for r in config.operands}})[0]


@settings(max_examples=120)
@given(problems(), st.sampled_from(OPSETS), st.booleans())
def test_equals_the_oracle(problem: tuple, opset: int, brain: bool) -> None:
    scores, config, operands = problem
    if brain and opset >= BFLOAT16_SINCE:
        scores = scores.astype(ml_dtypes.bfloat16)
        operands = {r: o.astype(np.float32) if r == "bias" else o for r, o in operands.items()}
    expected = masked_softmax(scores, config, **operands)
    actual = run_function(scores, config, operands, opset)
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE[scores.dtype.name])
    if config.empty_rows == EmptyRows.ZEROS:
        assert (actual[expected == 0] == 0).all()


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity(opset: int, bad: float) -> None:
    scores = np.zeros((4, 3), np.float32)
    scores[1, 0], scores[2, 2] = bad, bad  # row 1 in an allowed place, row 2 in a disallowed one
    scores[3] = -np.inf
    keep = np.array([True, True, False])
    config = MaskedSoftmax(operands=("keep",))
    actual = run_function(scores, config, {"keep": keep}, opset)
    np.testing.assert_array_equal(actual, masked_softmax(scores, config, keep=keep))
    assert np.isnan(actual[1]).all()


def test_lengths_need_the_rank() -> None:
    with pytest.raises(ContractError, match="rank"):
        masked_softmax_function(MaskedSoftmax(operands=("kv_lengths",)), TensorProto.FLOAT, None, 17)


def test_function_declares_the_node_attributes() -> None:
    function = masked_softmax_function(MaskedSoftmax(), TensorProto.FLOAT, 4, 17, overload="variant2")
    assert set(function.attribute) == {*MaskedSoftmax().attributes(), "plugin_version", "plugin_namespace"}
    assert function.overload == "variant2"

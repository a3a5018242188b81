"""The portable body: attngraft::MaskedSoftmax as an ONNX local function of standard operators, for any runtime.

One function is made for one configuration, element type and opset. It computes in fp32, follows the contract to the
letter, and uses only operators that exist in the model's own opset (11 or later).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, TensorProto

from attngraft.contract import DOMAIN, MASKED_SOFTMAX, CausalMode, EmptyRows, MaskedSoftmax, Role
from attngraft.errors import ContractError

__all__ = ["PLUGIN_ATTRIBUTES", "masked_softmax_function"]

PLUGIN_ATTRIBUTES = ("plugin_version", "plugin_namespace")
"""What TensorRT's parser reads to find the plugin; the body has no use for them."""

REDUCE_AXES_ARE_INPUT = 18
"""From this opset on ReduceMax takes its axes as an input."""


def masked_softmax_function(
    config: MaskedSoftmax, dtype: int, rank: int | None, opset: int, overload: str = ""
) -> FunctionProto:
    """The function for scores of ONNX element type `dtype`.

    `rank` is the scores' rank, which only kv_lengths and kv_starts need to be known. Raises ContractError without it.
    """
    body = _Body(opset)
    s = _biased_scores(body, config)
    present = body.add("Not", body.add("Equal", s, body.constant(-np.inf)))
    masks = [*_operand_masks(body, config, rank), *_index_masks(body, config)]
    allowed = present
    for mask in masks:
        allowed = body.add("And", allowed, mask)
    probabilities = _softmax_over(body, s, allowed)
    filled = body.add("Where", body.any_in_row(allowed), probabilities, _empty_row(body, config, s, present))
    body.nodes.append(onnx.helper.make_node("Cast", [filled], ["probabilities"], to=dtype))
    function = onnx.helper.make_function(
        DOMAIN,
        MASKED_SOFTMAX,
        ["scores", *config.operands],
        ["probabilities"],
        body.nodes,
        [onnx.helper.make_opsetid("", opset)],
        attributes=[*config.attributes(), *PLUGIN_ATTRIBUTES],
    )
    if overload:
        function.overload = overload
    return function


@dataclass
class _Body:
    """The nodes of a function body, in the making."""

    opset: int
    nodes: list[NodeProto] = field(default_factory=list)

    def add(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """Appends a node with one output and returns the output's name."""
        output = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op_type, list(inputs), [output], **attributes))
        return output

    def constant(self, value: float | int | Sequence[int]) -> str:
        """A constant: fp32 for a float, int64 for whole numbers."""
        array = np.asarray(value, dtype=np.float32 if isinstance(value, float) else np.int64)
        return self.add("Constant", value=onnx.numpy_helper.from_array(array))

    def dimension(self, axis: int) -> str:
        """A dimension of the scores, int64, rank 0."""
        return self.add("Gather", self.add("Shape", "scores"), self.constant(axis), axis=0)

    def indices(self, axis: int) -> str:
        """0, 1, ... along a dimension of the scores, int64 [n]."""
        return self.add("Range", self.constant(0), self.dimension(axis), self.constant(1))

    def any_in_row(self, condition: str) -> str:
        """Whether a condition holds anywhere in its last dimension, which becomes 1."""
        numbers = self.add("Cast", condition, to=TensorProto.FLOAT)
        if self.opset >= REDUCE_AXES_ARE_INPUT:
            top = self.add("ReduceMax", numbers, self.constant([-1]), keepdims=1)
        else:
            top = self.add("ReduceMax", numbers, axes=[-1], keepdims=1)
        return self.add("Cast", top, to=TensorProto.BOOL)


def _biased_scores(body: _Body, config: MaskedSoftmax) -> str:
    s = body.add("Cast", "scores", to=TensorProto.FLOAT)
    if config.scale != 1.0:
        s = body.add("Mul", s, body.constant(float(config.scale)))
    if config.softcap:
        cap = body.constant(float(config.softcap))
        s = body.add("Mul", body.add("Tanh", body.add("Div", s, cap)), cap)
    if Role.BIAS in config.operands:
        s = body.add("Add", s, body.add("Cast", Role.BIAS, to=TensorProto.FLOAT))
    return s


def _operand_masks(body: _Body, config: MaskedSoftmax, rank: int | None) -> list[str]:
    masks = []
    if Role.KEEP in config.operands:
        masks.append(body.add("Cast", Role.KEEP, to=TensorProto.BOOL))
    lengths = [role for role in (Role.KV_LENGTHS, Role.KV_STARTS) if role in config.operands]
    if lengths and rank is None:
        raise ContractError(f"{lengths[0]}: the scores' rank must be known; run onnx.shape_inference on the model")
    for role in lengths:
        wide = body.add("Cast", role, to=TensorProto.INT64)
        bound = body.add("Reshape", wide, body.constant([-1, *[1] * (rank - 1)]))
        before = body.add("Less", body.indices(-1), bound)
        masks.append(before if role == Role.KV_LENGTHS else body.add("Not", before))
    return masks


def _index_masks(body: _Body, config: MaskedSoftmax) -> list[str]:
    """Causality and the window, as comparisons of key indices [Sk] with bounds [Sq, 1]."""
    sides = (config.window_left, config.window_right)
    if config.causal == CausalMode.NONE and max(sides) < 0:
        return []
    keys = body.indices(-1)
    diagonal = body.add("Reshape", body.indices(-2), body.constant([-1, 1]))
    if config.causal != CausalMode.TOP_LEFT:
        diagonal = body.add("Add", diagonal, body.add("Sub", body.dimension(-1), body.dimension(-2)))
    masks = []
    if config.causal != CausalMode.NONE:
        masks.append(body.add("Not", body.add("Greater", keys, diagonal)))
    if config.window_left >= 0:
        first = body.add("Sub", diagonal, body.constant(config.window_left))
        masks.append(body.add("Not", body.add("Less", keys, first)))
    if config.window_right >= 0:
        last = body.add("Add", diagonal, body.constant(config.window_right))
        masks.append(body.add("Not", body.add("Greater", keys, last)))
    return masks


def _softmax_over(body: _Body, s: str, allowed: str) -> str:
    """exp(-inf) is exactly 0; a NaN or +inf among the allowed makes the standard Softmax NaN in the whole row."""
    return body.add("Softmax", body.add("Where", allowed, s, body.constant(-np.inf)), axis=-1)


def _empty_row(body: _Body, config: MaskedSoftmax, s: str, present: str) -> str:
    if config.empty_rows == EmptyRows.UNIFORM:
        return body.add("Div", body.constant(1.0), body.add("Cast", body.dimension(-1), to=TensorProto.FLOAT))
    zero = body.constant(0.0)
    if config.empty_rows == EmptyRows.UNMASKED:
        return body.add("Where", body.any_in_row(present), _softmax_over(body, s, present), zero)
    return zero

"""Operators of ONNX Runtime's own (com.microsoft), which its optimizer writes and TensorRT does not know, taken apart.

In: a node. Out: standard nodes that compute the same under the same output names, or None where the node asks for more
than is known here. Attention becomes plain attention, which is then recognised like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from attngraft.lower.parts import NodeParts

__all__ = ["DOMAIN", "PARTS", "NodeFacts", "take_apart"]

DOMAIN = "com.microsoft"

LAYER_NORMALIZATION = 17
"""The opset that brought the operator."""

SPLIT_IS_INPUT = 13
"""From this opset on Split takes its sizes as an input."""

AXES_ARE_INPUT_OF_SUM = 13
"""From this opset on ReduceSum takes its axes as an input."""

DEFAULT_EPSILON = 1e-12
DEFAULT_MASK_VALUE = -10000.0
TANH_GELU = (math.sqrt(2 / math.pi), 0.044715)
"""Of FastGelu: x / 2 * (1 + tanh(a * (x + b * x^3)))."""


@dataclass(frozen=True)
class NodeFacts:
    """What a node's surroundings say. dtype: its floating-point type. opset: the model's. width: of an attention's
    query, all heads together. mask_rank: of its mask. None: not known."""

    dtype: int
    opset: int
    width: int | None = None
    mask_rank: int | None = None


@dataclass
class _Parts(NodeParts):
    """The nodes that replace an operator, and what is known of it."""

    facts: NodeFacts

    def typed(self, value: float) -> str:
        """A number of the node's floating-point type."""
        return self.number(value, self.facts.dtype)

    @property
    def has_sizes(self) -> bool:
        """Whether the number of heads and their size are known."""
        heads = int(self.attribute("num_heads", 0))
        return bool(heads) and self.facts.width is not None and self.facts.width % heads == 0

    def has_readable_mask(self, index: int) -> bool:
        return not self.input(index) or self.facts.mask_rank in (1, 2)

    def thirds(self, tensor: str, axis: int) -> list[str]:
        """Query's, key's and value's part of a packed tensor."""
        sizes = [self.facts.width] * 3
        if self.facts.opset >= SPLIT_IS_INPUT:
            first = self.add("Split", tensor, self.integers(sizes), count=3, axis=axis)
        else:
            first = self.add("Split", tensor, count=3, axis=axis, split=sizes)
        return [first, f"{first}_1", f"{first}_2"]

    def normalized(self, x: str, scale: str, bias: str, output: str) -> str:
        """Layer normalization over the last axis."""
        epsilon = float(self.attribute("epsilon", DEFAULT_EPSILON))
        if self.facts.opset >= LAYER_NORMALIZATION:
            inputs = (x, scale, bias) if bias else (x, scale)
            return self.add("LayerNormalization", *inputs, output=output, axis=-1, epsilon=epsilon)
        centred = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1], keepdims=1))
        variance = self.add("ReduceMean", self.add("Mul", centred, centred), axes=[-1], keepdims=1)
        deviation = self.add("Sqrt", self.add("Add", variance, self.typed(epsilon)))
        normal = self.add("Div", centred, deviation)
        if not bias:
            return self.add("Mul", normal, scale, output=output)
        return self.add("Add", self.add("Mul", normal, scale), bias, output=output)


def take_apart(node: NodeProto, facts: NodeFacts) -> list[NodeProto] | None:
    """Standard nodes in place of `node`; None if it is none of these operators or has inputs that are not covered."""
    if node.domain != DOMAIN or node.op_type not in PARTS:
        return None
    parts = _Parts(node, facts)
    return parts.nodes if PARTS[node.op_type](parts) else None


def _skip_normalization(parts: _Parts) -> bool:
    """Sum of input, skip and bias, normalized; output 3 is the sum."""
    if any(parts.node.output[1:3]):
        return False
    wanted = parts.node.output[3] if len(parts.node.output) > 3 else None
    added = parts.add("Add", parts.input(0), parts.input(1), output=None if parts.input(4) else wanted)
    if parts.input(4):
        added = parts.add("Add", added, parts.input(4), output=wanted)
    parts.normalized(added, parts.input(2), parts.input(3), parts.node.output[0])
    return True


def _embeddings(parts: _Parts) -> bool:
    """Word, position and segment embeddings summed and normalized; output 1 counts each row's mask, 2 is the sum."""
    ids, segments, mask, positions = (parts.input(index) for index in (0, 1, 7, 8))
    total = parts.add("Gather", parts.input(2), ids)
    if not positions:
        length = parts.add("Gather", parts.add("Shape", ids), parts.integers(1))
        positions = parts.add("Range", parts.integers(0), length, parts.integers(1))
    total = parts.add("Add", total, parts.add("Gather", parts.input(3), positions))
    outputs = [*parts.node.output, "", ""]
    if segments and parts.input(4):
        total = parts.add("Add", total, parts.add("Gather", parts.input(4), segments))
    if outputs[2]:
        parts.add("Identity", total, output=outputs[2])
    parts.normalized(total, parts.input(5), parts.input(6), outputs[0])
    if outputs[1]:
        _count_mask(parts, ids, mask, outputs[1])
    return True


def _count_mask(parts: _Parts, ids: str, mask: str, output: str) -> None:
    """int32 [B]: how many 1s each row of the mask has; 0 without a mask."""
    one = parts.add("Cast", parts.integers(1), to=TensorProto.INT32)
    ones = parts.add("Cast", parts.add("Equal", mask, one), to=TensorProto.INT32) if mask else None
    counted = ones or parts.add("Mul", ids, parts.add("Cast", parts.integers(0), to=TensorProto.INT32))
    if parts.facts.opset >= AXES_ARE_INPUT_OF_SUM:
        parts.add("ReduceSum", counted, parts.integers([1]), output=output, keepdims=0)
    else:
        parts.add("ReduceSum", counted, output=output, axes=[1], keepdims=0)


def _gelu(parts: _Parts) -> bool:
    """x / 2 * (1 + erf(x / sqrt(2))), of x plus the bias for BiasGelu."""
    x = parts.add("Add", parts.input(0), parts.input(1)) if parts.input(1) else parts.input(0)
    tail = parts.add("Erf", parts.add("Div", x, parts.typed(math.sqrt(2))))
    return _half_of(parts, x, tail)


def _fast_gelu(parts: _Parts) -> bool:
    x = parts.add("Add", parts.input(0), parts.input(1)) if parts.input(1) else parts.input(0)
    factor, cubic = TANH_GELU
    cube = parts.add("Mul", parts.add("Mul", x, x), x)
    inner = parts.add("Add", x, parts.add("Mul", cube, parts.typed(cubic)))
    return _half_of(parts, x, parts.add("Tanh", parts.add("Mul", inner, parts.typed(factor))))


def _half_of(parts: _Parts, x: str, tail: str) -> bool:
    gate = parts.add("Mul", parts.add("Add", tail, parts.typed(1.0)), parts.typed(0.5))
    parts.add("Mul", x, gate, output=parts.node.output[0])
    return True


def _quick_gelu(parts: _Parts) -> bool:
    x = parts.input(0)
    gate = parts.add("Sigmoid", parts.add("Mul", x, parts.typed(parts.attribute("alpha", 1.702))))
    parts.add("Mul", x, gate, output=parts.node.output[0])
    return True


def _packed_attention(parts: _Parts) -> bool:
    """The packed projection, and plain attention behind it. Not covered: caches, rotation, projections of different
    widths, masks of other ranks than 1 (lengths) and 2."""
    asked = any(parts.attribute(name, 0) for name in ("do_rotary", "unidirectional", "qkv_hidden_sizes"))
    more = any(parts.input(index) for index in (4, 6)) or any(parts.node.output[1:])
    if asked or more or not parts.has_sizes or not parts.has_readable_mask(3):
        return False
    packed = parts.add("MatMul", parts.input(0), parts.input(1))
    packed = parts.add("Add", packed, parts.input(2)) if parts.input(2) else packed
    _plain_attention(parts, parts.thirds(packed, axis=2), mask=3, bias=5)
    return True


def _multi_head_attention(parts: _Parts) -> bool:
    """Plain attention over Q, K and V [B, S, hidden]. Not covered: caches, packed operands, causality, and masks of
    other ranks than 1 (lengths) and 2."""
    more = any(parts.input(index) for index in range(6, len(parts.node.input))) or any(parts.node.output[1:])
    packed = not (parts.input(1) and parts.input(2))
    if packed or more or parts.attribute("unidirectional", 0) or not parts.has_sizes or not parts.has_readable_mask(4):
        return False
    operands = [parts.input(index) for index in range(3)]
    if parts.input(3):
        biases = parts.thirds(parts.input(3), axis=0)
        operands = [parts.add("Add", *pair) for pair in zip(operands, biases, strict=True)]
    _plain_attention(parts, operands, mask=4, bias=5)
    return True


def _plain_attention(parts: _Parts, operands: list[str], mask: int, bias: int) -> None:
    """Attention over Q, K and V [B, S, hidden]; `mask` and `bias` say which inputs of the node mask."""
    heads, width = int(parts.attribute("num_heads", 0)), parts.facts.width
    shape = parts.integers([0, 0, heads, width // heads])
    query, key, values = (
        parts.add("Transpose", parts.add("Reshape", name, shape), perm=perm)
        for name, perm in zip(operands, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    scores = parts.add("MatMul", query, key)
    scale = float(parts.attribute("scale", 0.0)) or (width // heads) ** -0.5
    scores = parts.add("Mul", scores, parts.typed(scale))
    if parts.input(bias):  # before the mask, as ONNX Runtime rounds: it shows in rows that are masked as a whole
        scores = parts.add("Add", scores, parts.input(bias))
    if parts.input(mask):
        scores = parts.add("Add", scores, _additive_mask(parts, parts.input(mask), operands[1]))
    probabilities = parts.add("Softmax", scores, axis=3)
    context = parts.add("Transpose", parts.add("MatMul", probabilities, values), perm=[0, 2, 1, 3])
    parts.add("Reshape", context, parts.integers([0, 0, width]), output=parts.node.output[0])


def _additive_mask(parts: _Parts, mask: str, keys: str) -> str:
    """[B, 1, 1, S]: 0 where a key may be attended, the node's mask value elsewhere. `keys` is [B, S, hidden]."""
    if parts.facts.mask_rank == 1:
        length = parts.add("Gather", parts.add("Shape", keys), parts.integers(1))
        places = parts.add("Range", parts.integers(0), length, parts.integers(1))
        lengths = parts.add("Reshape", parts.add("Cast", mask, to=TensorProto.INT64), parts.integers([-1, 1, 1, 1]))
        allowed = parts.add("Less", places, lengths)
    else:
        upright = parts.add("Reshape", mask, parts.integers([0, 1, 1, -1]))
        allowed = parts.add("Cast", upright, to=TensorProto.BOOL)
    value = parts.typed(float(parts.attribute("mask_filter_value", DEFAULT_MASK_VALUE)))
    return parts.add("Where", allowed, parts.typed(0.0), value)


PARTS: dict[str, Callable[[_Parts], bool]] = {
    "Attention": _packed_attention,
    "BiasGelu": _gelu,
    "EmbedLayerNormalization": _embeddings,
    "FastGelu": _fast_gelu,
    "Gelu": _gelu,
    "MultiHeadAttention": _multi_head_attention,
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_normalization,
}

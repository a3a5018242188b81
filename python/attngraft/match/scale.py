"""The scale: a scalar Mul or Div on the scores, or on Q and K before their product.

RoPE, ALiBi and normalisation multiply by tensors; only a constant with one element (or a computed scalar, which stays
in the graph) is a scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from attngraft.match.operators import attribute, is_pass_through, is_standard
from attngraft.match.records import Bypass, Scale
from attngraft.match.sizes import scalar_value
from attngraft.onnx_graph import GraphView

__all__ = ["ScalarFactor", "combine_scales", "operand_scales", "scalar_factor", "scale_factor"]


@dataclass(frozen=True)
class ScalarFactor:
    """`node` gives `tensor` times `value`; value None: a scalar that the graph computes."""

    tensor: str
    value: float | None


def scalar_factor(view: GraphView, node: NodeProto | None) -> ScalarFactor | None:
    """Reads a node as a multiplication by one number: Mul in either order, Div by it."""
    if not is_standard(node, "Mul", "Div"):
        return None
    for index, other in ((1, 0), (0, 1)):
        if index == 0 and node.op_type == "Div":
            break
        value = view.scalar(node.input[index])
        if value is not None and math.isfinite(value) and value != 0:
            return ScalarFactor(node.input[other], value if node.op_type == "Mul" else 1.0 / value)
        if value is None and _is_computed_scalar(view, node.input[index]):
            return ScalarFactor(node.input[other], None)
    return None


def scale_factor(view: GraphView, node: NodeProto | None) -> ScalarFactor | None:
    """A scalar factor that can be a scale: a negative one would turn a mask of -inf into +inf. Its value is known too
    where the graph computes it from constants and known dimensions alone."""
    factor = scalar_factor(view, node)
    if factor is None or factor.value is not None:
        return None if factor is None or factor.value < 0 else factor
    value = scalar_value(view, node.input[1] if node.input[0] == factor.tensor else node.input[0])
    if value is None or not math.isfinite(value) or value <= 0:
        return factor
    return ScalarFactor(factor.tensor, 1.0 / value if node.op_type == "Div" else value)


def operand_scales(view: GraphView, product: NodeProto, dtype: int) -> tuple[Scale, tuple[Bypass, ...]]:
    """The scales on Q and K of a product, with the bypasses that take them out of the graph.

    In fp16 they stay: the product of unscaled Q and K may exceed 65504 (which is why SDPA splits its scale between
    them).
    """
    value, places, bypasses, note = 1.0, [], [], None
    if not is_standard(product, "MatMul"):
        return Scale(), ()
    for index, place in ((0, "query"), (1, "key")):
        found = _operand_factor(view, product, index)
        if found is None:
            continue
        factor, bypass = found
        if factor.value is None:
            places.append("computed")
            note = f"computed scale stays on the {place}"
        elif dtype == TensorProto.FLOAT16:
            places.append(place)
            note = "stays on query and key: in fp16 their unscaled product may overflow"
        else:
            places.append(place)
            value *= factor.value
            bypasses.append(bypass)
    return Scale(value, tuple(dict.fromkeys(places)), note), tuple(bypasses)


def combine_scales(on_scores: Scale, on_operands: Scale) -> Scale:
    """Both kinds of scale as one."""
    return Scale(
        on_scores.value * on_operands.value,
        tuple(dict.fromkeys((*on_operands.places, *on_scores.places))),
        on_operands.note or on_scores.note,
    )


def _operand_factor(view: GraphView, product: NodeProto, index: int) -> tuple[ScalarFactor, Bypass] | None:
    """The factor directly on an operand of the product, or behind the transpose that only the product reads."""
    consumer, position = product, index
    node = view.maker(product.input[index])
    if is_standard(node, "Transpose") and view.is_only_read_by(node.output[0], product):
        consumer, position, node = node, 0, view.maker(node.input[0])
    while is_pass_through(view, node):
        consumer, position, node = node, 0, view.maker(node.input[0])
    if consumer is not product and not view.is_only_read_by(consumer.output[0], *view.readers(consumer.output[0])[:1]):
        return None
    factor = scale_factor(view, node)
    if factor is None:
        return None
    return factor, Bypass(consumer.output[0], position, factor.tensor)


def _is_computed_scalar(view: GraphView, name: str) -> bool:
    """A value with one element that does not come from the activations: the square root of a dimension, say."""
    if view.shape(name) not in ((), (1,)):
        return False
    node = view.maker(name)
    # What SDPA computes comes down to Shape through scalar arithmetic; a learned temperature is a constant.
    for _ in range(12):
        if node is None:
            return False
        if node.op_type in ("Shape", "Size"):
            return True
        if attribute(node, "to") is None and node.op_type not in _SCALAR_ARITHMETIC:
            return False
        inputs = [name for name in node.input if name and not view.is_constant(name)]
        if len(inputs) != 1:
            return False
        node = view.maker(inputs[0])
    return False


_SCALAR_ARITHMETIC = frozenset(
    {
        "Sqrt",
        "Div",
        "Mul",
        "Pow",
        "Reciprocal",
        "Gather",
        "Slice",
        "Squeeze",
        "Unsqueeze",
        "Cast",
        "Identity",
        "Reshape",
    }
)

"""Small questions about single nodes that several matchers ask."""

from __future__ import annotations

from typing import Any, TypeGuard

import onnx
from onnx import NodeProto

from attngraft.onnx_graph import GraphView

__all__ = [
    "attribute",
    "axis_is_last",
    "cast_types",
    "exchanges_last_two",
    "is_cast",
    "is_pass_through",
    "is_pooling_product",
    "is_product",
    "is_standard",
]

PRODUCTS = frozenset({"MatMul", "Einsum", "Gemm", "FusedMatMul"})


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """The Python value of a node's attribute."""
    for item in node.attribute:
        if item.name == name:
            return onnx.helper.get_attribute_value(item)
    return default


def is_standard(node: NodeProto | None, *op_types: str) -> TypeGuard[NodeProto]:
    """Whether the node is one of the given operators of the standard domain."""
    return node is not None and node.domain in ("", "ai.onnx") and node.op_type in op_types


def is_product(view: GraphView, node: NodeProto | None) -> bool:
    """A matrix product of two activations: neither operand comes from the weights alone."""
    return (
        node is not None
        and node.op_type in PRODUCTS
        and len(node.input) >= 2
        and not any(view.is_constant(name) for name in node.input[:2])
    )


def is_pooling_product(view: GraphView, node: NodeProto | None) -> bool:
    """A matrix product whose left operand is made of weights and whose right one is an activation: a learned query,
    which pools the sequence that keys and values come from."""
    return is_standard(node, "MatMul") and view.is_constant(node.input[0]) and not view.is_constant(node.input[1])


def exchanges_last_two(node: NodeProto) -> bool:
    """Whether a Transpose exchanges the last two dimensions and leaves the others."""
    perm = list(attribute(node, "perm", ()))
    rank = len(perm)
    return rank >= 2 and perm == [*range(rank - 2), rank - 1, rank - 2]


def axis_is_last(axis: int, shape: tuple | None) -> bool:
    """Whether an axis, as a node states it, is the last one of a tensor of that shape."""
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


def is_cast(node: NodeProto | None) -> TypeGuard[NodeProto]:
    return is_standard(node, "Cast")


def cast_types(view: GraphView, node: NodeProto) -> tuple[int, int]:
    """The element types before and after a Cast."""
    return view.dtype(node.input[0]), int(attribute(node, "to", 0))


def is_pass_through(view: GraphView, node: NodeProto | None) -> bool:
    """A node whose first output equals its first input: Identity, a Cast to the same type, Dropout outside training."""
    if is_standard(node, "Identity"):
        return True
    if is_cast(node):
        before, after = cast_types(view, node)
        return before == after
    if is_standard(node, "Dropout"):
        training = node.input[2] if len(node.input) > 2 else ""
        return len([name for name in node.output if name]) == 1 and (not training or view.scalar(training) == 0)
    return False

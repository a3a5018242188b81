"""Is this softmax attention? Loose searches: up to the product of Q and K, down to the product with V."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import NodeProto

from attngraft.match.operators import is_product
from attngraft.onnx_graph import GraphView

__all__ = ["depends_on_inputs", "find_product", "find_values_product", "nodes_above"]

MAX_STEPS = 24
"""Longer than any chain between a product and its softmax seen in 60 architectures (the longest has 11 nodes)."""

DATA_INPUTS = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min"), (0, 1)),
    "Where": (1, 2),
    **dict.fromkeys(
        (
            "Cast",
            "Identity",
            "Reshape",
            "Transpose",
            "Squeeze",
            "Unsqueeze",
            "Tanh",
            "Clip",
            "Dropout",
            "Flatten",
            "Neg",
        ),
        (0,),
    ),
}
"""Operators that scores or probabilities pass through, and the inputs by which they do."""


def find_product(view: GraphView, name: str) -> NodeProto | None:
    """The product of two activations that `name` is made of by elementwise and shape operators; None if there is
    none."""
    return next((node for node in nodes_above(view, name) if is_product(view, node)), None)


def nodes_above(view: GraphView, name: str) -> Iterator[NodeProto]:
    """The nodes that `name` is made of, nearest first, up to and including products of two activations."""
    seen: set[str] = set()
    level = [name]
    for _ in range(MAX_STEPS):
        following: list[str] = []
        for current in level:
            node = view.maker(current)
            if node is None or current in seen:
                continue
            seen.add(current)
            yield node
            if not is_product(view, node):
                following += [node.input[i] for i in DATA_INPUTS.get(node.op_type, ()) if i < len(node.input)]
        level = following


def depends_on_inputs(view: GraphView, name: str) -> bool:
    """Whether a tensor is made from values of the graph's inputs, not from weights and the inputs' shapes alone."""
    seen: set[str] = set()
    pending = [name]
    while pending:
        current = pending.pop()
        if current in seen or view.is_constant(current):
            continue
        seen.add(current)
        node = view.maker(current)
        if node is None:
            return True
        if node.op_type not in ("Shape", "Size"):
            pending += [read for read in node.input if read]
    return False


def find_values_product(view: GraphView, name: str) -> NodeProto | None:
    """The product of the probabilities `name` with another activation, the values; None if nothing of the kind
    follows."""
    seen: set[str] = set()
    level = [name]
    for _ in range(MAX_STEPS):
        following: list[str] = []
        for current in level:
            if current in seen:
                continue
            seen.add(current)
            for node in view.readers(current):
                if is_product(view, node):
                    return node
                if (
                    node.op_type == "Einsum"
                ):  # with the weights: talking heads, which mix the probabilities of several heads
                    following.append(node.output[0])
                elif any(i < len(node.input) and node.input[i] == current for i in DATA_INPUTS.get(node.op_type, ())):
                    following.append(node.output[0])
        level = following
    return None

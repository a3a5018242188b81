"""Is this softmax attention? Loose searches: up to the product of Q and K, down to the product with V."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import NodeProto

from attngraft.match.operators import attribute, is_pooling_product, is_product, is_standard
from attngraft.onnx_graph import GraphView

__all__ = [
    "depends_on_inputs",
    "find_pooling_product",
    "find_product",
    "find_values_product",
    "is_factorised",
    "nodes_above",
]

MAX_STEPS = 24
"""Longer than any chain between a product and its softmax seen in 60 architectures (the longest has 11 nodes)."""

DATA_INPUTS = {
    **dict.fromkeys(("Add", "Sum", "Sub", "Mul", "Div", "Max", "Min", "Concat"), (0, 1)),
    "Where": (1, 2),
    **dict.fromkeys(("ScatterND", "ScatterElements"), (0, 2)),
    **dict.fromkeys(
        (
            "Cast",
            "Expand",
            "Gather",
            "Pad",
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
            "Slice",
            "QuantizeLinear",
            "DequantizeLinear",
        ),
        (0,),
    ),
}
"""Operators that scores or probabilities pass through, and the inputs by which they do. Concat and Slice put an
attention sink beside the scores and take its probability off; Longformer puts its scores together from blocks, by
Pad, Gather and ScatterND too."""


def find_product(view: GraphView, name: str) -> NodeProto | None:
    """The product of two activations that `name` is made of by elementwise and shape operators; None if there is
    none."""
    return next((node for node in nodes_above(view, name) if is_product(view, node)), None)


def find_pooling_product(view: GraphView, name: str) -> NodeProto | None:
    """The product of a learned query with keys that `name` is made of; None if there is none.

    A classifier or a gate multiplies activations by weights from the right; a query pools a sequence from the left.
    """
    return next((node for node in nodes_above(view, name) if is_pooling_product(view, node)), None)


def nodes_above(view: GraphView, name: str) -> Iterator[NodeProto]:
    """The nodes that `name` is made of, nearest first, up to and including products of two activations."""
    seen: set[str] = set()
    level = [name]
    for _ in range(MAX_STEPS):
        following: list[str] = []
        for current in level:
            node = _maker(view, current)
            if node is None or current in seen:
                continue
            seen.add(current)
            yield node
            if is_product(view, node):
                continue
            if mixes_heads(view, node):
                following.append(_mixed(view, node))
            following += [node.input[i] for i in DATA_INPUTS.get(node.op_type, ()) if i < len(node.input)]
        level = following


def _maker(view: GraphView, name: str) -> NodeProto | None:
    """The node that makes a tensor, in an outer graph too: a body may take its scores from outside."""
    inner: GraphView | None = view
    while inner is not None:
        node = inner.maker(name)
        if node is not None or any(value.name == name for value in inner.graph.input):
            return node
        inner = inner.outer
    return None


def mixes_heads(view: GraphView, node: NodeProto) -> bool:
    """Talking heads: scores or probabilities of all heads are mixed by weights, by an Einsum, a 1x1 convolution, or a
    MatMul between two transposes that bring the heads to the end and back."""
    if is_standard(node, "Einsum"):
        return len(node.input) == 2 and sum(view.is_constant(name) for name in node.input) == 1
    if is_standard(node, "Conv"):
        weights = view.shape(node.input[1])
        return view.is_constant(node.input[1]) and weights is not None and tuple(weights[2:]) == (1, 1)
    if is_standard(node, "MatMul") and view.is_constant(node.input[1]):
        weights, before = view.shape(node.input[1]), view.maker(node.input[0])
        is_square = weights is not None and len(weights) == 2 and weights[0] == weights[1]
        return is_square and is_standard(before, "Transpose") and list(attribute(before, "perm", ())) == [0, 2, 3, 1]
    return False


def _mixed(view: GraphView, node: NodeProto) -> str:
    return next(name for name in node.input if not view.is_constant(name))


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
                reads = any(i < len(node.input) and node.input[i] == current for i in DATA_INPUTS.get(node.op_type, ()))
                if reads or mixes_heads(view, node):
                    following.append(node.output[0])
        level = following
    return None


def is_factorised(view: GraphView, product: NodeProto) -> bool:
    """Whether a product of normalised keys with values is multiplied with another activation, the queries, as linear
    attention does: softmax(K)^T . V first, then Q times that."""
    return find_values_product(view, product.output[0]) is not None

"""Attention that is one node already, the standard operator or ONNX Runtime's: there is no softmax to replace."""

from __future__ import annotations

from onnx import NodeProto

from attngraft.match.operators import attribute
from attngraft.match.records import Scale, Site
from attngraft.match.softmax import NOT_IN_THIS_VERSION
from attngraft.onnx_graph import GraphView, dtype_name, node_label

__all__ = ["FUSED_OPERATORS", "match_fused"]

FUSED_OPERATORS = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})


def match_fused(view: GraphView, node: NodeProto, path: str) -> Site:
    """The record of a fused attention node: shown, and kept as it is."""
    reason = f"{node.op_type} is one fused operator: there is no softmax in the graph to replace"
    shape = view.shape(node.input[0])
    heads = attribute(node, "q_num_heads") or attribute(node, "num_heads")
    if heads is None and shape is not None and len(shape) == 4 and isinstance(shape[1], int):
        heads = shape[1]
    head_size = shape[-1] if shape is not None and len(shape) == 4 and isinstance(shape[-1], int) else None
    dtype = view.dtype(node.input[0])
    scale = attribute(node, "scale")
    return Site(
        name=node_label(node),
        graph=path,
        node=node.output[0],
        scores="",
        probabilities="",
        config=None,
        masks=(),
        scale=Scale() if scale is None else Scale(float(scale), ("attribute",)),
        bypasses=(),
        guard=False,
        dtype=dtype_name(dtype) if dtype else None,
        rank=None if shape is None else len(shape),
        heads=heads,
        head_size=head_size,
        layout="bhsd" if shape is not None and len(shape) == 4 else None,
        consumers=tuple(node_label(reader) for reader in view.readers(node.output[0])),
        is_output=node.output[0] in view.outputs,
        lowerings={"keep": None, "softmax": reason, "native": NOT_IN_THIS_VERSION, "attention": NOT_IN_THIS_VERSION},
    )

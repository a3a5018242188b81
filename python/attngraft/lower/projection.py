"""Zeros in rows of a context, written behind the product with weights that reads the context.

Between the fused attention and that product nothing is left to do then: in TensorRT 10.6 a Where there is a kernel of
its own, which copies the context (docs/what_tensorrt_fuses.md). Behind the product it stands beside bias, residual and
normalisation, which are one kernel anyway. A row of zeros times weights is a row of zeros, to which a Gemm adds its
bias: the results are the same. What the rows hold without the zeros does not matter, NaN included, since no row of a
product reads another one.

Weights are taken for finite and not looked at. Zeros times infinite weights would be NaN, but weights that hold
infinity make NaN or infinity of every other row too, so that no model has them.
"""

from __future__ import annotations

from attngraft.lower.emit import Emitter
from attngraft.lower.surgery import EditedGraph, EditedNode
from attngraft.match.records import Projection

__all__ = ["zero_behind"]


def zero_behind(
    emit: Emitter, graph: EditedGraph, last: EditedNode, projection: Projection, has_key: str, dtype: int
) -> None:
    """Makes the result of `projection` [B, Sq, N], of ONNX element type `dtype`, what it is for rows of zeros where
    `has_key` [B or 1, Sq or 1, 1] is false. `last` makes the result, and `emit` puts nodes in front of it."""
    output = projection.tensors[-1]
    unguarded = emit.again(last, f"{output}_unguarded")
    empty = _result_of_zeros(emit, projection, dtype)
    chosen = emit.node("Where", has_key, unguarded, empty)
    graph.release(last)
    emit.rename(chosen, output)
    graph.remove_if_dead(last)


def _result_of_zeros(emit: Emitter, projection: Projection, dtype: int) -> str:
    if projection.bias is None:
        return emit.number(0.0, dtype)
    if projection.bias_factor == 1.0:
        return projection.bias
    return emit.node("Mul", projection.bias, emit.number(projection.bias_factor, dtype))

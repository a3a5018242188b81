"""What becomes of the context: the farthest tensor behind the second product that is its view in one of the layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import NodeProto

from attngraft.contract import Layout
from attngraft.match.attention.movement import moved, moves_behind
from attngraft.match.attention.strided import Strided, contiguous
from attngraft.match.meaning import Polynomial
from attngraft.match.operators import is_standard
from attngraft.onnx_graph import GraphView

__all__ = ["Result", "results"]

MAX_SHAPE_NODES = 32
"""Nodes that make one shape of another; the longest seen have nine."""


@dataclass(frozen=True)
class Result:
    """A tensor that holds the context in the layout of `word`."""

    tensor: str
    word: str


def results(view: GraphView, context: Strided, tensor: str, dims: Sequence[Polynomial]) -> list[Result]:
    """The tensors that the node can make in place of `tensor`, the farthest first.

    `dims` are [B, H, Sq, Dv], and `context` is `tensor` as a view of a flat tensor of these dimensions.
    """
    chain = moves_behind(view, tensor)
    whole = contiguous(dims)
    swapped = whole.transposed((0, 2, 1, 3))
    words = {Layout.BHSD: whole, Layout.BSHD: swapped, Layout.BSD: swapped.joined(2)}
    found, strided = [], context
    for length in range(len(chain) + 1):
        if length:
            following = moved(view, chain[length - 1], chain[length - 1].output[0], strided)
            if following is None:
                break
            strided = following
        made = chain[length - 1].output[0] if length else tensor
        word = next((word for word, expected in words.items() if strided.axes == expected.axes), None)
        if word is not None and _shapes_stay_here(view, tensor, chain[:length]):
            found.append(Result(made, word))
    return found[::-1]


def _shapes_stay_here(view: GraphView, tensor: str, chain: list[NodeProto]) -> bool:
    """Whether the shapes of the tensors before the chain's end, which will not be there any more, are used for nothing
    but the chain's nodes, which go with them."""
    gone = [tensor, *(node.output[0] for node in chain)][: len(chain)]
    pending = [node for name in gone for node in view.readers(name) if is_standard(node, "Shape")]
    for _ in range(MAX_SHAPE_NODES):
        if not pending:
            return True
        node = pending.pop()
        if any(node is each for each in chain):
            continue
        if any(output in view.outputs for output in node.output):
            return False
        pending += [reader for output in node.output for reader in view.readers(output)]
    return False

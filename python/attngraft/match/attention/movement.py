"""Nodes that move data and compute nothing: Reshape, Transpose, Slice, Split, Gather, Expand and their kin.

In: a graph and a tensor. Out: the tensors that it is a view of, nearest first, and each view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from attngraft.match.attention.strided import Strided, contiguous
from attngraft.match.meaning import Polynomial, constant_integers, read_dims, slice_bounds
from attngraft.match.operators import attribute, is_pass_through, is_standard
from attngraft.onnx_graph import GraphView

__all__ = ["Source", "is_move", "moved", "moves_behind", "only_reader", "sources"]

MAX_MOVES = 16
"""Longer than any way from a projection to a product seen in 60 architectures: splitting, transposing and repeating
heads takes nine nodes."""

MAX_MOVES_BEHIND = 6
"""Nodes from the product to the tensor that the output projection reads; merging the heads takes two or three."""


@dataclass(frozen=True)
class Source:
    """A tensor, and how the one in question is a view of it. `moves` counts the nodes between."""

    tensor: str
    dims: tuple[Polynomial, ...]
    strided: Strided
    moves: int


def sources(view: GraphView, name: str) -> list[Source]:
    """The tensors of known rank that `name` is a view of, itself first."""
    steps: list[tuple[str, NodeProto]] = []  # each node with its output on the way
    found = []
    tensor = name
    while True:
        source = _source(view, tensor, steps)
        if source is not None:
            found.append(source)
        node = view.maker(tensor)
        if node is None or not is_move(view, node) or len(steps) == MAX_MOVES:
            return found
        steps.append((tensor, node))
        tensor = node.input[0]


def is_move(view: GraphView, node: NodeProto) -> bool:
    """Whether the node's outputs are parts of its first input in another order, and nothing else."""
    return is_pass_through(view, node) or is_standard(node, *_RULES)


def moved(view: GraphView, node: NodeProto, output: str, strided: Strided) -> Strided | None:
    """The view that a node makes of the one that it reads; None where that is no view, or not known to be one."""
    if is_pass_through(view, node):
        return strided
    rule = _RULES.get(node.op_type) if is_standard(node, node.op_type) else None
    return None if rule is None else rule(view, node, output, strided)


def moves_behind(view: GraphView, tensor: str) -> list[NodeProto]:
    """The nodes that read the tensor one after the other, each alone, until one does more than move data."""
    chain: list[NodeProto] = []
    while len(chain) < MAX_MOVES_BEHIND:
        node = only_reader(view, tensor)
        if node is None or not is_move(view, node):
            break
        chain.append(node)
        tensor = node.output[0]
    return chain


def only_reader(view: GraphView, tensor: str) -> NodeProto | None:
    """The node that alone reads a tensor's values, as data; Shape reads none."""
    readers = [node for node in view.readers(tensor) if not is_standard(node, "Shape")]
    if len(readers) != 1 or tensor in view.outputs or readers[0].input[0] != tensor:
        return None
    return readers[0]


def _source(view: GraphView, tensor: str, steps: list[tuple[str, NodeProto]]) -> Source | None:
    dims = read_dims(view, tensor)
    strided = None if dims is None else contiguous(dims)
    for output, node in reversed(steps):
        if strided is None:
            return None
        strided = moved(view, node, output, strided)
    return None if dims is None or strided is None else Source(tensor, tuple(dims), strided, len(steps))


def _reshape(view: GraphView, node: NodeProto, output: str, strided: Strided) -> Strided | None:
    dims = read_dims(view, output)
    return None if dims is None else strided.reshaped(dims)


def _transpose(view: GraphView, node: NodeProto, output: str, strided: Strided) -> Strided | None:
    perm = attribute(node, "perm") or range(len(strided.axes))[::-1]
    return strided.transposed(perm) if len(perm) == len(strided.axes) else None


def _expand(view: GraphView, node: NodeProto, output: str, strided: Strided) -> Strided | None:
    dims = read_dims(view, output)
    return None if dims is None else strided.expanded(dims)


def _tile(view: GraphView, node: NodeProto, output: str, strided: Strided) -> Strided | None:
    repeats = view.value(node.input[1])
    if repeats is None or repeats.size != len(strided.axes):
        return None
    return strided.tiled([Polynomial.of(int(times)) for times in repeats])


def _slice(view: GraphView, node: NodeProto, output: str, strided: Strided) -> Strided | None:
    cuts = slice_bounds(view, node)
    for axis, first, length in cuts or ():
        cut = strided.sliced(axis, first, length)
        if cut is None:
            return None
        strided = cut
    return None if cuts is None else strided


def _split(view: GraphView, node: NodeProto, output: str, strided: Strided) -> Strided | None:
    axis = attribute(node, "axis", 0) % len(strided.axes)
    whole, part = strided.dims[axis].constant, list(node.output).index(output)
    lengths = constant_integers(view, node, "split", 1)
    if whole is None:
        return None
    if lengths is None:
        if int(whole) % len(node.output):
            return None
        lengths = [int(whole) // len(node.output)] * len(node.output)
    first = sum(lengths[:part])
    return strided.sliced(axis, Polynomial.of(first), Polynomial.of(lengths[part]))


def _gather(view: GraphView, node: NodeProto, output: str, strided: Strided) -> Strided | None:
    indices = view.value(node.input[1])
    if indices is None or indices.ndim > 1:
        return None
    axis = attribute(node, "axis", 0) % len(strided.axes)
    picked = _picked(strided, axis, indices)
    return picked.without_axes({axis}) if picked is not None and indices.ndim == 0 else picked


def _gather_nd(view: GraphView, node: NodeProto, output: str, strided: Strided) -> Strided | None:
    """What torch's indexing along the first axis becomes: indices [n, 1]."""
    indices = view.value(node.input[1])
    if indices is None or indices.ndim != 2 or indices.shape[1] != 1 or attribute(node, "batch_dims", 0):
        return None
    return _picked(strided, 0, indices)


def _picked(strided: Strided, axis: int, indices: np.ndarray) -> Strided | None:
    """One index, neighbouring indices, or each of these equally often in succession (repeated heads)."""
    size = strided.dims[axis].constant
    if indices.size == 0 or size is None:
        return None
    numbers = np.where(indices < 0, indices + int(size), indices).reshape(-1)
    first, length = int(numbers[0]), int(numbers[-1]) - int(numbers[0]) + 1
    times = numbers.size // max(length, 1)
    if length < 1 or not np.array_equal(numbers, np.repeat(np.arange(first, first + length), times)):
        return None
    cut = strided.sliced(axis, Polynomial.of(first), Polynomial.of(length))
    return None if cut is None else cut.repeated(axis, Polynomial.of(times))


_Rule = Callable[[GraphView, NodeProto, str, Strided], Strided | None]
_RULES: dict[str, _Rule] = {
    "Expand": _expand,
    "Flatten": _reshape,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _reshape,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}

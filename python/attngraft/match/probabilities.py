"""Behind the softmax: the guard against NaN rows, and casts, dropouts and identities that change nothing."""

from __future__ import annotations

from dataclasses import dataclass

from attngraft.match.nan_guard import nan_guard
from attngraft.match.operators import cast_types, is_cast, is_pass_through
from attngraft.onnx_graph import GraphView

__all__ = ["Probabilities", "probabilities_behind"]


@dataclass(frozen=True)
class Probabilities:
    """A tensor that holds the softmax's result: its element type, and whether a NaN guard lies before it."""

    tensor: str
    dtype: int
    guard: bool


def probabilities_behind(view: GraphView, result: str) -> list[Probabilities]:
    """The tensors that hold a softmax's `result`, nearest first: each is read by nothing but what leads to the next."""
    current = Probabilities(result, view.dtype(result), guard=False)
    found = [current]
    while True:
        following = _behind_guard(view, current) or _behind_neutral_node(view, current)
        if following is None:
            return found
        found.append(following)
        current = following


def _behind_guard(view: GraphView, current: Probabilities) -> Probabilities | None:
    """Where(IsNaN(p), 0, p) and the like: rows without an allowed key become zeros."""
    found = nan_guard(view, current.tensor)
    return None if found is None else Probabilities(found.tensor, current.dtype, found.guard or current.guard)


def _behind_neutral_node(view: GraphView, current: Probabilities) -> Probabilities | None:
    readers = view.readers(current.tensor)
    if len(readers) != 1 or not view.is_only_read_by(current.tensor, readers[0]):
        return None
    node = readers[0]
    if is_pass_through(view, node) and node.input[0] == current.tensor:
        return Probabilities(node.output[0], current.dtype, current.guard)
    if is_cast(node):
        return Probabilities(node.output[0], cast_types(view, node)[1], current.guard)
    return None

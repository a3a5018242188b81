"""Whether Triton may batch an engine's requests. In: the engine's card. Out: the batch sizes, or why there are none.

A batch dimension is the first of every input and output, -1 in all of them and of one range, or 1 in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from attngraft.engine.shapes import format_shape
from attngraft.engine.sidecar import EngineCard, TensorCard
from attngraft.errors import EngineError

__all__ = ["Batching", "decide_batching"]


@dataclass(frozen=True)
class Batching:
    """How an engine's first dimensions are taken."""

    max_batch: int
    """Triton's `max_batch_size`; 0: the first dimensions are like all others."""
    reason: str
    """Why it is that, in words."""


def decide_batching(card: EngineCard, wanted: int | None = None) -> Batching:
    """The largest batch of all profiles, or `wanted` where that is given; `wanted` 0 turns batching off.

    Raises EngineError when `wanted` is outside what the engine takes.
    """
    if wanted == 0:
        return Batching(0, "as asked for")
    reason = _why_not(card)
    if reason is not None:
        if wanted is not None:
            raise EngineError(f"--max-batch {wanted}: the engine has no batch dimension, {reason}; give --max-batch 0")
        return Batching(0, reason)
    smallest, largest = _range(card)
    if wanted is not None and not smallest <= wanted <= largest:
        raise EngineError(f"--max-batch {wanted}: the engine's profiles take batches of {smallest} to {largest}")
    return Batching(wanted or largest, f"the profiles take batches of {smallest} to {largest}")


def _why_not(card: EngineCard) -> str | None:
    if not card.inputs:
        return "it has no inputs"
    tensors = (*card.inputs, *card.outputs)
    without = next((tensor for tensor in tensors if _first(tensor) not in (-1, 1)), None)
    if without is not None:
        return f"{without.name!r} is {_shape(without)}"
    if len({_first(tensor) for tensor in tensors}) != 1:
        one, many = (next(tensor for tensor in tensors if _first(tensor) == first) for first in (1, -1))
        return f"{one.name!r} is {_shape(one)} but {many.name!r} is {_shape(many)}"
    if _first(tensors[0]) == 1:
        # Without its only dimension a tensor would have another shape for clients than for the engine.
        flat = next((tensor for tensor in tensors if len(tensor.shape) == 1), None)
        return None if flat is None else f"{flat.name!r} is {_shape(flat)}"
    for profile in card.profiles:
        first = card.inputs[0].name
        for tensor in card.inputs[1:]:
            ranges = [(profile[name].min[0], profile[name].max[0]) for name in (first, tensor.name)]
            if ranges[0] != ranges[1]:
                return f"the first dimensions of {first!r} and {tensor.name!r} have other ranges"
    return None


def _range(card: EngineCard) -> tuple[int, int]:
    firsts = [profile[card.inputs[0].name] for profile in card.profiles]
    return min(shapes.min[0] for shapes in firsts), max(shapes.max[0] for shapes in firsts)


def _first(tensor: TensorCard) -> int | None:
    return tensor.shape[0] if tensor.shape else None


def _shape(tensor: TensorCard) -> str:
    return format_shape(tuple(None if dim == -1 else dim for dim in tensor.shape))

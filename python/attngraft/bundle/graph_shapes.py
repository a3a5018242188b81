"""The shapes whose CUDA graphs are worth keeping. In: the engine's profiles. Out: shapes of all inputs, each once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attngraft.engine.sidecar import EngineCard

__all__ = ["BatchedShapes", "GraphShapes", "batched_shapes", "corner_shapes"]

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and shape of every input."""


@dataclass(frozen=True)
class GraphShapes:
    """Shapes of all inputs, and the profile's corner that they are."""

    profile: int
    corner: str
    """`opt` or `max`."""
    shapes: Shapes


@dataclass(frozen=True)
class BatchedShapes:
    """Shapes without their batch dimension, and the batches that one graph serves."""

    batch: int
    """The graph's own, and the largest that it serves."""
    smallest: int
    """The smallest that it serves."""
    shapes: Shapes


def corner_shapes(card: EngineCard) -> tuple[GraphShapes, ...]:
    """The profiles' most usual and largest shapes."""
    found: dict[Shapes, GraphShapes] = {}
    for index, profile in enumerate(card.profiles):
        for corner in ("opt", "max"):
            shapes = tuple((tensor.name, getattr(profile[tensor.name], corner)) for tensor in card.inputs)
            found.setdefault(shapes, GraphShapes(index, corner, shapes))
    return tuple(found.values())


def batched_shapes(card: EngineCard, max_batch: int) -> tuple[BatchedShapes, ...]:
    """At the most usual and the largest of the other dimensions: a graph for each batch that is a power of two, usual
    or the largest. It serves the batches down to the next smaller graph's too, so that each has one that is less than
    twice as large."""
    found: dict[tuple[int, Shapes], BatchedShapes] = {}
    name = card.inputs[0].name
    for graph in corner_shapes(card):
        range_ = card.profiles[graph.profile][name]
        shapes = tuple((input_name, shape[1:]) for input_name, shape in graph.shapes)
        smallest = range_.min[0]
        for batch in _ladder(range_.min[0], range_.opt[0], min(range_.max[0], max_batch)):
            found.setdefault((batch, shapes), BatchedShapes(batch, smallest, shapes))
            smallest = batch + 1
    return tuple(found.values())


def _ladder(smallest: int, usual: int, largest: int) -> Iterator[int]:
    powers = (1 << exponent for exponent in range(largest.bit_length()))
    yield from sorted(size for size in {smallest, usual, largest, *powers} if max(smallest, 1) <= size <= largest)

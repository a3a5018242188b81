"""Names for what a rewrite adds. In: a model. Out: names that collide with none of its own, nor with each other."""

from __future__ import annotations

from onnx import ModelProto

from attngraft.onnx_graph import walk_graphs

__all__ = ["FreeNames"]


class FreeNames:
    """The names of a model's tensors and nodes, subgraphs included, and those given out since."""

    def __init__(self, model: ModelProto) -> None:
        self._taken: set[str] = set()
        for _, graph in walk_graphs(model.graph):
            self._taken.update(value.name for value in (*graph.input, *graph.output, *graph.initializer))
            for node in graph.node:
                self._taken.update((node.name, *node.output))

    def take(self, wanted: str) -> str:
        """`wanted`, or with a number behind it where that is taken; it is taken from now on."""
        candidate, number = wanted, 1
        while candidate in self._taken:
            number += 1
            candidate = f"{wanted}_{number}"
        self._taken.add(candidate)
        return candidate

"""The graphs that a session keeps. In: graphs under what they were captured for. Out: the same, the latest used."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Set
from typing import NamedTuple

from attngraft.errors import EngineError
from attngraft.runtime.cuda import Stream
from attngraft.runtime.graph import CapturedGraph

__all__ = ["MAX_GRAPHS", "MAX_GRAPH_BYTES", "CachedGraph", "GraphCache", "GraphKey"]

MAX_GRAPHS = 64
"""Shapes that a server meets again and again, with room to spare: a graph of some hundred nodes holds about 1 MB."""

MAX_GRAPH_BYTES = 512 << 20
"""Device memory that graphs may hold: below 1% of a data centre GPU's."""


class GraphKey(NamedTuple):  # a tuple, since it is hashed at every run
    """What a graph is good for."""

    profile: int
    shapes: tuple[tuple[int, ...], ...]
    """Of the inputs, in the engine's order."""
    addresses: tuple[int, ...]
    """Of all tensors, in the engine's order."""


class CachedGraph:
    """A graph, and whether it has been found right after its context had served other shapes."""

    __slots__ = ("graph", "is_trusted")

    def __init__(self, graph: CapturedGraph) -> None:
        self.graph = graph
        self.is_trusted = False


class GraphCache:
    """At most `max_graphs` graphs that hold at most `max_bytes` of device memory together; the one that has been used
    least recently goes first. The one added last stays, however large it is measured.

    A graph's memory is what `CapturedGraph.nbytes` says: the fall of the device's free memory while the graph is
    instantiated and uploaded.
    """

    def __init__(self, stream: Stream, max_graphs: int = MAX_GRAPHS, max_bytes: int = MAX_GRAPH_BYTES) -> None:
        if max_graphs < 1 or max_bytes < 0:
            raise EngineError(
                f"max_graphs {max_graphs}, max_graph_bytes {max_bytes}: no graph can be kept; give at least 1 "
                "and 0, or cuda_graph=False"
            )
        self._stream = stream
        self._max_graphs = max_graphs
        self._max_bytes = max_bytes
        self._graphs: OrderedDict[GraphKey, CachedGraph] = OrderedDict()
        self.nbytes = 0
        self.evictions = 0
        """Graphs that went before the session was closed: for room, or because a buffer that they use has moved."""

    def __len__(self) -> int:
        return len(self._graphs)

    def get(self, key: GraphKey) -> CachedGraph | None:
        """The graph for that key, which thereby is the latest used; None if there is none."""
        found = self._graphs.get(key)
        if found is not None:
            self._graphs.move_to_end(key)
        return found

    def add(self, key: GraphKey, graph: CapturedGraph) -> None:
        """Keeps a graph, and lets others go for it where a limit is passed."""
        self._graphs[key] = CachedGraph(graph)
        self.nbytes += graph.nbytes
        while len(self._graphs) > 1 and (len(self._graphs) > self._max_graphs or self.nbytes > self._max_bytes):
            self.evict(next(iter(self._graphs)))

    def evict(self, key: GraphKey) -> None:
        """Frees one graph, once its work is done."""
        self._stream.wait()
        cached = self._graphs.pop(key)
        self.nbytes -= cached.graph.nbytes
        self.evictions += 1
        cached.graph.destroy()

    def evict_all(self) -> int:
        """Frees all graphs; returns how many."""
        keys = tuple(self._graphs)
        for key in keys:
            self.evict(key)
        return len(keys)

    def evict_users(self, addresses: Set[int]) -> None:
        """Frees the graphs that use any of these addresses, where buffers no longer are."""
        for key in [key for key in self._graphs if not addresses.isdisjoint(key.addresses)]:
            self.evict(key)

    def clear(self) -> None:
        """Frees all graphs, whose work must be done, when the session ends. What fails then has failed before."""
        for cached in self._graphs.values():
            with contextlib.suppress(EngineError):
                cached.graph.destroy()
        self._graphs.clear()
        self.nbytes = 0

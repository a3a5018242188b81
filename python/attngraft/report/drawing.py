"""A small directed graph as SVG. In: boxes with words, and edges. Out: SVG text, layered from top to bottom.

The method is Sugiyama's: nodes in layers by their longest path, long edges cut by waypoints, layers ordered by the mean
place of their neighbours, then moved towards them.
"""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attngraft.report.site_graph import DrawnEdge, DrawnNode, SiteGraph

__all__ = ["Drawing", "draw_graph"]

# All in pixels; fonts are the browser's, so widths of text are estimates on the safe side.
CHARACTER_WIDTH = 6.7
PADDING = 12
LINE_HEIGHT = 15
LAYER_GAP = 26
NODE_GAP = 18
WAYPOINT_WIDTH = 10
MARGIN = 6

SWEEPS = 8
"""Rounds of ordering and of moving; small graphs change no more after half of them."""


@dataclass(frozen=True)
class Drawing:
    """An `<svg>` element, whose classes the page colours, and its natural width in pixels."""

    svg: str
    width: float


def draw_graph(graph: SiteGraph, label: str) -> Drawing:
    """The picture of a graph. `label` is read to those who do not see it."""
    place = _Placement(graph)
    width, height = place.size()
    parts = [
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{html.escape(label)}">'
    ]
    parts += [_edge_svg(place.route(edge)) for edge in graph.edges]
    parts += [_node_svg(node, *place.box(node.key)) for node in graph.nodes]
    return Drawing("\n".join([*parts, "</svg>"]), width)


class _Placement:
    """Where every box and every waypoint is."""

    def __init__(self, graph: SiteGraph) -> None:
        self._boxes = {node.key: (_width(node), _height(node)) for node in graph.nodes}
        self._last = {node.key for node in graph.nodes if node.title == "values"}
        self._operands = {node.key for node in graph.nodes if node.kind == "tensor"}
        self._routes: dict[DrawnEdge, list[str]] = {}
        self._up: dict[str, list[str]] = defaultdict(list)
        self._down: dict[str, list[str]] = defaultdict(list)
        self._layers = self._make_layers(_layer_numbers(graph), graph.edges)
        self._order()
        self._x = self._positions()
        self._y, self._height = self._heights()

    def size(self) -> tuple[float, float]:
        right = max(self._x[key] + self._boxes[key][0] / 2 for key in self._x)
        return right + MARGIN, self._height + MARGIN

    def box(self, key: str) -> tuple[float, float, float, float]:
        """Left, top, width, height."""
        width, height = self._boxes[key]
        return self._x[key] - width / 2, self._y[key] - height / 2, width, height

    def route(self, edge: DrawnEdge) -> list[tuple[float, float]]:
        """The points of an edge: under its source, its waypoints, above its target."""
        source, target = edge
        start = (self._x[source], self._y[source] + self._boxes[source][1] / 2)
        end = (self._x[target], self._y[target] - self._boxes[target][1] / 2)
        return [start, *((self._x[key], self._y[key]) for key in self._routes[edge]), end]

    def _make_layers(self, numbers: dict[str, int], edges: Iterable[DrawnEdge]) -> list[list[str]]:
        layers: list[list[str]] = [[] for _ in range(max(numbers.values()) + 1)]
        for key in sorted(numbers, key=lambda key: key in self._last):
            layers[numbers[key]].append(key)
        for source, target in edges:
            waypoints = [f"{source} > {target} at {n}" for n in range(numbers[source] + 1, numbers[target])]
            for offset, key in enumerate(waypoints, start=1):
                self._boxes[key] = (WAYPOINT_WIDTH, 0)
                layers[numbers[source] + offset].append(key)
            self._routes[source, target] = waypoints
            chain = [source, *waypoints, target]
            for above, below in zip(chain, chain[1:]):
                self._down[above].append(below)
                self._up[below].append(above)
        return layers

    def _order(self) -> None:
        for sweep in range(SWEEPS):
            downwards = sweep % 2 == 0
            neighbours = self._up if downwards else self._down
            layers = self._layers if downwards else self._layers[::-1]
            for before, layer in zip(layers, layers[1:]):
                places = {key: place for place, key in enumerate(before)}
                own = {key: place for place, key in enumerate(layer)}
                layer.sort(key=lambda key: _mean([places[n] for n in neighbours[key]], own[key]))

    def _positions(self) -> dict[str, float]:
        x: dict[str, float] = {}
        for layer in self._layers:
            self._spread(layer, {key: 0.0 for key in layer}, x)
        for sweep in range(SWEEPS):
            for layer in self._layers if sweep % 2 == 0 else self._layers[::-1]:
                self._spread(layer, {key: self._wanted(key, x) for key in layer}, x)
        left = min(x[key] - self._boxes[key][0] / 2 for key in x)
        return {key: value - left + MARGIN for key, value in x.items()}

    def _wanted(self, key: str, x: dict[str, float]) -> float:
        """The mean of the neighbours' places; operands give way to what is computed, which so stays in line."""
        neighbours = (*self._up[key], *self._down[key])
        return _mean([x[n] for n in neighbours if n not in self._operands] or [x[n] for n in neighbours], x[key])

    def _spread(self, layer: Sequence[str], wanted: dict[str, float], x: dict[str, float]) -> None:
        """Places a layer in its order as near to `wanted` as the widths allow: pushed right, then back by the mean push
        of what is computed, so that operands make room for it."""
        edge = float("-inf")
        for key in layer:
            half = self._boxes[key][0] / 2
            x[key] = max(wanted[key], edge + half)
            edge = x[key] + half + NODE_GAP
        computed = [key for key in layer if key not in self._operands]
        shift = _mean([x[key] - wanted[key] for key in computed or layer], 0.0)
        for key in layer:
            x[key] -= shift

    def _heights(self) -> tuple[dict[str, float], float]:
        y: dict[str, float] = {}
        top = float(MARGIN)
        for layer in self._layers:
            height = max(self._boxes[key][1] for key in layer)
            y.update({key: top + height / 2 for key in layer})
            top += height + LAYER_GAP
        return y, top - LAYER_GAP


def _layer_numbers(graph: SiteGraph) -> dict[str, int]:
    """The longest path from a source; sources themselves right above their first reader."""
    readers, makers = defaultdict(list), defaultdict(list)
    for source, target in graph.edges:
        readers[source].append(target)
        makers[target].append(source)
    numbers: dict[str, int] = {}

    def number(key: str) -> int:
        if key not in numbers:
            numbers[key] = 1 + max((number(maker) for maker in makers[key]), default=-1)
        return numbers[key]

    for node in graph.nodes:
        number(node.key)
    for key in numbers:
        if not makers[key] and readers[key]:
            numbers[key] = min(numbers[reader] for reader in readers[key]) - 1
    return numbers


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _width(node: DrawnNode) -> float:
    return max(len(node.title), *map(len, node.details), 6) * CHARACTER_WIDTH + 2 * PADDING


def _height(node: DrawnNode) -> float:
    return LINE_HEIGHT * (1 + len(node.details)) + PADDING


def _edge_svg(points: Sequence[tuple[float, float]]) -> str:
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        middle = (y0 + y1) / 2
        path += f" C{x0:.1f},{middle:.1f} {x1:.1f},{middle:.1f} {x1:.1f},{y1:.1f}"
    x, y = points[-1]
    head = f"M{x - 3.5:.1f},{y - 6:.1f} L{x:.1f},{y:.1f} L{x + 3.5:.1f},{y - 6:.1f} Z"
    return f'<path class="edge" d="{path}"/><path class="head" d="{head}"/>'


def _node_svg(node: DrawnNode, left: float, top: float, width: float, height: float) -> str:
    middle = left + width / 2
    lines = [("title", node.title), *(("detail", line) for line in node.details)]
    radius = min(height / 2, 18) if node.kind in ("tensor", "context") else 5
    text = "".join(
        f'<text class="{kind}" x="{middle:.1f}" y="{top + PADDING / 2 + LINE_HEIGHT * (i + 0.75):.1f}">'
        f"{html.escape(words)}</text>"
        for i, (kind, words) in enumerate(lines)
    )
    return (
        f'<g class="node {node.kind}"><title>{html.escape(node.hint)}</title>'
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:.1f}"/>{text}</g>'
    )

"""The small graph of one site, for drawing. In: a graph and the site's record. Out: nodes with words, and edges.

It reaches from query, key, values and masks to the context. The same boundaries are used in a rewritten model, whose
lowered form makes the same context from them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import onnx
from onnx import GraphProto, NodeProto, TensorProto

from attngraft.contract import DOMAIN
from attngraft.match.records import Site
from attngraft.onnx_graph import dtype_name, node_label

__all__ = ["DrawnEdge", "DrawnNode", "SiteGraph", "site_graph"]

MOST_NODES = 40
"""A picture of more is not read; what lies behind them is shown as a tensor."""

MOST_ASIDE = 2
"""Nodes that are drawn beside the line from query and key to the context, such as a mask's Where."""

SHAPED_BY_OTHERS = {
    "Reshape",
    "Expand",
    "Unsqueeze",
    "Squeeze",
    "Slice",
    "Tile",
    "Pad",
    "Split",
    "ReduceSum",
    "ReduceMax",
}
"""Operators whose inputs after the first are shapes, axes and the like."""

KINDS = {
    "product": {"MatMul", "Einsum", "Gemm"},
    "softmax": {"Softmax", "LogSoftmax", "Exp", "ReduceSum", "ReduceMax", "ReduceLogSumExp"},
    "scale": {"Mul", "Div", "Sqrt", "Pow", "Reciprocal", "Tanh", "Neg"},
    "mask": {"Add", "Sub", "Where", "And", "Or", "Not", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}
    | {"IsNaN", "IsInf", "Trilu", "Range", "Max", "Min", "Clip", "ScatterND", "CumSum"},
    "attention": {"Attention", "MultiHeadAttention", "GroupQueryAttention"},
}
"""What a node is for, by its operator; every other one moves data about ("layout")."""

MOST_CHARACTERS = 28
"""Of one line in a box."""

SIGNS = {"Mul": "\u00d7 ", "Div": "\u00f7 ", "Add": "+ ", "Sub": "\u2212 "}
ATTENTION_INPUTS = ("query", "key", "values", "mask")


@dataclass(frozen=True)
class DrawnNode:
    """A box: `kind` decides its colour ("tensor" for what comes in, "context" for what goes out), `details` are lines
    under its title, `hint` is shown where the pointer rests."""

    key: str
    kind: str
    title: str
    details: tuple[str, ...] = ()
    hint: str = ""


DrawnEdge = tuple[str, str]
"""Keys of the nodes that an arrow joins."""


@dataclass(frozen=True)
class SiteGraph:
    """Nodes in no particular order, and edges in the direction of the data."""

    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]


def site_graph(graph: GraphProto, site: Site) -> SiteGraph:
    """The nodes between the site's operands and its result. `graph` is the one that holds the site, in the model as it
    was given or in its rewrite."""
    return _Walk(graph, site).run()


class _Walk:
    """Goes backwards from the result, one tensor at a time, up to the operands."""

    def __init__(self, graph: GraphProto, site: Site) -> None:
        self._makers = {output: node for node in graph.node for output in node.output if output}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._site = site
        self._operands = _operand_roles(site)
        self._result = self._find_result(graph)
        self._behind_softmax = _computed_from({site.node, site.probabilities}, graph)
        # A record of the whole site names all operands; otherwise only nearness says what belongs to the picture.
        self._in_line = set() if site.whole is not None else _computed_from(self._product_outputs(), graph)
        self._nodes: dict[str, DrawnNode] = {}
        self._edges: dict[DrawnEdge, None] = {}

    def run(self) -> SiteGraph:
        self._nodes["result"] = DrawnNode("result", "context", self._result_title(), hint=self._result)
        pending = deque([(self._result, "result", "", 0)])
        while pending:
            tensor, reader, role, aside = pending.popleft()
            maker = None if tensor in self._operands else self._makers.get(tensor)
            known = maker is not None and maker.output[0] in self._nodes
            far = aside > MOST_ASIDE or len(self._nodes) >= MOST_NODES
            if maker is None or (far and not known):
                self._add_tensor(tensor, reader, role)
                continue
            key = maker.output[0]
            self._edges[key, reader] = None
            if not known:
                self._nodes[key] = DrawnNode(key, _kind(maker), maker.op_type, self._details(maker), node_label(maker))
                pending += [(*found, self._aside(found[0], aside)) for found in self._inputs(maker)]
        return SiteGraph(tuple(self._nodes.values()), tuple(self._edges))

    def _aside(self, tensor: str, before: int) -> int:
        """How far a tensor is from the line that leads from the product of query and key to the result."""
        return 0 if not self._in_line or tensor in self._in_line else before + 1

    def _product_outputs(self) -> set[str]:
        """The nearest products above the softmax: of query and key, and of relative positions."""
        found: set[str] = set()
        seen: set[str] = set()
        softmax = self._makers.get(self._site.node) or self._makers.get(self._site.probabilities)
        pending = list(softmax.input) if softmax is not None else []
        while pending:
            tensor = pending.pop()
            maker = self._makers.get(tensor)
            if maker is None or tensor in seen or tensor in self._operands:
                continue
            seen.add(tensor)
            if _kind(maker) == "product":
                found.add(tensor)
            else:
                pending += _data_inputs(maker)
        return found

    def _find_result(self, graph: GraphProto) -> str:
        form = self._site.attention
        if self._site.whole is not None:
            context = self._site.whole.context
            return context if form is None or context in self._makers else form.context
        moved = {self._site.probabilities or self._site.node}
        for node in graph.node:
            if _kind(node) == "product" and not moved.isdisjoint(node.input):
                return node.output[0]
            if _kind(node) in ("layout", "mask", "scale") and not moved.isdisjoint(_data_inputs(node)):
                moved.update(node.output)
        return self._site.probabilities or self._site.node

    def _result_title(self) -> str:
        return "probabilities" if self._result == self._site.probabilities else "context"

    def _inputs(self, node: NodeProto) -> list[tuple[str, str, str]]:
        """What to go on with behind a node: (tensor, reader, role). Scalars are in the node's own words already."""
        key, kind = node.output[0], _kind(node)
        found = []
        for index, name in enumerate(_data_inputs(node)):
            if not name or self._scalar_text(name) is not None:
                continue
            role = ATTENTION_INPUTS[index] if kind == "attention" and index < len(ATTENTION_INPUTS) else ""
            if self._ends_here(node, name):
                self._add_tensor(name, key, role or self._role_of_operand(node, index))
            else:
                found.append((name, key, role))
        return found

    def _ends_here(self, node: NodeProto, name: str) -> bool:
        """Where the record names no operands, those of the products and of fused nodes are where the picture ends."""
        if name in self._operands or self._site.whole is not None:
            return name in self._operands
        return _kind(node) == "attention" or (_kind(node) == "product" and name not in self._behind_softmax)

    def _role_of_operand(self, node: NodeProto, index: int) -> str:
        if not self._behind_softmax.isdisjoint(node.input):
            return "values"
        return ("query", "key")[index] if index < 2 else ""

    def _add_tensor(self, name: str, reader: str, role: str) -> None:
        key = f"tensor {name}"
        role = self._operands.get(name, role)
        if key not in self._nodes:
            constant = self._constants.get(name)
            size = "\u00d7".join(map(str, constant.dims)) if constant is not None else ""
            title = role or ("constant" if constant is not None else "tensor")
            self._nodes[key] = DrawnNode(
                key, "tensor", title, (size or _shortened(name.removesuffix("_output_0"), keep_end=True),), name
            )
        self._edges[key, reader] = None

    def _scalar_text(self, name: str) -> str | None:
        """A constant of one element in figures; None for any other tensor."""
        maker, tensor = self._makers.get(name), self._constants.get(name)
        if maker is not None and maker.op_type == "Constant" and maker.attribute:
            value = onnx.helper.get_attribute_value(maker.attribute[0])
            if not isinstance(value, TensorProto):
                return f"{value:.6g}" if isinstance(value, (int, float)) else None
            tensor = value
        if tensor is None or any(dim != 1 for dim in tensor.dims) or tensor.data_location == TensorProto.EXTERNAL:
            return None
        value = onnx.numpy_helper.to_array(tensor).reshape(-1)[0]
        return str(bool(value)) if tensor.data_type == TensorProto.BOOL else f"{float(value):.6g}"

    def _details(self, node: NodeProto) -> tuple[str, ...]:
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.domain == DOMAIN or _kind(node) == "attention":
            return tuple(_shortened(line) for line in _attribute_lines(attributes))
        if node.op_type == "Transpose":
            return (" ".join(map(str, attributes.get("perm", ()))),)
        if node.op_type == "Cast":
            return (f"to {dtype_name(attributes['to'])}",)
        if node.op_type == "Einsum":
            return (_shortened(attributes["equation"].decode()),)
        scalars = [text for name in node.input if (text := self._scalar_text(name)) is not None]
        return (SIGNS.get(node.op_type, "") + ", ".join(scalars),) if scalars else ()


def _computed_from(tensors: set[str], graph: GraphProto) -> set[str]:
    """The tensors, and all that is computed from them; ONNX keeps nodes in topological order."""
    found = {tensor for tensor in tensors if tensor}
    for node in graph.node if found else ():
        if node.op_type not in ("Shape", "Size") and not found.isdisjoint(node.input):
            found.update(node.output)
    return found


def _data_inputs(node: NodeProto) -> list[str]:
    """A node's inputs without those that say shapes, axes and ranges only, and without what only gives its shape."""
    if node.op_type in ("Shape", "Size"):
        return []
    return list(node.input[:1] if node.op_type in SHAPED_BY_OTHERS else node.input)


def _operand_roles(site: Site) -> dict[str, str]:
    """What the picture calls the tensors at which it ends, as far as the record names them."""
    roles: dict[str, str] = {}
    for mask in (*site.masks, *site.source_masks):
        for name in mask.tensors:
            roles.setdefault(name, mask.role if mask.role != "keep" else "mask")
    if site.attention is not None:
        tensors = site.attention.tensors
        names = ("query", "key", "values") if len(tensors) > 1 else ("query, key, values",)
        roles |= dict(zip(tensors, names, strict=True))
        if site.attention.merged is not None:
            roles[site.attention.merged.source] = "hidden states"
    if site.whole is not None:
        roles |= {site.whole.values: "values", site.whole.key: "key", site.whole.query: "query"}
    return roles


def _kind(node: NodeProto) -> str:
    if node.domain == DOMAIN:
        return "plugin"
    return next((kind for kind, operators in KINDS.items() if node.op_type in operators), "layout")


def _attribute_lines(attributes: dict[str, object]) -> list[str]:
    """The attributes that say something: not those of the plugin's registration, nor those that turn a thing off."""
    lines = []
    for name, value in attributes.items():
        text = (
            value.decode() if isinstance(value, bytes) else f"{value:.6g}" if isinstance(value, float) else str(value)
        )
        off = text in ("", "none", "-1", "0") or (name, text) == ("scale", "1")
        if not name.startswith("plugin_") and not off:
            lines.append(f"{name} {text}")
    return lines


def _shortened(text: str, *, keep_end: bool = False) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"\u2026{text[1 - MOST_CHARACTERS :]}" if keep_end else f"{text[: MOST_CHARACTERS - 1]}\u2026"

"""The local functions of a rewritten file, with which any ONNX runtime runs it, and their removal for TensorRT."""

from __future__ import annotations

from onnx import FunctionProto, ModelProto, NodeProto

from attngraft.contract import (
    CONTRACT_VERSION,
    DOMAIN,
    FUSED_ATTENTION,
    MASKED_SOFTMAX,
    FusedAttention,
    MaskedSoftmax,
    Role,
)
from attngraft.lower.onnx_function import fused_attention_function, masked_softmax_function
from attngraft.onnx_graph import default_opset, graph_attributes, walk_graphs

__all__ = ["FunctionTable", "strip_functions"]

MIN_IR_FOR_FUNCTIONS = 8
"""IR version that brought local functions (ONNX 1.10)."""

MIN_IR_FOR_OVERLOADS = 10
"""IR version that brought several functions of one name, told apart by `overload` (ONNX 1.16)."""

RANK_ROLES = frozenset({Role.KV_LENGTHS, Role.KV_STARTS})
"""Operands whose part of MaskedSoftmax's body depends on the scores' rank."""

FunctionKey = tuple["MaskedSoftmax | FusedAttention", int, "int | None"]


class FunctionTable:
    """One function for each configuration in use. The first of an operator has no overload name: most models need no
    second."""

    def __init__(self, model: ModelProto) -> None:
        self._opset = default_opset(model)
        self._overloads: dict[FunctionKey, str] = {}
        self._taken = {(function.name, function.overload) for function in model.functions if function.domain == DOMAIN}

    def overload(self, config: MaskedSoftmax | FusedAttention, dtype: int, rank: int | None = None) -> str:
        """The overload name of the function for this configuration, element type and (where it matters) rank of the
        scores."""
        needs_rank = isinstance(config, MaskedSoftmax) and RANK_ROLES & set(config.operands)
        key = (config, dtype, rank if needs_rank else None)
        if key not in self._overloads:
            operator = MASKED_SOFTMAX if isinstance(config, MaskedSoftmax) else FUSED_ATTENTION
            self._overloads[key] = self._next_name(operator)
        return self._overloads[key]

    def add_to(self, model: ModelProto) -> None:
        """Adds the functions and what they need: the opset import and the IR version."""
        if not self._overloads:
            return
        for (config, dtype, rank), name in self._overloads.items():
            if isinstance(config, MaskedSoftmax):
                model.functions.append(masked_softmax_function(config, dtype, rank, self._opset, name))
            else:
                model.functions.append(fused_attention_function(config, dtype, self._opset, name))
        if not any(entry.domain == DOMAIN for entry in model.opset_import):
            model.opset_import.add(domain=DOMAIN, version=CONTRACT_VERSION)
        needs_overloads = any(self._overloads.values())
        needed = MIN_IR_FOR_OVERLOADS if needs_overloads else MIN_IR_FOR_FUNCTIONS
        model.ir_version = max(model.ir_version, needed)

    def _next_name(self, operator: str) -> str:
        number = 1 + sum(name == operator for name, _ in self._taken)
        overload = "" if number == 1 else f"variant{number}"
        while (operator, overload) in self._taken:
            number += 1
            overload = f"variant{number}"
        self._taken.add((operator, overload))
        return overload


def strip_functions(model: ModelProto) -> ModelProto:
    """A copy of the model without attngraft's local functions.

    TensorRT would inline a function rather than look for the plugin of its name, and knows no overloads; so both go.
    """
    stripped = ModelProto()
    stripped.CopyFrom(model)
    kept = [function for function in stripped.functions if function.domain != DOMAIN]
    del stripped.functions[:]
    stripped.functions.extend(kept)
    for _, graph in walk_graphs(stripped.graph):
        for node in graph.node:
            _clear_overload(node)
    for function in stripped.functions:
        _clear_in_function(function)
    return stripped


def _clear_in_function(function: FunctionProto) -> None:
    for node in function.node:
        _clear_overload(node)
        for _, inner in graph_attributes(node):
            for _, graph in walk_graphs(inner):
                for inner_node in graph.node:
                    _clear_overload(inner_node)


def _clear_overload(node: NodeProto) -> None:
    if node.domain == DOMAIN:
        node.ClearField("overload")

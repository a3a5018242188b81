"""The `softmax` lowering: scale, mask and softmax become one attngraft::MaskedSoftmax node."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from attngraft.contract import DOMAIN, MASKED_SOFTMAX, PLUGIN_VERSION
from attngraft.lower.onnx_function import PLUGIN_ATTRIBUTES
from attngraft.lower.surgery import Surgery
from attngraft.match.records import MaskPart, Site

__all__ = ["SoftmaxLowering"]


class SoftmaxLowering:
    """Lowers sites one after the other in node order; inverted conditions and summed biases are made once and
    shared."""

    def __init__(self, surgery: Surgery, names_taken: set[str]) -> None:
        self._surgery = surgery
        self._taken = names_taken
        self._made: dict[tuple[str, MaskPart], gs.Tensor] = {}

    def apply(self, site: Site) -> str:
        """Puts the node in the site's place and returns the name of its output, which is unchanged."""
        graph = self._surgery.graph(site.graph)
        tensors = graph.tensors()
        probabilities = tensors[site.probabilities]
        anchor = probabilities.inputs[0]
        operands = [self._operand(graph, tensors, site.graph, anchor, mask) for mask in site.masks]
        name = next(node for tensor in (tensors[site.node],) for node in tensor.inputs).name
        bypassed = self._bypass(tensors, site)
        scores = tensors[site.scores]
        probabilities.inputs.clear()
        values = (PLUGIN_VERSION, DOMAIN)
        node = gs.Node(
            op=MASKED_SOFTMAX,
            name=name or self._free_name(f"{MASKED_SOFTMAX}_{site.probabilities}"),
            domain=DOMAIN,
            attrs={**site.config.attributes(), **dict(zip(PLUGIN_ATTRIBUTES, values, strict=True))},
            inputs=[scores, *operands],
            outputs=[probabilities],
        )
        self._surgery.insert_before(graph, anchor, node)
        for dead in (anchor, *bypassed):
            self._surgery.remove_if_dead(graph, dead)
        return site.probabilities

    def _operand(
        self, graph: gs.Graph, tensors: dict[str, gs.Tensor], path: str, anchor: gs.Node, mask: MaskPart
    ) -> gs.Tensor:
        """The tensor for a mask: the model's own, its inversion, or the sum of several."""
        operand = tensors[mask.tensors[0]]
        if not mask.invert and len(mask.tensors) == 1:
            return operand
        key = (path, mask)
        if key not in self._made:
            if mask.invert:
                operand = self._new_node(graph, anchor, "Not", [operand])
            for name in mask.tensors[1:]:
                operand = self._new_node(graph, anchor, "Add", [operand, tensors[name]])
            self._made[key] = operand
        return self._made[key]

    def _new_node(self, graph: gs.Graph, anchor: gs.Node, op_type: str, inputs: list[gs.Tensor]) -> gs.Tensor:
        output = gs.Variable(self._free_name(f"{inputs[0].name}_{op_type.lower()}"))
        node = gs.Node(op=op_type, name=self._free_name(f"{op_type}_{output.name}"), inputs=inputs, outputs=[output])
        self._surgery.insert_before(graph, anchor, node)
        return output

    def _bypass(self, tensors: dict[str, gs.Tensor], site: Site) -> list[gs.Node]:
        """Takes the folded scales off Q and K; returns the nodes that made them."""
        makers = []
        for bypass in site.bypasses:
            consumer = tensors[bypass.consumer].inputs[0]
            makers += list(consumer.inputs[bypass.index].inputs)
            consumer.inputs[bypass.index] = tensors[bypass.tensor]
        return makers

    def _free_name(self, name: str) -> str:
        candidate, number = name, 1
        while candidate in self._taken:
            number += 1
            candidate = f"{name}_{number}"
        self._taken.add(candidate)
        return candidate

"""The `softmax` lowering: scale, mask and softmax become one attngraft::MaskedSoftmax node."""

from __future__ import annotations

import onnx

from attngraft.contract import DOMAIN, MASKED_SOFTMAX
from attngraft.lower.emit import Constants, Emitter
from attngraft.lower.onnx_function import PLUGIN_IDENTITY
from attngraft.lower.operands import Operands
from attngraft.lower.surgery import EditedGraph, EditedNode, Surgery
from attngraft.lower.tensor_types import TensorTypes
from attngraft.match.records import Site

__all__ = ["SoftmaxLowering"]


class SoftmaxLowering:
    """Lowers sites one after the other in node order."""

    def __init__(self, surgery: Surgery, types: TensorTypes, opset: int) -> None:
        self._surgery = surgery
        self._opset = opset
        self._constants = Constants(surgery)
        self._operands = Operands(types)

    def apply(self, site: Site, overload: str) -> None:
        """Puts the node in the site's place, with the function of that `overload` as its body; the name of its output
        is unchanged."""
        graph = self._surgery.graph(site.graph)
        anchor = graph.maker(site.probabilities)
        prefix = f"{site.name}/{MASKED_SOFTMAX}"
        emit = Emitter(self._surgery, self._constants, graph, anchor, prefix, self._opset)
        operands = [self._operands.tensor(emit, site.graph, mask) for mask in site.masks]
        name = graph.maker(site.node).proto.name
        bypassed = _bypass(graph, site)
        graph.release(anchor, anchor.outputs.index(site.probabilities))
        node = onnx.helper.make_node(
            MASKED_SOFTMAX,
            [site.scores, *operands],
            [site.probabilities],
            name=name or self._surgery.free_name(f"{MASKED_SOFTMAX}_{site.probabilities}"),
            domain=DOMAIN,
            **site.config.attributes(),
            **PLUGIN_IDENTITY,
        )
        if overload:
            node.overload = overload
        graph.insert_before(anchor, node)
        for dead in (anchor, *bypassed):
            graph.remove_if_dead(dead)


def _bypass(graph: EditedGraph, site: Site) -> list[EditedNode]:
    """Takes the folded scales off Q and K; returns the nodes that made them."""
    makers = []
    for bypass in site.bypasses:
        consumer = graph.maker(bypass.consumer)
        maker = graph.maker(consumer.inputs[bypass.index])
        makers += [maker] if maker is not None else []
        graph.set_input(consumer, bypass.index, bypass.tensor)
    return makers

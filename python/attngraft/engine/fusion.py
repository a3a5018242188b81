"""Which attention sites TensorRT fuses. In: a model, or the layers of an engine. Out: one record a site, and counts.

The answer is TensorRT's own: a site is fused when one kernel of the built engine holds its softmax and is a kernel for
attention. Nothing is inferred from the model's form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, NodeProto

from attngraft.engine.backends import find_backend
from attngraft.engine.default_profile import default_profile
from attngraft.engine.inspector import layers_of_plan
from attngraft.engine.layers import EngineLayer, fused_attention
from attngraft.engine.logger import MessageLog
from attngraft.engine.network import plugin_node_count
from attngraft.engine.plan import BuildRequest, build_plan, reason_of
from attngraft.engine.progress import BuildProgress
from attngraft.engine.shapes import ShapeRange, resolve_profile
from attngraft.errors import BuildError
from attngraft.match.records import ModelSites
from attngraft.onnx_graph import walk_graphs
from attngraft.plugin_library import plugin_library

__all__ = ["FusionReport", "SiteFusion", "attribute_kernels", "find_fusion"]

NOT_BUILT = "the model does not build"
NODES_NOT_TOLD = "the engine does not tell which ONNX nodes its kernels hold"

UNNAMED_NODE_PREFIX = "node_of_"
"""What TensorRT's ONNX parser calls a node without a name: this and the node's first output."""


@dataclass(frozen=True)
class SiteFusion:
    """What TensorRT made of one site: `fused` in `kernel`; not fused (False); or not known (None) for the reason in
    `note`."""

    site: str
    fused: bool | None
    kernel: str = ""
    note: str = ""


@dataclass(frozen=True)
class FusionReport:
    """What one engine does with the attention sites of a model.

    made_by     the TensorRT that built the engine, with its version.
    kernels     fused attention kernels in the engine, distinct names.
    elsewhere   how many of those hold none of the sites, as far as names tell.
    failure     TensorRT's reason, if it does not build the model; nothing is known about the sites then.
    launches    kernels of the whole engine, each as often as one run launches it.
    """

    made_by: str
    sites: tuple[SiteFusion, ...]
    kernels: int
    elsewhere: int
    failure: str = ""
    launches: int = 0

    @property
    def fused(self) -> int:
        """Number of sites that are known to be fused."""
        return sum(site.fused is True for site in self.sites)


def find_fusion(
    model: ModelProto,
    path: Path,
    sites: ModelSites,
    *,
    backend: str = "auto",
    shapes: Mapping[str, ShapeRange] | None = None,
    progress: Callable[[str], None] | None = None,
) -> FusionReport:
    """Builds an engine of the model in memory and reads from its layers which sites became one kernel.

    `path` is where the model's external data is looked up. `shapes`: ranges of inputs; others get default_profile's.
    That TensorRT refuses the model is an answer too, in the report's `failure`. Raises BuildError for shapes that the
    model has not, MissingDependency without TensorRT.
    """
    chosen = find_backend(backend)
    request = BuildRequest(
        backend=chosen,
        model=model,
        model_path=path,
        profiles=(resolve_profile(model, default_profile(model, shapes or {})),),
        library=plugin_library() if plugin_node_count(model) else None,
    )
    made_by = chosen.label
    with MessageLog() as messages:
        try:
            plan = build_plan(request, messages, BuildProgress(progress))
        except BuildError as error:
            unknown = tuple(SiteFusion(site.name, None, note=NOT_BUILT) for site in sites.sites)
            return FusionReport(made_by, unknown, 0, 0, reason_of(error))
        layers = layers_of_plan(chosen, plan, messages)
    return attribute_kernels(made_by, model, sites, layers)


def attribute_kernels(
    made_by: str, model: ModelProto, sites: ModelSites, layers: Iterable[EngineLayer]
) -> FusionReport:
    """Finds each site's softmax among the ONNX nodes of the fused attention kernels."""
    layers = tuple(layers)
    kernels = {layer.name: layer for layer in fused_attention(layers)}
    holders = {node: layer.name for layer in kernels.values() for node in layer.nodes}
    silent = any(not layer.nodes for layer in kernels.values())
    names = _parser_names(model)
    taken = Counter(names.values())
    nodes = ((site.name, names.get((site.graph, site.node))) for site in sites.sites)
    records = tuple(
        SiteFusion(site, None, note=NODES_NOT_TOLD)
        if silent and node not in holders
        else _site_fusion(site, node, taken, holders)
        for site, node in nodes
    )
    holding = {record.kernel for record in records if record.kernel}
    return FusionReport(made_by, records, len(kernels), len(kernels.keys() - holding), launches=len(layers))


def _site_fusion(site: str, node: str | None, taken: Counter[str], holders: Mapping[str, str]) -> SiteFusion:
    if node is None:
        return SiteFusion(site, None, note="its node is not in the model")
    if node in holders and taken[node] > 1:
        return SiteFusion(site, None, note=f"{taken[node]} nodes are called {node!r}")
    return SiteFusion(site, node in holders, holders.get(node, ""))


def _parser_names(model: ModelProto) -> dict[tuple[str, str], str]:
    """What TensorRT calls the node that makes a tensor, by the path of its graph and the tensor."""
    return {
        (path, output): _parser_name(node)
        for path, graph in walk_graphs(model.graph)
        for node in graph.node
        for output in node.output
        if output
    }


def _parser_name(node: NodeProto) -> str:
    return node.name or UNNAMED_NODE_PREFIX + node.output[0]

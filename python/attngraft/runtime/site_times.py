"""Times by attention site. In: the layers of an engine with their times, and its model. Out: a record a site."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import ModelProto

from attngraft.engine.layers import fused_attention
from attngraft.engine.site_layers import SiteNodes, is_plugin, site_nodes, site_of_layer
from attngraft.runtime.layer_times import LayerTime, LayerTimes

__all__ = ["SiteTime", "group_by_site"]

FUSED, PLUGIN, APART, ABSENT = "fused kernel", "plugin", "layers", "not found"


@dataclass(frozen=True)
class SiteTime:
    """The time of one attention site.

    how     what does it: TensorRT's "fused kernel", a "plugin" (which may have other layers for the products around
            it), other "layers", or "not found" where no layer names a node of it.
    layers  those that work for it; empty where it is not found.
    """

    name: str
    how: str
    layers: tuple[LayerTime, ...]

    @property
    def us(self) -> float:
        """Microseconds of all its layers."""
        return sum(layer.us for layer in self.layers)


def group_by_site(times: LayerTimes, model: ModelProto | None = None) -> tuple[SiteTime, ...]:
    """The sites of the engine, in the order in which they are in the model, and those that it does not have behind.

    Without a model, each fused attention kernel and each plugin layer is a site: what remains of a site that is not
    fused cannot be told from other work then. An engine whose card says that it has no attngraft plugin keeps other
    plugins' layers for everything else.
    """
    sites = () if model is None else site_nodes(model)
    owned: dict[str, list[LayerTime]] = {site.name: [] for site in sites}
    alone: list[SiteTime] = []
    for layer in times.layers:
        site = site_of_layer(layer.layer, sites)
        if site is not None:
            owned[site.name].append(layer)
        elif (how := _how([layer], times)) in (FUSED, PLUGIN):
            alone.append(SiteTime(_name(layer), how, (layer,)))
    found = tuple(_site_time(site, owned[site.name], times) for site in sites)
    return (*found, *alone)


def _site_time(site: SiteNodes, layers: list[LayerTime], times: LayerTimes) -> SiteTime:
    return SiteTime(site.name, _how(layers, times) if layers else ABSENT, tuple(layers))


def _how(layers: Iterable[LayerTime], times: LayerTimes) -> str:
    layers = [layer.layer for layer in layers]
    listed = {kernel.name for kernel in (times.card.fused_attention if times.card else None) or ()}
    if fused_attention(layers) or any(layer.name in listed for layer in layers):
        return FUSED
    has_plugins = times.card is None or times.card.plugin_layers > 0
    return PLUGIN if has_plugins and any(map(is_plugin, layers)) else APART


def _name(layer: LayerTime) -> str:
    """What the site is called: its softmax among the ONNX nodes, else the first of them, else the layer."""
    nodes = layer.layer.nodes
    return next((node for node in nodes if "softmax" in node.lower()), nodes[0] if nodes else layer.layer.name)

"""Looking inside: the results of a model's attention sites, compared like outputs.

What a site gets wrong is largest right behind it. Layers that follow may shrink it below what an output's tolerance
tells apart: in a model with small random weights, every probability is nearly the same whatever the scale is. Lowering
keeps the names of these tensors, so they can be compared wherever the models are small enough to be given more outputs.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ModelProto, TensorProto, ValueInfoProto

from attngraft.match import Site
from attngraft.onnx_graph.external import stored_bytes

__all__ = ["MAX_INSIDE_ELEMENTS", "inside_tensors", "made_in", "with_outputs"]

MAX_STORED_BYTES = 2**28
"""Weights inside the model file up to which a copy with more outputs is made in memory."""

MAX_INSIDE_ELEMENTS = 2**20
"""Larger results are not kept: there are as many as sites and inputs."""


def inside_tensors(model: ModelProto, sites: Iterable[Site]) -> tuple[str, ...]:
    """The attention results of the main graph that are no outputs already; none for a model with large weights inside
    its file."""
    inside = (tensor for tensor in model.graph.initializer if tensor.data_location != TensorProto.EXTERNAL)
    if sum(map(stored_bytes, inside)) > MAX_STORED_BYTES:
        return ()
    outputs = {value.name for value in model.graph.output}
    found: dict[str, None] = {}
    for site in sites:
        if site.graph:
            continue
        # A fused node may make no other form of the context than this one.
        ends = (form.context for form in (site.attention, site.whole) if form is not None)
        found |= dict.fromkeys([name for name in ends if name not in outputs][:1])
        # Lowering native may write zeros behind this product only, and gives tensors before it other names then.
        if site.projection is not None and site.projection.tensors[-1] not in outputs:
            found[site.projection.tensors[-1]] = None
    return tuple(found)


def made_in(model: ModelProto, names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that a node of the main graph makes."""
    made = {output for node in model.graph.node for output in node.output}
    return tuple(name for name in names if name in made)


def with_outputs(model: ModelProto, names: Iterable[str]) -> ModelProto:
    """A copy with these tensors as further outputs; their types are for the runtime to infer."""
    copy = ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.extend(ValueInfoProto(name=name) for name in names)
    return copy

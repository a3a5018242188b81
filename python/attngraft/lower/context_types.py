"""The context of a lowered site in the type that the model has it in, and which contexts are fp32 by accident."""

from __future__ import annotations

from collections import defaultdict

from onnx import TensorProto

from attngraft.lower.emit import Emitter
from attngraft.match.records import Site
from attngraft.onnx_graph import onnx_dtype

__all__ = ["ContextTypes"]


class ContextTypes:
    """Shared by the lowerings of one model. `widened` collects, by half type, the contexts of the main graph that are
    cast to fp32 because the model had the second product in fp32."""

    def __init__(self) -> None:
        self.widened: dict[int, list[str]] = defaultdict(list)

    def as_in_model(self, emit: Emitter, site: Site, made: str, context: str) -> str:
        """The tensor `made`, of the site's own type, as the tensor `context` of the model is typed."""
        whole = site.whole
        own, back = onnx_dtype(whole.dtype), onnx_dtype(whole.context_dtype or whole.dtype)
        if back == own:
            return made
        if back == TensorProto.FLOAT and not site.graph:
            self.widened[own].append(context)
        return emit.cast(made, back)

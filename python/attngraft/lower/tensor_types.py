"""Element types of a model's tensors, for lowerings that must not mix them."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, TensorProto

from attngraft.onnx_graph import walk_graphs
from attngraft.onnx_graph.view import infer_types

__all__ = ["TensorTypes"]


class TensorTypes:
    """Looks up ONNX element types by name: in the model as it is, and by type inference for what it does not state."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._stated = _types(model.graph)
        self._inferred: dict[str, int] | None = None

    def of(self, name: str) -> int:
        """The element type; UNDEFINED when it is not known."""
        if name in self._stated:
            return self._stated[name]
        if self._inferred is None:
            self._inferred = _types(infer_types(self._model).graph)
        return self._inferred.get(name, TensorProto.UNDEFINED)


def _types(root: GraphProto) -> dict[str, int]:
    found: dict[str, int] = {}
    for _, graph in walk_graphs(root):
        found.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
        for value in (*graph.value_info, *graph.input, *graph.output):
            if value.type.HasField("tensor_type"):
                found.setdefault(value.name, value.type.tensor_type.elem_type)
    return found

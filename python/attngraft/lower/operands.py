"""The operands of attngraft's nodes: the masks of a record, made ready where they are no tensors of the model."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from attngraft.contract import Role
from attngraft.lower.emit import Emitter
from attngraft.lower.mask_forms import as_condition, shaped
from attngraft.lower.tensor_types import TensorTypes
from attngraft.match.records import MaskPart

__all__ = ["Operands"]


FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""A stored mask of zeros and ones may be of these; what keeps keys is not."""


class Operands:
    """What is made is made once for each graph and mask, in front of the first site that needs it: sites come in node
    order."""

    def __init__(self, types: TensorTypes) -> None:
        self._types = types
        self._made: dict[tuple[str, MaskPart], str] = {}

    def tensor(self, emit: Emitter, path: str, mask: MaskPart) -> str:
        """The tensor for a mask in the graph at `path`: the model's own, inverted, summed of several, or shaped to
        broadcast."""
        operand = mask.tensors[0]
        is_table = mask.role == Role.KEEP and self._types.of(operand) in FLOATS
        if mask.form == "where" and mask.role == Role.BIAS:
            return self._filled(emit, path, mask)
        if not (is_table or mask.invert or mask.unsqueeze or mask.split_heads) and len(mask.tensors) == 1:
            return operand
        key = (path, mask)
        if key not in self._made:
            if is_table or mask.invert:
                operand = as_condition(emit, operand, self._types)
            if mask.invert:
                operand = emit.node("Not", operand)
            for name in mask.tensors[1:]:
                operand = emit.node("Add", operand, name)
            self._made[key] = shaped(emit, operand, mask)
        return self._made[key]

    def summed(self, emit: Emitter, path: str, masks: Sequence[MaskPart]) -> str:
        """The one tensor that masks of one role make together: of several biases the sum, in fp32 where their types
        differ."""
        tensors = [self.tensor(emit, path, mask) for mask in masks]
        types = {TensorProto.FLOAT if mask.form == "where" else self._types.of(mask.tensors[0]) for mask in masks}
        if len(types) > 1:
            tensors = [emit.cast(tensor, TensorProto.FLOAT) for tensor in tensors]
        total, *others = tensors
        for tensor in others:
            total = emit.node("Add", total, tensor)
        return total

    def _filled(self, emit: Emitter, path: str, mask: MaskPart) -> str:
        """0 where a condition allows, else its fill, in fp32."""
        key = (path, mask)
        if key not in self._made:
            condition = shaped(emit, as_condition(emit, mask.tensors[0], self._types), mask)
            choices = [emit.number(0.0, TensorProto.FLOAT), emit.number(mask.fill, TensorProto.FLOAT)]
            self._made[key] = emit.node("Where", condition, *(choices[::-1] if mask.invert else choices))
        return self._made[key]

"""Stored tables: causal buffers, ranges and constants, told from their values."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from attngraft.match.meaning.formulas import Number, NotReadable, at_least_zero, select
from attngraft.match.meaning.polynomials import Polynomial
from attngraft.match.operators import attribute
from attngraft.onnx_graph import GraphView
from attngraft.onnx_graph.external import stored_bytes

__all__ = ["MAX_TABLE_BYTES", "MAX_BANDS", "look_up", "stored_table"]

MAX_TABLE_BYTES = 16 * 2**20
"""Larger tensors are not read: a causal buffer of 2048 x 2048 in float32 has this size, a weight matrix often more."""

MAX_BANDS = 3
"""Values of a table along its diagonals change at most twice: before, inside and after a window."""


def stored_table(view: GraphView, name: str) -> np.ndarray | None:
    """The value of an initializer or Constant that is held in the model and not too large; else None."""
    small = view.value(name)
    if small is not None:
        return small
    node = view.maker(name)
    if node is None:
        tensor = _initializer(view, name)
    else:
        tensor = attribute(node, "value") if node.op_type == "Constant" else None
    if not isinstance(tensor, TensorProto) or tensor.data_location == TensorProto.EXTERNAL:
        return None
    return numpy_helper.to_array(tensor) if stored_bytes(tensor) <= MAX_TABLE_BYTES else None


def _initializer(view: GraphView | None, name: str) -> TensorProto | None:
    while view is not None:
        for tensor in view.graph.initializer:
            if tensor.name == name:
                return tensor
        view = view.outer
    return None


def look_up(table: np.ndarray, index: tuple[Polynomial, ...]) -> Number:
    """The element at an index. Raises NotReadable unless the table follows a rule along the indices that vary."""
    if table.dtype.kind not in "biuf":
        table = table.astype(np.float64)
    if table.size == 0 or (table.dtype.kind == "f" and table.size > 1 and not table.any()):
        raise NotReadable  # zeros in floats are a bias before training, which its owner may still replace
    moving: list[Polynomial] = []
    for axis, position in reversed(list(enumerate(index))):
        if table.shape[axis] == 1:
            table = table.take(0, axis)
        elif position.constant is not None:
            if not 0 <= position.constant < table.shape[axis]:
                raise NotReadable
            table = table.take(int(position.constant), axis)
        else:
            moving.insert(0, position)
    if table.ndim == 0 or np.all(table == table.flat[0]):
        return Polynomial.of(table.flat[0].item())
    if table.ndim == 1:
        return _along(table, moving[0])
    if table.ndim != 2:
        raise NotReadable
    if np.all(table == table[:1]):
        return _along(table[0], moving[1])
    if np.all(table == table[:, :1]):
        return _along(table[:, 0], moving[0])
    return _banded(table, *moving)


def _along(row: np.ndarray, position: Polynomial) -> Number:
    """start + step * position."""
    start, step = row[0].item(), (row[1] - row[0]).item() if row.dtype.kind != "b" else None
    if step is None or not np.array_equal(row, start + step * np.arange(len(row))):
        raise NotReadable
    return Polynomial.of(start) + Polynomial.of(step) * position


def _banded(table: np.ndarray, row: Polynomial, column: Polynomial) -> Number:
    """Values that depend on column - row alone and change at most MAX_BANDS - 1 times."""
    if not np.array_equal(table[1:, 1:], table[:-1, :-1]):
        raise NotReadable
    diagonals = np.concatenate([table[:0:-1, 0], table[0]])
    changes = np.flatnonzero(diagonals[1:] != diagonals[:-1]) + 1
    if len(changes) >= MAX_BANDS:
        raise NotReadable
    first_offset = 1 - table.shape[0]
    value: Number = Polynomial.of(diagonals[0].item())
    for change in changes:
        beyond = column - row - Polynomial.of(int(change) + first_offset)
        value = select(at_least_zero(beyond), Polynomial.of(diagonals[change].item()), value)
    return value

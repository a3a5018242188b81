"""What the kernels' borders have in common, from Python: types as numbers, and how scores become probabilities.

Mirrors plugin/kernels/operands.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence

import ml_dtypes
import numpy as np

from attngraft.contract import CausalMode, EmptyRows, MaskConfig, Role

DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TYPE_CODES = {"float32": 0, "float16": 1, "bfloat16": 2}
KEEP_CODES = {1: 0, 4: 1, 8: 2}  # by bytes of an element
MAX_RANK = 6

Shape = tuple[int, ...]
Operand = tuple[int, Shape, np.dtype]
"""Address, shape and type of a contiguous tensor."""


class BroadcastTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * MAX_RANK)]


class MaskParams(ctypes.Structure):
    """The part that all params structs begin with."""

    _fields_ = [
        ("bias", BroadcastTensor),
        ("bias_is_float32", ctypes.c_bool),
        ("keep", BroadcastTensor),
        ("keep_type", ctypes.c_int32),
        ("kv_lengths", ctypes.c_void_p),
        ("kv_starts", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("causal", ctypes.c_int32),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("empty_rows", ctypes.c_int32),
    ]

    def set_mask(
        self, config: MaskConfig, operands: Mapping[str, Operand], strides_of: Callable[[Shape], Sequence[int]]
    ) -> None:
        """`strides_of` a contiguous tensor's shape: one for each dimension of the scores, as the operator has them."""
        for role in {Role.BIAS, Role.KEEP} & operands.keys():
            address, shape, _ = operands[role]
            setattr(self, role, BroadcastTensor(address, (ctypes.c_int64 * MAX_RANK)(*strides_of(shape))))
        if Role.BIAS in operands:
            self.bias_is_float32 = operands[Role.BIAS][2] == np.float32
        if Role.KEEP in operands:
            self.keep_type = KEEP_CODES[operands[Role.KEEP][2].itemsize]
        self.kv_lengths = operands[Role.KV_LENGTHS][0] if Role.KV_LENGTHS in operands else None
        self.kv_starts = operands[Role.KV_STARTS][0] if Role.KV_STARTS in operands else None
        self.scale, self.softcap = config.scale, config.softcap
        self.causal = CausalMode.ALL.index(config.causal)
        self.window_left, self.window_right = config.window_left, config.window_right
        self.empty_rows = EmptyRows.ALL.index(config.empty_rows)


def aligned_strides(shape: Shape, rank: int) -> list[int]:
    """Element strides of a contiguous tensor for each dimension of scores of that rank, 0 where it is broadcast."""
    aligned = (1,) * (rank - len(shape)) + shape
    strides, step = [0] * rank, 1
    for axis in reversed(range(rank)):
        strides[axis] = step if aligned[axis] != 1 else 0
        step *= aligned[axis]
    return strides

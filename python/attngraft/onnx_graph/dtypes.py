"""Element types under three names: ONNX's number, NumPy's dtype, and the contract's text."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

__all__ = ["HALF_NAMES", "HALF_TYPES", "dtype_name", "is_known_dtype", "numpy_dtype", "onnx_dtype"]

_TEXT_TO_ONNX = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "bool": TensorProto.BOOL,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "float64": TensorProto.DOUBLE,
}
_ONNX_TO_TEXT: dict[int, str] = {number: text for text, number in _TEXT_TO_ONNX.items()}

HALF_TYPES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
HALF_NAMES = frozenset(_ONNX_TO_TEXT[number] for number in HALF_TYPES)
"""The half types by ONNX's numbers, and by the contract's names, which are NumPy's too."""


def is_known_dtype(number: int) -> bool:
    """Whether the installed onnx knows this element type and it is not UNDEFINED."""
    return number != TensorProto.UNDEFINED and number in TensorProto.DataType.values()


def dtype_name(number: int) -> str:
    """The contract's name ("float16") of an ONNX element type, or ONNX's own in lower case."""
    if number in _ONNX_TO_TEXT:
        return _ONNX_TO_TEXT[number]
    return TensorProto.DataType.Name(number).lower() if is_known_dtype(number) else f"type {number}"


def onnx_dtype(text: str) -> int:
    """ONNX's number of one of the contract's type names."""
    return _TEXT_TO_ONNX[text]


def numpy_dtype(number: int) -> np.dtype:
    """NumPy's dtype of an ONNX element type; bfloat16 comes from ml_dtypes."""
    if number == TensorProto.BFLOAT16:  # float32 in onnx before 1.18
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))

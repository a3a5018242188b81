"""DLPack by hand: reading other libraries' capsules and making our own (https://dmlc.github.io/dlpack/latest/c_api.html).

No package that the runtime needs anyway reads bfloat16 capsules, so the two structs are declared here.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

__all__ = ["CPU_DEVICES", "CUDA_DEVICES", "DEVICE_CUDA", "TYPES", "CapsuleView", "make_capsule", "read_capsule"]

DEVICE_CPU, DEVICE_CUDA, DEVICE_CUDA_HOST, DEVICE_CUDA_MANAGED = 1, 2, 3, 13
CPU_DEVICES = (DEVICE_CPU, DEVICE_CUDA_HOST)
CUDA_DEVICES = (DEVICE_CUDA, DEVICE_CUDA_MANAGED)

_NAME = b"dltensor"

# DLDataTypeCode and bits, by NumPy's names.
TYPES = {
    "int8": (0, 8),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "bfloat16": (4, 16),
    "bool": (6, 8),
}
_TYPE_NAMES = {code: name for name, code in TYPES.items()}


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _ManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_ManagedTensor))
_ManagedTensor._fields_ = [("dl_tensor", _Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _Deleter)]
_CapsuleDestructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes, _get_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _CapsuleDestructor]
_new_capsule.restype = ctypes.py_object

# The destructor runs while the capsule has no references left, so it must not be touched as a Python object.
_dying_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_dying_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(frozen=True)
class CapsuleView:
    """What a capsule describes, valid as long as the capsule lives."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In elements; None: contiguous."""
    dtype: str
    device_type: int
    device: int


def read_capsule(capsule: Any) -> CapsuleView:
    """Reads an unversioned capsule without taking it over: its own destructor frees the tensor when it is let go.

    Raises ValueError for another kind of capsule.
    """
    address = _get_pointer(capsule, _NAME)
    tensor = _ManagedTensor.from_address(address).dl_tensor
    kind = (tensor.dtype.code, tensor.dtype.bits)
    known = tensor.dtype.lanes == 1 and kind in _TYPE_NAMES
    return CapsuleView(
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[axis] for axis in range(tensor.ndim)),
        strides=tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else None,
        dtype=_TYPE_NAMES[kind] if known else f"DLPack type {kind[0]} of {kind[1]} bits",
        device_type=tensor.device.device_type,
        device=tensor.device.device_id,
    )


_exported: dict[int, tuple[Any, ...]] = {}
"""What each tensor given out needs until its consumer deletes it, by the tensor's address."""


@_Deleter
def _delete(tensor: Any) -> None:
    _exported.pop(ctypes.addressof(tensor.contents), None)


@_CapsuleDestructor
def _destroy_capsule(capsule: int) -> None:
    # A consumer renames the capsule that it takes over; then the tensor is the consumer's to delete.
    if _dying_is_valid(capsule, _NAME):
        _exported.pop(_dying_pointer(capsule, _NAME), None)


def make_capsule(address: int, shape: tuple[int, ...], dtype: str, device: int, owner: object) -> Any:
    """A capsule over contiguous CUDA memory. `owner` is kept until the consumer is done with it."""
    dimensions = (ctypes.c_int64 * len(shape))(*shape)
    managed = _ManagedTensor()
    managed.dl_tensor = _Tensor(
        data=address,
        device=_Device(DEVICE_CUDA, device),
        ndim=len(shape),
        dtype=_DataType(*TYPES[dtype], 1),
        shape=ctypes.cast(dimensions, ctypes.POINTER(ctypes.c_int64)),
        strides=None,
        byte_offset=0,
    )
    managed.deleter = _delete
    key = ctypes.addressof(managed)
    _exported[key] = (managed, dimensions, owner)
    return _new_capsule(key, _NAME, _destroy_capsule)

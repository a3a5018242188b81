"""launchMaskedSoftmax from Python, for tests and benchmarks: the kernels alone, without TensorRT and without PyTorch.

Mirrors `MaskedSoftmaxParams` of plugin/kernels/masked_softmax.h over the test library `libattngraft_test_abi.so`
(CMake option ATTNGRAFT_BUILD_TESTS; its path may be given in ATTNGRAFT_TEST_ABI).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
from cuda.bindings import runtime as cudart

from attngraft.contract import CausalMode, EmptyRows, MaskedSoftmax, Role

MAX_RANK = 6
DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TYPE_CODES = {DTYPES["float32"]: 0, DTYPES["float16"]: 1, DTYPES["bfloat16"]: 2}
KEEP_CODES = {1: 0, 4: 1, 8: 2}  # by bytes of an element
GUARD_BYTES = 256  # before and after an output, to see a write outside of it; keeps the alignment of cudaMalloc
POISON = 0xFF  # NaN in every floating type


class BroadcastTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * MAX_RANK)]


class MaskedSoftmaxParams(ctypes.Structure):
    _fields_ = [
        ("scores", ctypes.c_void_p),
        ("probabilities", ctypes.c_void_p),
        ("dims", ctypes.c_int64 * MAX_RANK),
        ("type", ctypes.c_int32),
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


@cache
def library() -> ctypes.CDLL:
    """The test library; its struct has the size of the mirror above."""
    default = Path(__file__).parents[2] / "build" / "lib" / "libattngraft_test_abi.so"
    abi = ctypes.CDLL(os.environ.get("ATTNGRAFT_TEST_ABI", str(default)))
    abi.attngraft_test_params_size.restype = ctypes.c_size_t
    assert abi.attngraft_test_params_size() == ctypes.sizeof(MaskedSoftmaxParams)
    abi.attngraft_test_masked_softmax.argtypes = [ctypes.POINTER(MaskedSoftmaxParams), ctypes.c_void_p]
    abi.attngraft_test_masked_softmax.restype = ctypes.c_int
    return abi


def checked(result: tuple) -> object:
    """The value of a cuda-python call, after its status was success."""
    status, *values = result
    assert int(status) == 0, f"CUDA error {status!r}"
    return values[0] if values else None


def full_dims(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` filled up to rank 6 with ones after the batch dimension; rank 2 has batch 1."""
    batch = shape[:1] if len(shape) > 2 else (1,)
    inner = shape[1:] if len(shape) > 2 else shape
    return batch + (1,) * (MAX_RANK - 1 - len(inner)) + inner


def broadcast_strides(shape: tuple[int, ...], scores: tuple[int, ...]) -> list[int]:
    """Element strides of a contiguous tensor for each of the six score dimensions, 0 where it is broadcast."""
    aligned = (1,) * (len(scores) - len(shape)) + tuple(shape)
    strides, step = [0] * len(scores), 1
    for axis in reversed(range(len(scores))):
        strides[axis] = step if aligned[axis] != 1 else 0
        step *= aligned[axis]
    batch = strides[:1] if len(scores) > 2 else [0]
    inner = strides[1:] if len(scores) > 2 else strides
    return batch + [0] * (MAX_RANK - 1 - len(inner)) + inner


def make_params(
    scores: int,
    probabilities: int,
    shape: tuple[int, ...],
    dtype: np.dtype,
    config: MaskedSoftmax,
    operands: dict[str, tuple[int, tuple[int, ...], np.dtype]],
) -> MaskedSoftmaxParams:
    """Parameters over device addresses. `operands`: role -> (address, shape, dtype)."""
    params = MaskedSoftmaxParams(scores=scores, probabilities=probabilities, type=TYPE_CODES[dtype])
    params.dims[:] = full_dims(shape)
    for role in (Role.BIAS, Role.KEEP):
        if role in operands:
            address, operand_shape, _ = operands[role]
            strides = (ctypes.c_int64 * MAX_RANK)(*broadcast_strides(operand_shape, shape))
            setattr(params, role, BroadcastTensor(address, strides))
    if Role.BIAS in operands:
        params.bias_is_float32 = operands[Role.BIAS][2] == np.float32
    if Role.KEEP in operands:
        params.keep_type = KEEP_CODES[operands[Role.KEEP][2].itemsize]
    params.kv_lengths = operands[Role.KV_LENGTHS][0] if Role.KV_LENGTHS in operands else None
    params.kv_starts = operands[Role.KV_STARTS][0] if Role.KV_STARTS in operands else None
    params.scale, params.softcap = config.scale, config.softcap
    params.causal = CausalMode.ALL.index(config.causal)
    params.window_left, params.window_right = config.window_left, config.window_right
    params.empty_rows = EmptyRows.ALL.index(config.empty_rows)
    return params


def launch(params: MaskedSoftmaxParams, stream: int = 0) -> int:
    """Enqueues on `stream`; the cudaError_t."""
    return library().attngraft_test_masked_softmax(ctypes.byref(params), ctypes.c_void_p(stream))


@contextmanager
def device_memory(size: int) -> Iterator[int]:
    """`size` poisoned bytes on the current device."""
    address = int(checked(cudart.cudaMalloc(max(size, 1))))
    try:
        checked(cudart.cudaMemset(address, POISON, max(size, 1)))
        yield address
    finally:
        checked(cudart.cudaFree(address))


def upload(address: int, array: np.ndarray) -> None:
    array = np.ascontiguousarray(array)
    if array.nbytes:
        kind = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
        checked(cudart.cudaMemcpy(address, array.ctypes.data, array.nbytes, kind))


def download(address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    array = np.empty(shape, dtype)
    if array.nbytes:
        kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
        checked(cudart.cudaMemcpy(array.ctypes.data, address, array.nbytes, kind))
    return array


@contextmanager
def guarded_memory(size: int, shift: int = 0) -> Iterator[int]:
    """`size` poisoned bytes, `shift` bytes away from an alignment of 256, and a check that nothing around them was
    written. The caller waits for the device."""
    with device_memory(size + 2 * GUARD_BYTES) as memory:
        first = memory + GUARD_BYTES + shift
        yield first
        before = download(memory, (GUARD_BYTES + shift,), np.dtype(np.uint8))
        after = download(first + size, (GUARD_BYTES - shift,), np.dtype(np.uint8))
        assert (before == POISON).all() and (after == POISON).all(), "a write outside a tensor"


def masked_softmax(
    scores: np.ndarray,
    config: MaskedSoftmax,
    operands: dict[str, np.ndarray],
    *,
    in_place: bool = False,
    input_offset: int = 0,
    output_offset: int = 0,
) -> np.ndarray:
    """Runs the kernel on copies of NumPy arrays and returns the probabilities.

    The offsets, in elements, move the tensors away from their alignment. The output is poisoned beforehand, and bytes
    around it are checked to be untouched.
    """
    item = scores.dtype.itemsize
    with (
        guarded_memory(scores.nbytes, input_offset * item) as source,
        guarded_memory(scores.nbytes, output_offset * item) as separate,
    ):
        target = source if in_place else separate
        upload(source, scores)
        with _uploaded(operands) as addresses:
            params = make_params(source, target, scores.shape, scores.dtype, config, addresses)
            status = launch(params)
            assert status == 0, f"launch returned CUDA error {status}"
            checked(cudart.cudaDeviceSynchronize())
        return download(target, scores.shape, scores.dtype)


@contextmanager
def _uploaded(operands: dict[str, np.ndarray]) -> Iterator[dict[str, tuple[int, tuple[int, ...], np.dtype]]]:
    addresses: dict[str, tuple[int, tuple[int, ...], np.dtype]] = {}
    allocated = []
    try:
        for role, array in operands.items():
            address = int(checked(cudart.cudaMalloc(max(array.nbytes, 1))))
            allocated.append(address)
            upload(address, array)
            addresses[role] = (address, array.shape, array.dtype)
        yield addresses
    finally:
        for address in allocated:
            checked(cudart.cudaFree(address))

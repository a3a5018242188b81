"""launchMaskedSoftmax from Python, for tests and benchmarks: the kernels alone, without TensorRT and without PyTorch.

Mirrors `MaskedSoftmaxParams` of plugin/kernels/masked_softmax.h over the test library `libattngraft_test_abi.so`
(CMake option ATTNGRAFT_BUILD_TESTS; its path may be given in ATTNGRAFT_TEST_ABI).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from cuda.bindings import runtime as cudart

from attngraft.contract import MaskedSoftmax

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))  # what the tests on the CPU share

from mask_abi import DTYPES  # noqa: E402 - found through the line above
from softmax_abi import GUARD_BYTES, POISON, MaskedSoftmaxParams, full_dims, make_params  # noqa: E402

__all__ = ["DTYPES", "POISON", "full_dims", "make_params"]  # and what is below


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

"""launchMaskedSoftmaxBackward from Python, for tests and benchmarks: cases in device memory.

tests/python/softmax_backward_abi.py mirrors the parameters; the library is that of kernel_abi.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
from cuda.bindings import runtime as cudart
from mask_abi import DTYPES
from softmax_backward_abi import MaskedSoftmaxBackwardParams, make_params, names_of
from softmax_backward_cases import BackwardCase

from kernel_abi import checked, download, guarded_memory, library, upload

__all__ = ["PlacedBackward", "backward", "launch_backward", "placed", "workspace_bytes"]


@cache
def _backward_library() -> ctypes.CDLL:
    """The test library; its struct has the size of the mirror."""
    abi = library()
    params = ctypes.POINTER(MaskedSoftmaxBackwardParams)
    abi.attngraft_test_softmax_backward_params_size.restype = ctypes.c_size_t
    assert abi.attngraft_test_softmax_backward_params_size() == ctypes.sizeof(MaskedSoftmaxBackwardParams)
    abi.attngraft_test_softmax_backward_workspace.argtypes = [params]
    abi.attngraft_test_softmax_backward_workspace.restype = ctypes.c_size_t
    abi.attngraft_test_softmax_backward.argtypes = [params, ctypes.c_void_p]
    abi.attngraft_test_softmax_backward.restype = ctypes.c_int
    return abi


def launch_backward(params: MaskedSoftmaxBackwardParams, stream: int = 0) -> int:
    """Enqueues on `stream`; the cudaError_t."""
    return _backward_library().attngraft_test_softmax_backward(ctypes.byref(params), ctypes.c_void_p(stream))


def workspace_bytes(params: MaskedSoftmaxBackwardParams) -> int:
    return _backward_library().attngraft_test_softmax_backward_workspace(ctypes.byref(params))


@dataclass(frozen=True)
class PlacedBackward:
    """A case in device memory."""

    case: BackwardCase
    params: MaskedSoftmaxBackwardParams
    addresses: dict[str, int]

    def launch(self, stream: int = 0) -> None:
        status = launch_backward(self.params, stream)
        assert status == 0, f"launch returned CUDA error {status}: {self.case.describe()}"

    def results(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Gradients of the scores and of the bias, once the device is done; the inputs are seen to have stayed."""
        checked(cudart.cudaDeviceSynchronize())
        case = self.case
        for name, (array, _) in names_of(case).items():
            there = download(self.addresses[name], array.shape, array.dtype)
            assert there.tobytes() == array.tobytes(), f"{name} was written to: {case.describe()}"
        scores = download(self.addresses["scores_gradient"], case.scores.shape, case.scores.dtype)
        if case.bias_shape is None:
            return scores, None
        return scores, download(self.addresses["bias_gradient"], case.bias_shape, DTYPES[case.bias_dtype])


@contextmanager
def placed(case: BackwardCase) -> Iterator[PlacedBackward]:
    """The case in device memory. Outputs and workspace begin as NaN and have guards around them, as the inputs have."""
    item = case.scores.dtype.itemsize
    addresses = {}
    with ExitStack() as stack:
        for name, (array, offset) in names_of(case).items():
            addresses[name] = stack.enter_context(guarded_memory(array.nbytes, offset * array.itemsize))
            upload(addresses[name], array)
        addresses["scores_gradient"] = stack.enter_context(guarded_memory(case.scores.nbytes, case.offsets[3] * item))
        if case.bias_shape is not None:
            size = int(np.prod(case.bias_shape)) * DTYPES[case.bias_dtype].itemsize
            addresses["bias_gradient"] = stack.enter_context(guarded_memory(size))
        params = make_params(case, addresses)
        params.workspace = stack.enter_context(guarded_memory(workspace_bytes(params)))
        yield PlacedBackward(case, params, addresses)


def backward(case: BackwardCase) -> tuple[np.ndarray, np.ndarray | None]:
    """Gradients of the scores and of the bias of a case that is copied to the device."""
    with placed(case) as there:
        there.launch()
        return there.results()

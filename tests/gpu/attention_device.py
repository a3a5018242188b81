"""launchFusedAttention from Python, for tests and benchmarks: cases in device memory, or PyTorch's tensors.

tests/python/attention_abi.py mirrors `FusedAttentionParams`; the library is that of kernel_abi.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from attention_abi import MAX_VARIANTS, FusedAttentionParams, make_params
from attention_cases import AttentionCase
from cuda.bindings import runtime as cudart
from mask_abi import DTYPES

from attngraft.contract import FusedAttention
from kernel_abi import POISON, checked, download, guarded_memory, library, upload

if TYPE_CHECKING:
    import torch

__all__ = [
    "PlacedAttention",
    "attention",
    "attention_variants",
    "launch_attention",
    "params_of_tensors",
    "placed",
    "variants_of_case",
    "workspace_bytes",
]


@cache
def attention_library() -> ctypes.CDLL:
    """The test library; its struct has the size of the mirror."""
    abi = library()
    params = ctypes.POINTER(FusedAttentionParams)
    abi.attngraft_test_attention_params_size.restype = ctypes.c_size_t
    assert abi.attngraft_test_attention_params_size() == ctypes.sizeof(FusedAttentionParams)
    abi.attngraft_test_attention_variants.argtypes = [params, ctypes.POINTER(ctypes.c_int32), ctypes.c_int]
    abi.attngraft_test_attention_variants.restype = ctypes.c_int
    abi.attngraft_test_attention_workspace.argtypes = [params]
    abi.attngraft_test_attention_workspace.restype = ctypes.c_size_t
    abi.attngraft_test_fused_attention.argtypes = [params, ctypes.c_void_p]
    abi.attngraft_test_fused_attention.restype = ctypes.c_int
    return abi


def launch_attention(params: FusedAttentionParams, stream: int = 0) -> int:
    """Enqueues on `stream`; the cudaError_t."""
    return attention_library().attngraft_test_fused_attention(ctypes.byref(params), ctypes.c_void_p(stream))


def attention_variants(params: FusedAttentionParams) -> list[int]:
    """The variants that serve the parameters on the current device, best guess first."""
    found = (ctypes.c_int32 * MAX_VARIANTS)()
    count = attention_library().attngraft_test_attention_variants(ctypes.byref(params), found, MAX_VARIANTS)
    assert count <= MAX_VARIANTS
    return list(found[:count])


def workspace_bytes(params: FusedAttentionParams) -> int:
    return attention_library().attngraft_test_attention_workspace(ctypes.byref(params))


def variants_of_case(case: AttentionCase) -> list[int]:
    """The same for a case whose tensors are aligned to 16 bytes."""
    addresses = dict.fromkeys(("q", "k", "v", "context", *case.operands), 0)
    return attention_variants(make_params(case, addresses, case.empty_context()))


@dataclass(frozen=True)
class PlacedAttention:
    """A case in device memory. `memories`: where the memory that each tensor is a view of begins."""

    case: AttentionCase
    params: FusedAttentionParams
    memories: Mapping[str, int]
    context: np.ndarray
    """A view with the strides of the context, on the host; what it held does not matter."""

    def launch(self, stream: int = 0) -> None:
        status = launch_attention(self.params, stream)
        assert status == 0, f"launch returned CUDA error {status}: {self.case.describe()}"

    def upload(self, name: str, array: np.ndarray) -> None:
        """Other values for a tensor, in a view of the same strides."""
        upload(self.memories[name], memory_of(array)[0])

    def results(self) -> tuple[np.ndarray, np.ndarray]:
        """Context and log-sum-exp, once the device is done; the gaps between the context's rows are checked."""
        checked(cudart.cudaDeviceSynchronize())
        memory, _ = memory_of(self.context)
        memory[...] = download(self.memories["context"], memory.shape, memory.dtype)
        context = self.context.copy()
        poison = np.frombuffer(bytes([POISON] * memory.itemsize), memory.dtype)
        self.context[...] = poison  # what is left was between the rows
        assert (memory.view(np.uint8) == POISON).all(), f"a write between the rows: {self.case.describe()}"
        return context, download(self.memories["log_sum_exp"], self.case.q.shape[:3], np.dtype(np.float32))


def memory_of(array: np.ndarray) -> tuple[np.ndarray, int]:
    """The memory that a view belongs to, as one row in its order, and the bytes before the view's first element."""
    memory = array
    while memory.base is not None:
        memory = memory.base
    return memory.ravel(order="K"), array.ctypes.data - memory.ctypes.data


@contextmanager
def placed(case: AttentionCase, variant: int = 0, shift: int = 0) -> Iterator[PlacedAttention]:
    """The case in device memory, every tensor `shift` of its elements away from alignment. Context, log-sum-exp and
    workspace begin as NaN and have guards around them, as the inputs have."""
    context = case.empty_context()
    arrays = {"q": case.q, "k": case.k, "v": case.v, **case.operands}
    memories, addresses = {}, {}
    with ExitStack() as stack:
        for name, array in {**arrays, "context": context}.items():
            memory, offset = memory_of(array)
            memories[name] = stack.enter_context(guarded_memory(memory.nbytes, shift * memory.itemsize))
            addresses[name] = memories[name] + offset
            if name in arrays:
                upload(memories[name], memory)
        memories["log_sum_exp"] = stack.enter_context(guarded_memory(4 * int(np.prod(case.q.shape[:3]))))
        addresses["log_sum_exp"] = memories["log_sum_exp"]
        params = make_params(case, addresses, context, variant)
        params.workspace = stack.enter_context(guarded_memory(workspace_bytes(params)))
        yield PlacedAttention(case, params, memories, context)


def attention(case: AttentionCase, variant: int = 0, shift: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Context [B, H, Sq, Dv] and log-sum-exp [B, H, Sq] of a case that is copied to the device."""
    with placed(case, variant, shift) as there:
        there.launch()
        return there.results()


@dataclass(frozen=True)
class _Strides:
    """Shape, strides in bytes and type of a tensor that is not here: what parameters are made from, as of an array."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize


def _strides(tensor: torch.Tensor) -> _Strides:
    name = str(tensor.dtype).removeprefix("torch.")
    dtype = DTYPES[name] if name in DTYPES else np.dtype(name)
    return _Strides(tuple(tensor.shape), tuple(step * dtype.itemsize for step in tensor.stride()), dtype)


def params_of_tensors(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    context: torch.Tensor,
    config: FusedAttention,
    operands: Mapping[str, torch.Tensor] | None = None,
    variant: int = 0,
) -> FusedAttentionParams:
    """Over PyTorch's tensors, q [B,H,Sq,D] and so on, of any strides; operands are contiguous. No workspace yet."""
    operands = operands or {}
    case = AttentionCase(
        _strides(q), _strides(k), _strides(v), config, {role: _strides(tensor) for role, tensor in operands.items()}
    )
    tensors = {"q": q, "k": k, "v": v, "context": context, **operands}
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    return make_params(case, addresses, _strides(context), variant)

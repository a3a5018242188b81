"""MaskedSoftmaxBackwardParams from Python: the kernels' border, without TensorRT and without PyTorch.

Mirrors plugin/kernels/masked_softmax_backward.h. `emulated_backward` runs the kernels' source on the CPU (the test
library `libattngraft_emulated_softmax_backward.so`, CMake option ATTNGRAFT_BUILD_TESTS); tests/gpu runs the kernels.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import attention_abi
import numpy as np
from softmax_backward_cases import DTYPES, BackwardCase

from attngraft.contract import CausalMode, EmptyRows, Role
from softmax_abi import KEEP_CODES, MAX_RANK, POISON, TYPE_CODES, BroadcastTensor, broadcast_strides, full_dims

__all__ = ["MaskedSoftmaxBackwardParams", "emulated_backward", "emulation", "make_params", "names_of"]

MESSAGE_BYTES = 500
ALIGNMENT = 256
GUARD_BYTES = 256
"""Before and behind an output, to see a write outside of it."""


class MaskedSoftmaxBackwardParams(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("probabilities", "gradient", "scores", "scores_gradient")),
        ("dims", ctypes.c_int64 * MAX_RANK),
        ("type", ctypes.c_int32),
        ("bias_gradient", ctypes.c_void_p),
        ("bias_gradient_strides", ctypes.c_int64 * MAX_RANK),
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
        ("workspace", ctypes.c_void_p),
    ]


@cache
def emulation() -> ctypes.CDLL:
    """The emulating library, beside that of attention; its struct has the size of the mirror above."""
    beside = Path(attention_abi.emulation()._name).with_name("libattngraft_emulated_softmax_backward.so")
    library = ctypes.CDLL(os.environ.get("ATTNGRAFT_EMULATED_SOFTMAX_BACKWARD") or str(beside))
    library.attngraft_test_softmax_backward_params_size.restype = ctypes.c_size_t
    library.attngraft_test_softmax_backward_workspace.restype = ctypes.c_size_t
    assert library.attngraft_test_softmax_backward_params_size() == ctypes.sizeof(MaskedSoftmaxBackwardParams)
    return library


def names_of(case: BackwardCase) -> dict[str, tuple[np.ndarray, int]]:
    """The tensors that a call reads, each with the elements that it is away from alignment."""
    arrays = {"probabilities": case.probabilities, "gradient": case.gradient, "scores": case.scores}
    shifted = {name: (array, offset) for (name, array), offset in zip(arrays.items(), case.offsets, strict=False)}
    return shifted | {role: (array, 0) for role, array in case.operands.items()}


def make_params(case: BackwardCase, addresses: dict[str, int]) -> MaskedSoftmaxBackwardParams:
    """`addresses`: of all that names_of says, "scores_gradient", and, if wanted, "bias_gradient" and "workspace"."""
    config, shape = case.config, case.scores.shape
    params = MaskedSoftmaxBackwardParams(
        probabilities=addresses["probabilities"],
        gradient=addresses["gradient"],
        scores=addresses["scores"],
        scores_gradient=addresses["scores_gradient"],
        type=TYPE_CODES[case.scores.dtype],
        kv_lengths=addresses.get(Role.KV_LENGTHS),
        kv_starts=addresses.get(Role.KV_STARTS),
        scale=config.scale,
        softcap=config.softcap,
        causal=CausalMode.ALL.index(config.causal),
        window_left=config.window_left,
        window_right=config.window_right,
        empty_rows=EmptyRows.ALL.index(config.empty_rows),
        workspace=addresses.get("workspace"),
    )
    params.dims[:] = full_dims(shape)
    for role in {Role.BIAS, Role.KEEP} & case.operands.keys():
        strides = (ctypes.c_int64 * MAX_RANK)(*broadcast_strides(case.operands[role].shape, shape))
        setattr(params, role, BroadcastTensor(addresses[role], strides))
    if Role.BIAS in case.operands:
        params.bias_is_float32 = case.operands[Role.BIAS].dtype == np.float32
    if Role.KEEP in case.operands:
        params.keep_type = KEEP_CODES[case.operands[Role.KEEP].dtype.itemsize]
    if case.bias_shape is not None:
        params.bias_gradient = addresses["bias_gradient"]
        params.bias_gradient_strides[:] = broadcast_strides(case.bias_shape, shape)
        asked = Role.BIAS in case.operands
        params.bias_is_float32 = params.bias_is_float32 if asked else case.bias_dtype == "float32"
    return params


class Guarded:
    """An array in poisoned memory, so many bytes away from alignment."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, shift: int = 0) -> None:
        size = int(np.prod(shape)) * dtype.itemsize
        self._memory = np.full(size + 2 * GUARD_BYTES + 2 * ALIGNMENT, POISON, np.uint8)
        self._first = -self._memory.ctypes.data % ALIGNMENT + GUARD_BYTES + shift
        self._behind = self._first + size
        self.array = self._memory[self._first : self._behind].view(dtype).reshape(shape)

    @property
    def address(self) -> int:
        return self._memory.ctypes.data + self._first

    def assert_nothing_else_written(self) -> None:
        around = (self._memory[: self._first], self._memory[self._behind :])
        assert all((part == POISON).all() for part in around), "a write outside a tensor"


def _placed(array: np.ndarray, offset: int) -> Guarded:
    there = Guarded(array.shape, array.dtype, offset * array.itemsize)
    there.array[...] = array
    return there


def emulated_backward(case: BackwardCase, seed: int = 0) -> tuple[np.ndarray, np.ndarray | None]:
    """Gradients of the scores and of the bias. Outputs and workspace begin as NaN; inputs are seen to stay."""
    inputs = {name: _placed(*place) for name, place in names_of(case).items()}
    dtype = case.scores.dtype
    outputs = {"scores_gradient": Guarded(case.scores.shape, dtype, case.offsets[3] * dtype.itemsize)}
    if case.bias_shape is not None:
        outputs["bias_gradient"] = Guarded(case.bias_shape, DTYPES[case.bias_dtype])
    params = make_params(case, {name: memory.address for name, memory in (inputs | outputs).items()})
    size = emulation().attngraft_test_softmax_backward_workspace(ctypes.byref(params))
    outputs["workspace"] = Guarded((size,), np.dtype(np.uint8))
    params.workspace = outputs["workspace"].address
    message = ctypes.create_string_buffer(MESSAGE_BYTES)
    status = emulation().attngraft_test_softmax_backward(
        ctypes.byref(params), case.multiprocessors, seed, message, MESSAGE_BYTES
    )
    assert status == 0, f"status {status}: {message.value.decode()}; {case.describe()}"
    for memory in (*inputs.values(), *outputs.values()):
        memory.assert_nothing_else_written()
    for name, (array, _) in names_of(case).items():
        assert inputs[name].array.tobytes() == array.tobytes(), f"{name} was written to: {case.describe()}"
    bias = outputs.get("bias_gradient")
    return outputs["scores_gradient"].array, None if bias is None else bias.array

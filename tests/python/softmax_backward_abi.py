"""MaskedSoftmaxBackwardParams from Python: the kernels' border, without TensorRT and without PyTorch.

Mirrors plugin/kernels/masked_softmax_backward.h. `emulated_backward` runs the kernels' source on the CPU (the test
library `libattngraft_emulated_softmax_backward.so`, CMake option ATTNGRAFT_BUILD_TESTS); tests/gpu runs the kernels.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
from emulated_device import MESSAGE_BYTES, Device, library_path
from mask_abi import DTYPES, MAX_RANK, TYPE_CODES, MaskParams
from softmax_abi import Layout, Placed, broadcast_strides, full_dims
from softmax_backward_cases import BackwardCase

from attngraft.contract import Role

__all__ = ["MaskedSoftmaxBackwardParams", "emulated_backward", "emulation", "make_params", "names_of"]


class MaskedSoftmaxBackwardParams(MaskParams):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("probabilities", "gradient", "scores", "scores_gradient")),
        ("dims", ctypes.c_int64 * MAX_RANK),
        ("type", ctypes.c_int32),
        ("bias_gradient", ctypes.c_void_p),
        ("bias_gradient_strides", ctypes.c_int64 * MAX_RANK),
        ("workspace", ctypes.c_void_p),
    ]


@cache
def emulation() -> ctypes.CDLL:
    """The emulating library; its struct has the size of the mirror above."""
    library = ctypes.CDLL(str(library_path("softmax_backward")))
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
    shape = case.scores.shape
    params = MaskedSoftmaxBackwardParams(
        probabilities=addresses["probabilities"],
        gradient=addresses["gradient"],
        scores=addresses["scores"],
        scores_gradient=addresses["scores_gradient"],
        type=TYPE_CODES[case.scores.dtype.name],
        workspace=addresses.get("workspace"),
    )
    params.dims[:] = full_dims(shape)
    operands = {role: (addresses[role], array.shape, array.dtype) for role, array in case.operands.items()}
    params.set_mask(case.config, operands, lambda operand: broadcast_strides(operand, shape))
    if case.bias_shape is not None:
        params.bias_gradient = addresses["bias_gradient"]
        params.bias_gradient_strides[:] = broadcast_strides(case.bias_shape, shape)
        asked = Role.BIAS in case.operands
        params.bias_is_float32 = params.bias_is_float32 if asked else case.bias_dtype == "float32"
    return params


def _placed(array: np.ndarray, offset: int) -> Placed:
    there = Placed(array.shape, array.dtype, Layout(offset))
    there.array[...] = array
    return there


def emulated_backward(case: BackwardCase, seed: int = 0) -> tuple[np.ndarray, np.ndarray | None]:
    """Gradients of the scores and of the bias. Outputs and workspace begin as NaN; inputs are seen to stay."""
    inputs = {name: _placed(*place) for name, place in names_of(case).items()}
    dtype = case.scores.dtype
    outputs = {"scores_gradient": Placed(case.scores.shape, dtype, Layout(case.offsets[3]))}
    if case.bias_shape is not None:
        outputs["bias_gradient"] = Placed(case.bias_shape, DTYPES[case.bias_dtype], Layout())
    params = make_params(case, {name: memory.address for name, memory in (inputs | outputs).items()})
    size = emulation().attngraft_test_softmax_backward_workspace(ctypes.byref(params))
    outputs["workspace"] = Placed((size,), np.dtype(np.uint8), Layout())
    params.workspace = outputs["workspace"].address
    for memory in (*inputs.values(), *outputs.values()):
        memory.remember()
    message = ctypes.create_string_buffer(MESSAGE_BYTES)
    device = Device(multiprocessors=case.multiprocessors, has_clusters=case.multiprocessors > 0)
    status = emulation().attngraft_test_softmax_backward(
        ctypes.byref(params), ctypes.byref(device), seed, message, MESSAGE_BYTES
    )
    assert status == 0, f"status {status}: {message.value.decode()}; {case.describe()}"
    for memory in (*inputs.values(), *outputs.values()):
        memory.assert_nothing_else_written()
    for name, (array, _) in names_of(case).items():
        assert inputs[name].array.tobytes() == array.tobytes(), f"{name} was written to: {case.describe()}"
    bias = outputs.get("bias_gradient")
    return outputs["scores_gradient"].array, None if bias is None else bias.array

"""The attention kernels beside PyTorch's: errors of the same input, and tensors beyond 2^31 elements."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from attention_abi import FusedAttentionParams
from attention_cases import AttentionCase, assert_attention_matches, expected_attention
from mask_abi import DTYPES, BroadcastTensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_device import (
    attention,
    launch_attention,
    params_of_tensors,
    variants_of_case,
    workspace_bytes,
)
from attngraft.contract import CausalMode, FusedAttention, Role

SHARE_OF_TORCH_ERROR = 2.0
"""What the largest error may be of that of PyTorch's attention on the same input."""

LARGE_FACTOR = 100.0
"""Of queries and of keys: scores have a deviation of 1e4."""

BEYOND = 2**31 + 2**26
"""Elements of the tensors that need 64-bit offsets: 4.1 GiB in fp16."""


def on_gpu(array: np.ndarray) -> torch.Tensor:
    """The same values; bfloat16 goes as its bits, since NumPy and PyTorch share no such type."""
    if array.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(array).cuda()


def random_case(dtype: str, factor: float, causal: bool, exact: int = 0, size: int = 64) -> AttentionCase:
    rng = np.random.default_rng(0)
    heads = 4 if factor == 1.0 else 16  # of unlucky rows there are few, whose number is to tell more than luck
    q, k, v = (
        (rng.standard_normal((2, heads, 256, size)) * times).astype(DTYPES[dtype]) for times in (factor, factor, 1.0)
    )
    mode = CausalMode.TOP_LEFT if causal else CausalMode.NONE
    return AttentionCase(q, k, v, FusedAttention(scale=size**-0.5, causal=mode, exact=exact))


def torch_attention(case: AttentionCase, backend: SDPBackend) -> np.ndarray:
    with sdpa_kernel(backend):
        context = functional.scaled_dot_product_attention(
            *map(on_gpu, (case.q, case.k, case.v)),
            is_causal=case.config.causal != CausalMode.NONE,
            scale=case.config.scale,
        )
    return context.double().cpu().numpy()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("factor", [1.0, LARGE_FACTOR])
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("arithmetic", ["float16", "bfloat16", "float32 exact", "float32"])
def test_errors_are_within_twice_those_of_torch(arithmetic: str, size: int, factor: float, causal: bool) -> None:
    """Half types beside the flash backend; fp32 beside two matrix products of PyTorch, in fp32 and in TF32.

    Large scores leave one weight of a row or, where two scores are nearly equal, two whose shares are a matter of the
    scores' last bits: the largest error is then that of the unluckiest row, and the mean is what can be compared.
    """
    dtype, *exact = arithmetic.split()
    case = random_case(dtype, factor, causal, exact=len(exact), size=size)
    backend = SDPBackend.MATH if dtype == "float32" else SDPBackend.FLASH_ATTENTION
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if exact else "high")
    try:
        theirs = torch_attention(case, backend)
    finally:
        torch.set_float32_matmul_precision(before)
    expected, _ = expected_attention(case)
    measure = np.max if factor == 1.0 else np.mean
    allowed = SHARE_OF_TORCH_ERROR * measure(np.abs(theirs - expected))
    for variant in variants_of_case(case):
        error = measure(np.abs(attention(case, variant)[0].astype(np.float64) - expected))
        assert error <= allowed, f"variant {variant}: {error:.3g}, twice PyTorch's is {allowed:.3g}"


def spread(array: np.ndarray, axis: int) -> torch.Tensor:
    """The values as a view of memory of their own, in which neighbours along `axis` lie as far apart as it allows."""
    tensor = on_gpu(array)
    memory = torch.empty(BEYOND, dtype=tensor.dtype, device="cuda")
    strides = list(tensor.stride())
    strides[axis] = (BEYOND - tensor.numel()) // (tensor.shape[axis] - 1) // 8 * 8  # rows stay whole vectors
    assert (tensor.shape[axis] - 1) * strides[axis] > 2**31, "32-bit offsets would do"
    return memory.as_strided(tensor.shape, strides).copy_(tensor)


def run(params: FusedAttentionParams) -> None:
    """Launches and waits; the tensors are the caller's to keep."""
    workspace = torch.empty(workspace_bytes(params) + 4, dtype=torch.uint8, device="cuda")
    params.workspace = workspace.data_ptr()
    assert launch_attention(params, torch.cuda.current_stream().cuda_stream) == 0
    torch.cuda.synchronize()


@pytest.mark.parametrize("queries", [70, 1])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_tensors_beyond_32_bit_offsets(axis: int, queries: int) -> None:
    """Batch, heads or rows so far apart that the last lies beyond 2^31 elements; the result is that of tensors close
    together, bit for bit."""
    rng = np.random.default_rng(axis)
    q, k, v = (rng.standard_normal((2, 2, length, 64)).astype(np.float16) for length in (queries, 600, 600))
    case = AttentionCase(q, k, v, FusedAttention(scale=0.125))
    close = attention(case)
    assert_attention_matches(close, case)
    place = on_gpu if axis == 2 and queries == 1 else functools.partial(spread, axis=axis)
    far_q, context = place(q), place(np.full_like(q, np.nan))
    far_k, far_v = spread(k, axis), spread(v, axis)
    run(params_of_tensors(far_q, far_k, far_v, context, case.config))
    np.testing.assert_array_equal(context.cpu().numpy(), close[0])


@pytest.mark.parametrize("role", [Role.BIAS, Role.KEEP])
def test_masks_beyond_32_bit_offsets(role: str) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 2, 70, 64)).astype(np.float16) for _ in range(3))
    mask = (
        rng.random((1, 1, 70, 70)) < 0.7
        if role == Role.KEEP
        else rng.standard_normal((1, 1, 70, 70)).astype(np.float16)
    )
    case = AttentionCase(q, k, v, FusedAttention((role,), 0.125), {role: mask})
    close = attention(case)
    assert_attention_matches(close, case)
    near = on_gpu(mask)
    far = spread(mask, 2)
    tensors = [on_gpu(array) for array in (q, k, v, np.full_like(q, np.nan))]
    params = params_of_tensors(*tensors, case.config, {role: near})
    setattr(params, role, BroadcastTensor(far.data_ptr(), (0, 0, far.stride(2), 1, 0, 0)))
    run(params)
    np.testing.assert_array_equal(tensors[3].cpu().numpy(), close[0])


def test_parameters_over_tensors_are_those_over_arrays() -> None:
    """What benchmarks time is what the other tests check."""
    case = random_case("bfloat16", 1.0, causal=False)
    lengths = np.array([100, 256], np.int32)
    case = replace(case, config=replace(case.config, operands=(Role.KV_LENGTHS,)), operands={Role.KV_LENGTHS: lengths})
    tensors = [on_gpu(array) for array in (case.q, case.k, case.v)]
    context, operands = torch.full_like(tensors[0], float("nan")), {Role.KV_LENGTHS: on_gpu(lengths)}
    run(params_of_tensors(*tensors, context, case.config, operands))
    np.testing.assert_array_equal(context.view(torch.int16).cpu().numpy(), attention(case)[0].view(np.int16))

"""FusedAttentionParams from Python: the kernels' border, without TensorRT and without PyTorch.

Mirrors plugin/kernels/fused_attention.h. `emulated_attention` runs the kernels' source on the CPU (the test library
`libattngraft_emulated_attention.so`, CMake option ATTNGRAFT_BUILD_TESTS); tests/gpu runs the kernels themselves.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
from attention_cases import AttentionCase
from emulated_device import MESSAGE_BYTES, SHARED_BYTES, Device, library_path
from mask_abi import TYPE_CODES, MaskParams, aligned_strides

SCORE_DIMS = 4
MAX_VARIANTS = 64

PLAIN = Device(SHARED_BYTES, 0, 0)
WARPGROUPS = Device(SHARED_BYTES, 1, 1, 1)
QUERIES_ALONE = Device(SHARED_BYTES, 1, 0, 1)
KEYS_ALONE = Device(SHARED_BYTES, 1, 1, 0)
WARPGROUPS_ALONE = Device(SHARED_BYTES, 1, 0, 0)
"""The kernels of compute capability 9.0 where the driver has no bulk copies, or strides are not such as they
need: those of keys and values, of queries, or of all."""


class HeadTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
    ]


class FusedAttentionParams(MaskParams):
    _fields_ = [
        *((name, HeadTensor) for name in ("query", "key", "value", "context")),
        ("log_sum_exp", ctypes.c_void_p),
        *(
            (name, ctypes.c_int64)
            for name in (
                "batch",
                "heads",
                "kv_heads",
                "queries",
                "keys",
                "head_size",
                "value_size",
                "query_group_stride",
            )  # fmt: skip
        ),
        ("type", ctypes.c_int32),
        ("is_exact", ctypes.c_bool),
        ("variant", ctypes.c_int32),
        ("workspace", ctypes.c_void_p),
    ]


@cache
def emulation() -> ctypes.CDLL:
    """The emulating library; its struct has the size of the mirror above."""
    library = ctypes.CDLL(str(library_path("attention")))
    library.attngraft_test_attention_params_size.restype = ctypes.c_size_t
    library.attngraft_test_attention_workspace.restype = ctypes.c_size_t
    assert library.attngraft_test_attention_params_size() == ctypes.sizeof(FusedAttentionParams)
    return library


def head_tensor(array: np.ndarray, address: int, shape: tuple[int, int, int, int]) -> HeadTensor:
    """`array` is a view [B, H, S, D] of memory at `address`; its last stride is one element."""
    assert array.shape == shape and (array.strides[3] == array.itemsize or shape[3] == 1 or array.size == 0)
    batch, head, row = (stride // array.itemsize for stride in array.strides[:3])
    return HeadTensor(address, batch, head, row)


def make_params(
    case: AttentionCase, addresses: dict[str, int], context: np.ndarray, variant: int = 0
) -> FusedAttentionParams:
    """`addresses`: of "q", "k", "v", "context" (of the first element of the view), of each operand's role, and, if
    wanted, of "log_sum_exp" and "workspace". `context`: a view with the strides of the output."""
    config, (batch, heads, queries, head_size) = case.config, case.q.shape
    kv_heads, keys, value_size = case.v.shape[1:]
    params = FusedAttentionParams(
        query=head_tensor(case.q, addresses["q"], case.q.shape),
        key=head_tensor(case.k, addresses["k"], (batch, kv_heads, keys, head_size)),
        value=head_tensor(case.v, addresses["v"], case.v.shape),
        context=head_tensor(context, addresses["context"], (batch, heads, queries, value_size)),
        log_sum_exp=addresses.get("log_sum_exp"),
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        head_size=head_size,
        value_size=value_size,
        type=TYPE_CODES[case.dtype],
        is_exact=bool(config.exact),
        variant=variant,
        workspace=addresses.get("workspace"),
    )
    operands = {role: (addresses[role], array.shape, array.dtype) for role, array in case.operands.items()}
    params.set_mask(config, operands, lambda shape: aligned_strides(shape, SCORE_DIMS))
    return params


def variants(case: AttentionCase, device: Device = PLAIN) -> list[int]:
    """The variants that serve a case, best guess first."""
    params = make_params(case, dict.fromkeys(("q", "k", "v", "context", *case.operands), 0), case.empty_context())
    found = (ctypes.c_int32 * MAX_VARIANTS)()
    count = emulation().attngraft_test_attention_variants(
        ctypes.byref(params), found, MAX_VARIANTS, ctypes.byref(device)
    )
    return list(found[:count])


def warpgroup_variants(case: AttentionCase) -> list[int]:
    """Those of them that only a device with warp groups has."""
    return sorted(set(variants(case, WARPGROUPS)) - set(variants(case)))


def queries_in_groups(case: AttentionCase) -> np.ndarray:
    """The queries [B, Sq, Hk, G + 2, D] as a packed projection has them: the heads of a group, then NaN in the place of
    its key and value."""
    batch, heads, queries, size = case.q.shape
    kv_heads = case.k.shape[1]
    packed = np.full((batch, queries, kv_heads, heads // kv_heads + 2, size), np.nan, case.q.dtype)
    groups = case.q.reshape(batch, kv_heads, heads // kv_heads, queries, size)
    packed[:, :, :, :-2] = groups.transpose(0, 3, 1, 2, 4)
    return packed


def emulated_attention(
    case: AttentionCase, variant: int = 0, seed: int = 0, device: Device = PLAIN, in_groups: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Context [B, H, Sq, Dv] and log-sum-exp [B, H, Sq]. The outputs begin as NaN, and so does the workspace.

    in_groups: the queries are read from `queries_in_groups`.
    """
    context = case.empty_context()
    logarithms = np.full(case.q.shape[:3], np.nan, np.float32)
    arrays = {"q": case.q, "k": case.k, "v": case.v, "context": context, "log_sum_exp": logarithms, **case.operands}
    params = make_params(case, {name: array.ctypes.data for name, array in arrays.items()}, context, variant)
    if in_groups:
        packed = queries_in_groups(case)
        batch, row, group, head = (stride // packed.itemsize for stride in packed.strides[:4])
        params.query = HeadTensor(packed.ctypes.data, batch, head, row)
        params.query_group_stride = group
    workspace = np.full(emulation().attngraft_test_attention_workspace(ctypes.byref(params)) // 4 + 1, np.nan, "f4")
    params.workspace = workspace.ctypes.data
    message = ctypes.create_string_buffer(MESSAGE_BYTES)
    status = emulation().attngraft_test_fused_attention(
        ctypes.byref(params), ctypes.byref(device), seed, message, MESSAGE_BYTES
    )
    assert status == 0, f"status {status}: {message.value.decode()}; {case.describe()}"
    case.assert_nothing_else_written(context)
    return context, logarithms

"""From PyTorch's tensors to the kernels and back: plugin/torch over the emulated device, on CPU tensors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from attention_cases import assert_attention_matches, random_attention
from torch_cases import elsewhere, load_emulated, scalars_of, tensors_of, to_numpy, to_torch

from attngraft.contract import Role
from attngraft.torch import library

CASES = 16
WORK_LIMIT = 15_000

B, H, HK, SQ, SK, D = 2, 4, 2, 3, 5, 8


@pytest.fixture(scope="module", autouse=True)
def emulated() -> None:
    load_emulated()


@pytest.mark.parametrize("seed", range(CASES))
def test_the_operator_is_attention_in_float64(seed: int) -> None:
    case = random_attention(seed, WORK_LIMIT)
    rng = np.random.default_rng(seed)
    masks = {role: to_torch(array) for role, array in case.operands.items()}
    for role in {Role.BIAS, Role.KEEP} & masks.keys():
        masks[role] = elsewhere(masks[role], case.scores_shape(), rng)
    q, k, v = tensors_of(case)
    if seed % 3 == 0:  # their innermost elements are no neighbours
        q, v = (tensor.transpose(2, 3).contiguous().transpose(2, 3) for tensor in (q, v))
    tensors = (q, k, v, *(masks.get(role) for role in Role.ALL))
    scalars = (*scalars_of(case.config), bool(case.config.exact))
    context, logarithms = torch.ops.attngraft_emulated.fused_attention(*tensors, *scalars, True)
    assert_attention_matches((to_numpy(context), to_numpy(logarithms)), case)
    assert (context.transpose(1, 2) if q.stride(1) < q.stride(2) else context).is_contiguous()
    assert logarithms.is_contiguous() and logarithms.dtype == torch.float32
    alone, nothing = torch.ops.attngraft_emulated.fused_attention(*tensors, *scalars, False)
    assert torch.equal(alone.nan_to_num(), context.nan_to_num()) and nothing.shape == (0,)


def test_the_schema_is_that_of_the_package() -> None:
    schema = str(torch.ops.attngraft_emulated.fused_attention.default._schema)
    assert schema == f"attngraft_emulated::fused_attention{library.SCHEMAS['fused_attention']}"


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"q": normal(B, H, SQ)}, "q: expected four dimensions"),
    ({"q": normal(B, H, SQ, D).double()}, "k: expected the type of q"),
    ({name: normal(B, H, SK, D).double() for name in "qkv"}, "q: expected float32, float16 or bfloat16"),
    ({"k": normal(B, HK, SK, 7)}, f"k: expected shape [{B}, {HK}, {SK}, {D}]"),
    ({"v": normal(B, HK, 4, D)}, f"v: expected shape [{B}, {HK}, {SK}, {D}]"),
    ({"k": normal(B, 3, SK, D), "v": normal(B, 3, SK, D)}, "q: expected a multiple of k's heads"),
    ({"bias": normal(SQ, 4)}, "bias: expected a shape that broadcasts to the scores"),
    ({"bias": normal(1, 1, 1, 1, SK)}, "bias: expected no more dimensions than the scores have"),
    ({"bias": normal(SK).half()}, "bias: expected the type of q, or float32"),
    ({"keep": normal(SK)}, "keep: expected bool, int8, uint8, int32 or int64"),
    ({"kv_lengths": normal(B)}, "kv_lengths: expected int32"),
    ({"kv_starts": torch.ones(3, dtype=torch.int32)}, f"kv_starts: expected shape [{B}]"),
    ({"causal": 3}, "causal: expected 0, 1 or 2"),
    ({"empty_rows": -1}, "empty_rows: expected 0, 1 or 2"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_what_the_kernels_cannot_check_is_refused(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "q": normal(B, H, SQ, D),
        "k": normal(B, HK, SK, D),
        "v": normal(B, HK, SK, D),
        **dict.fromkeys(Role.ALL),
        **{"scale": 1.0, "causal": 0, "window_left": -1, "window_right": -1, "softcap": 0.0, "empty_rows": 0},
        **{"exact": False, "with_log_sum_exp": True},
    } | changed
    with pytest.raises(RuntimeError, match=re.escape(f"attngraft::fused_attention: {message}")):
        torch.ops.attngraft_emulated.fused_attention(*arguments.values())

"""Scores of 1e4: one weight of nearly every row is 1 and all others are 0, and the context is a value as it was."""

from __future__ import annotations

import numpy as np
import pytest
from attention_abi import emulated_attention, variants
from attention_cases import AttentionCase, expected_attention
from mask_abi import DTYPES

from attngraft.contract import FusedAttention

SIZE = 64
FACTOR = 100.0
"""Of queries and keys; scores are its square times what is normal."""

LARGEST_MEAN = {"float16": 1e-6, "bfloat16": 1e-4, "float32": 1e-7}
"""Errors beyond these come from weights that should be 1. What remains are rows of two nearly equal scores."""


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_weight_of_a_row_is_exactly_one(dtype: str) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (
        (rng.standard_normal((1, 2, 128, SIZE)) * times).astype(DTYPES[dtype]) for times in (FACTOR, FACTOR, 1.0)
    )
    case = AttentionCase(q, k, v, FusedAttention(scale=SIZE**-0.5, exact=1))
    expected, _ = expected_attention(case)
    for variant in variants(case)[:2]:
        context, _ = emulated_attention(case, variant)
        assert np.abs(context.astype(np.float64) - expected).mean() < LARGEST_MEAN[dtype], variant

"""The attention kernels' own source on an emulated device, against the float64 oracle. tests/gpu has the same cases."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attention_abi import WARPGROUPS, emulated_attention, variants, warpgroup_variants
from attention_cases import assert_attention_matches, normal_case, place, random_attention
from emulated_device import Device
from mask_abi import DTYPES

from attngraft.contract import EmptyRows, FusedAttention, Role

SWEEP_CASES = int(os.environ.get("ATTNGRAFT_EMULATED_SWEEP", "160"))
SWEEP_CHUNK = 10


small_case = partial(normal_case, batch=1, heads=2, kv_heads=2, queries=40, keys=70)


@pytest.mark.parametrize("first", range(0, SWEEP_CASES, SWEEP_CHUNK))
def test_random_sizes_layouts_and_masks(first: int) -> None:
    for seed in range(first, min(first + SWEEP_CHUNK, SWEEP_CASES)):
        case = random_attention(seed)
        assert_attention_matches(emulated_attention(case, seed=seed), case)


@pytest.mark.parametrize("size", [64, 96, 128, 192, 256, 320])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_variant_gives_the_same(dtype: str, size: int) -> None:
    case = small_case(dtype, size=size)
    found = variants(case)
    assert len(found) == len(set(found)) > 0
    for variant in found:
        assert_attention_matches(emulated_attention(case, variant), case)


def test_small_shared_memory_leaves_fewer_variants() -> None:
    case = small_case(size=128)
    everywhere, hopper = (variants(case, Device(kib * 1024, 0, 0)) for kib in (99, 227))
    assert set(everywhere) < set(hopper)


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sequences_without_any_key(dtype: str, empty_rows: str) -> None:
    config = FusedAttention(operands=(Role.KV_LENGTHS,), scale=0.125, empty_rows=empty_rows)
    case = small_case(dtype, batch=2, config=config, operands={Role.KV_LENGTHS: np.array([0, 9], np.int32)})
    actual = emulated_attention(case)
    assert_attention_matches(actual, case)
    assert (actual[1][0] == -np.inf).all()


def test_nothing_beyond_a_length_matters() -> None:
    lengths = {Role.KV_LENGTHS: np.array([33], np.int32)}
    case = small_case(config=FusedAttention(operands=(Role.KV_LENGTHS,), scale=0.125), operands=lengths)
    before = emulated_attention(case)
    case.k[:, :, 33:] = np.nan
    case.v[:, :, 33:] = np.inf
    np.testing.assert_array_equal(emulated_attention(case)[0], before[0])


def test_nothing_of_a_masked_key_matters() -> None:
    keep = {Role.KEEP: np.arange(70).reshape(1, 1, 1, 70) % 3 != 1}
    case = small_case(config=FusedAttention(operands=(Role.KEEP,), scale=0.125), operands=keep)
    before = emulated_attention(case)
    case.k[:, :, 1::3] = np.inf
    case.v[:, :, 1::3] = np.nan
    np.testing.assert_array_equal(emulated_attention(case)[0], before[0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_score_among_the_allowed_makes_its_row_nan(value: float) -> None:
    case = small_case()
    case.q[0, 1, 5, 3] = value
    context, _ = emulated_attention(case)
    bad = np.isnan(context).all(axis=-1)
    assert bad[0, 1, 5]
    assert np.count_nonzero(np.isnan(context).any(axis=-1)) == 1


def test_large_scores_do_not_overflow() -> None:
    case = small_case()
    case = replace(case, q=case.q * np.float16(100), k=case.k * np.float16(12))
    assert_attention_matches(emulated_attention(case), case)


def test_the_order_of_threads_does_not_matter() -> None:
    case = random_attention(3)
    first, second = (emulated_attention(case, seed=seed) for seed in (1, 2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_variant_for_other_heads_is_refused() -> None:
    small, large = small_case(size=64), small_case(size=128)
    with pytest.raises(AssertionError, match="status 1"):
        emulated_attention(large, variants(small)[0])


@pytest.mark.parametrize("queries", [3, 70])
def test_query_heads_of_a_group_side_by_side(queries: int) -> None:
    """Where no one stride leads from each query head to the next; of few queries, a group's rows share a block."""
    case = small_case(heads=4, kv_heads=2, queries=queries)
    assert_attention_matches(emulated_attention(case, in_groups=True), case)


@pytest.mark.parametrize("gap", [8, 5])
def test_rows_with_gaps_between_them(gap: int) -> None:
    plain = small_case()
    q, k, v = (place(array, "bshd", gap) for array in (plain.q, plain.k, plain.v))
    case = replace(plain, q=q, k=k, v=v, layout="bshd", gap=gap)
    assert_attention_matches(emulated_attention(case), case)


@pytest.mark.parametrize("keys", [200, 201])
@pytest.mark.parametrize(("dtype", "bias_dtype"), [
    ("float16", "float16"), ("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float32"),
])  # fmt: skip
def test_biases_of_every_type_and_shape(dtype: str, bias_dtype: str, keys: int) -> None:
    """Of an even number of keys in pairs, of an odd one each by itself; with a softcap, and beside a mask."""
    rng = np.random.default_rng(2)
    keep = rng.random((2, 1, 1, keys)) < 0.6
    for shape, softcap in (
        ((2, 4, 70, keys), 0.0),
        ((1, 4, 70, keys), 2.0),
        ((2, 1, 1, keys), 0.0),
        ((1, 1, 70, 1), 2.0),
    ):
        bias = rng.standard_normal(shape).astype(DTYPES[bias_dtype])
        config = FusedAttention((Role.BIAS, Role.KEEP), 0.125, softcap=softcap)
        case = normal_case(dtype, queries=70, keys=keys, config=config, operands={Role.BIAS: bias, Role.KEEP: keep})
        assert_attention_matches(emulated_attention(case), case)
        for variant in warpgroup_variants(case):
            assert_attention_matches(emulated_attention(case, variant, device=WARPGROUPS), case)

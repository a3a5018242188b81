"""The attention kernels of warp groups, their own source on an emulated device of compute capability 9.0, against the
float64 oracle. tests/gpu has the same cases for the kernels themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from attention_abi import (
    KEYS_ALONE,
    QUERIES_ALONE,
    WARPGROUPS,
    WARPGROUPS_ALONE,
    emulated_attention,
    variants,
    warpgroup_variants,
)
from attention_cases import (
    FOR_WARPGROUPS,
    TF32_FOR_WARPGROUPS,
    AttentionCase,
    assert_attention_matches,
    mask_mixes,
    normal_case,
    random_attention,
)
from emulated_device import Device

from attngraft.contract import CausalMode, EmptyRows, FusedAttention, Role

SWEEP_CASES = int(os.environ.get("ATTNGRAFT_EMULATED_SWEEP", "240"))
SWEEP_CHUNK = 20
WORK_LIMIT = 3_000_000
"""Multiplications of a random case: see attention_cases.WORK_LIMIT."""

DEVICES = {"bulk copies": WARPGROUPS, "own copies": WARPGROUPS_ALONE}
MIXED_DEVICES = {"bulk copies of queries": QUERIES_ALONE, "bulk copies of keys": KEYS_ALONE}
TILE_HEADS = [*(("float16", size) for size in (64, 128, 256, 320)), ("float32", 64), ("float32", 128)]
"""Of the tiles for warp groups: every variant serves one of them."""

SMALL_HEADS = [(dtype, size) for dtype, size in TILE_HEADS if size <= 128]

BETWEEN_TF32 = np.float32(1 + 3 * 2.0**-12)
"""Between 1 and the next TF32 number, nearer to that."""

NEXT_TF32 = 1 + 2.0**-10

FP32_ROUNDING = 2e-6
"""Of a few operations, the exponential of 2 units in the last place among them."""

small_case = partial(normal_case, batch=1, heads=2, kv_heads=1, queries=70, keys=150)
"""Rows and keys end within a tile, two query heads share their keys."""


def every_variant(case: AttentionCase) -> Iterator[tuple[int, Device]]:
    """Variants of warp groups for a case, with bulk copies and without. fp32 has no use for them."""
    found = warpgroup_variants(case)
    assert found
    devices = [WARPGROUPS] if case.dtype == "float32" else DEVICES.values()
    return ((variant, device) for variant in found for device in devices)


def check_every_variant(case: AttentionCase) -> None:
    for variant, device in every_variant(case):
        assert_attention_matches(emulated_attention(case, variant, seed=variant, device=device), case)


def every_context(case: AttentionCase) -> list[np.ndarray]:
    return [emulated_attention(case, variant, device=device)[0] for variant, device in every_variant(case)]


@pytest.mark.parametrize("first", range(0, SWEEP_CASES, SWEEP_CHUNK))
def test_random_sizes_layouts_and_masks(first: int) -> None:
    for seed in range(first, min(first + SWEEP_CHUNK, SWEEP_CASES)):
        case = random_attention(seed, WORK_LIMIT, FOR_WARPGROUPS)
        rng = np.random.default_rng(seed)
        variant = int(rng.choice(warpgroup_variants(case)))
        device = (DEVICES | MIXED_DEVICES)[str(rng.choice([*DEVICES, *MIXED_DEVICES]))]
        assert_attention_matches(emulated_attention(case, variant, seed, device), case)


@pytest.mark.parametrize("first", range(0, SWEEP_CASES, SWEEP_CHUNK))
def test_random_sizes_layouts_and_masks_in_tf32(first: int) -> None:
    for seed in range(first, min(first + SWEEP_CHUNK, SWEEP_CASES)):
        case = random_attention(seed, WORK_LIMIT, TF32_FOR_WARPGROUPS)
        case = replace(case, config=replace(case.config, exact=0))
        variant = int(np.random.default_rng(seed).choice(warpgroup_variants(case)))
        assert_attention_matches(emulated_attention(case, variant, seed, WARPGROUPS), case)


@pytest.mark.parametrize(("dtype", "size"), [*TILE_HEADS, *(("bfloat16", size) for size in (64, 128, 256, 320))])
def test_every_variant_under_every_mask(dtype: str, size: int) -> None:
    plain = small_case(dtype, size=size)
    for config, operands in mask_mixes(plain).values():
        check_every_variant(replace(plain, config=config, operands=operands))


def test_every_variant_is_for_some_head_and_none_for_another_device() -> None:
    found = [variant for dtype, size in TILE_HEADS for variant in warpgroup_variants(small_case(dtype, size=size))]
    assert len(found) == len(set(found)) == 16
    for case in (small_case(), small_case("float32")):
        with pytest.raises(AssertionError, match="status 1"):
            emulated_attention(case, warpgroup_variants(case)[0])


def test_none_is_for_exact_products() -> None:
    plain = small_case("float32")
    exact = replace(plain, config=replace(plain.config, exact=1))
    assert warpgroup_variants(exact) == []
    with pytest.raises(AssertionError, match="status 1"):
        emulated_attention(exact, warpgroup_variants(plain)[0], device=WARPGROUPS)
    assert_attention_matches(emulated_attention(exact, device=WARPGROUPS), exact)


def test_the_table_chooses_them_for_many_rows_and_the_others_for_few() -> None:
    for dtype in ("float16", "float32"):
        case = small_case(dtype)
        assert variants(case, WARPGROUPS)[0] in warpgroup_variants(case)
        assert warpgroup_variants(small_case(dtype, queries=8)) == []
        assert_attention_matches(emulated_attention(case, device=WARPGROUPS), case)


@pytest.mark.parametrize(("dtype", "size"), SMALL_HEADS)
def test_query_heads_of_a_group_side_by_side(dtype: str, size: int) -> None:
    """Where no one stride leads from each query head to the next."""
    case = small_case(dtype, batch=2, heads=6, kv_heads=2, size=size)
    for variant, device in every_variant(case):
        assert_attention_matches(emulated_attention(case, variant, device=device, in_groups=True), case)


@pytest.mark.parametrize("device", MIXED_DEVICES.values(), ids=MIXED_DEVICES)
def test_bulk_copies_of_queries_alone_or_of_keys_alone(device: Device) -> None:
    """Rows that end within each warp group of a tile, and two passes, of which the second reads the queries again."""
    lengths = {Role.KV_LENGTHS: np.array([0, 130], np.int32)}
    for dtype, size in TILE_HEADS:
        config = FusedAttention((Role.KV_LENGTHS,), size**-0.5, empty_rows=EmptyRows.UNMASKED)
        for queries in (17, 100, 170):
            case = small_case(dtype, batch=2, heads=1, queries=queries, size=size, config=config, operands=lengths)
            for variant in warpgroup_variants(case):
                assert_attention_matches(emulated_attention(case, variant, seed=queries, device=device), case)


def test_no_keys_at_all() -> None:
    """Queries are brought and waited for though nothing is multiplied with them."""
    case = small_case(keys=0)
    for variant, device in every_variant(case):
        context, logarithms = emulated_attention(case, variant, device=device)
        assert (context == 0).all() and (logarithms == -np.inf).all()


@pytest.mark.parametrize(
    ("dtype", "size", "value_size"),
    [
        ("float16", 40, 64),
        ("float16", 128, 72),
        ("float16", 64, 200),
        ("float16", 320, 16),
        ("float32", 40, 64),
        ("float32", 128, 36),
        ("float32", 4, 100),
    ],
)
def test_values_of_another_size(dtype: str, size: int, value_size: int) -> None:
    check_every_variant(small_case(dtype, size=size, value_size=value_size))


@pytest.mark.parametrize("keys", [1, 32, 33, 64, 127, 128, 129])
@pytest.mark.parametrize(("dtype", "size"), SMALL_HEADS)
def test_keys_around_a_tile(dtype: str, size: int, keys: int) -> None:
    check_every_variant(small_case(dtype, size=size, queries=65, keys=keys))


@pytest.mark.parametrize("causal", [CausalMode.TOP_LEFT, CausalMode.BOTTOM_RIGHT])
@pytest.mark.parametrize(("dtype", "size"), SMALL_HEADS)
def test_causal_rows_whose_warp_groups_end_at_different_tiles(dtype: str, size: int, causal: str) -> None:
    """In the first case a warp group's last row has one key of its last tile."""
    config = FusedAttention(scale=size**-0.5, causal=causal)
    for queries, keys in ((200, 329), (330, 200)):
        check_every_variant(small_case(dtype, heads=1, queries=queries, keys=keys, size=size, config=config))


@pytest.mark.parametrize("window", [(0, 0), (70, -1), (40, 90), (-1, 5)])
@pytest.mark.parametrize(("dtype", "size"), SMALL_HEADS)
def test_windows(dtype: str, size: int, window: tuple[int, int]) -> None:
    config = FusedAttention(scale=size**-0.5, window_left=window[0], window_right=window[1])
    check_every_variant(small_case(dtype, heads=1, queries=200, keys=300, size=size, config=config))


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize(("dtype", "size"), TILE_HEADS)
def test_sequences_without_any_key(dtype: str, size: int, empty_rows: str) -> None:
    config = FusedAttention((Role.KV_LENGTHS,), size**-0.5, empty_rows=empty_rows)
    lengths = {Role.KV_LENGTHS: np.array([0, 70], np.int32)}
    case = small_case(dtype, batch=2, size=size, config=config, operands=lengths)
    for variant, device in every_variant(case):
        actual = emulated_attention(case, variant, device=device)
        assert_attention_matches(actual, case)
        assert (actual[1][0] == -np.inf).all()


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
def test_single_rows_without_any_key(empty_rows: str) -> None:
    """Rows of one warp group alone, whose second pass the others take part in."""
    keep = np.ones((1, 1, 130, 150), bool)
    keep[0, 0, [3, 129]] = False
    for dtype, size in SMALL_HEADS:
        config = FusedAttention((Role.KEEP,), size**-0.5, empty_rows=empty_rows)
        check_every_variant(small_case(dtype, queries=130, size=size, config=config, operands={Role.KEEP: keep}))


@pytest.mark.parametrize(("dtype", "size"), SMALL_HEADS)
def test_nothing_before_a_start_or_beyond_a_length_matters(dtype: str, size: int) -> None:
    operands = {Role.KV_STARTS: np.array([70], np.int32), Role.KV_LENGTHS: np.array([197], np.int32)}
    case = small_case(dtype, keys=300, size=size, config=FusedAttention(tuple(operands), 0.125), operands=operands)
    before = every_context(case)
    case.k[:, :, :70] = case.v[:, :, 197:] = np.inf
    case.k[:, :, 197:] = case.v[:, :, :70] = np.nan
    np.testing.assert_array_equal(every_context(case), before)


@pytest.mark.parametrize(("dtype", "size"), SMALL_HEADS)
def test_nothing_of_a_masked_key_matters(dtype: str, size: int) -> None:
    keep = np.ones((1, 1, 1, 400), bool)
    keep[..., 130:140] = keep[..., 256:384] = False  # among keys of a tile, and tiles as a whole
    config = FusedAttention((Role.KEEP,), 0.125)
    case = small_case(dtype, keys=400, size=size, config=config, operands={Role.KEEP: keep})
    before = every_context(case)
    case.k[:, :, ~keep[0, 0, 0]] = np.inf
    case.v[:, :, ~keep[0, 0, 0]] = np.nan
    np.testing.assert_array_equal(every_context(case), before)


@pytest.mark.parametrize("causal", [CausalMode.NONE, CausalMode.BOTTOM_RIGHT])
def test_the_order_of_threads_and_who_copies_do_not_matter(causal: str) -> None:
    for dtype, size in TILE_HEADS:
        config = FusedAttention(scale=size**-0.5, causal=causal)
        case = small_case(dtype, queries=130, keys=300, size=size, config=config)
        for variant in warpgroup_variants(case):
            first, *others = (
                emulated_attention(case, variant, seed, device)
                for seed, device in ((1, WARPGROUPS), (2, WARPGROUPS), (3, WARPGROUPS_ALONE))
            )
            for other in others:
                assert all(one.tobytes() == again.tobytes() for one, again in zip(first, other, strict=True))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_bad_score_among_the_allowed_makes_its_row_nan(dtype: str) -> None:
    case = small_case(dtype)
    case.q[0, 1, 66, 3] = np.nan
    for variant, device in every_variant(case):
        context, _ = emulated_attention(case, variant, device=device)
        assert np.isnan(context).any(axis=-1).sum() == np.isnan(context[0, 1, 66]).all() == 1


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000])
def test_rounding_makes_no_number_of_what_is_none(bits: int, size: int) -> None:
    value = np.array(bits, np.uint32).view(np.float32)
    bad_value, bad_key = small_case("float32", size=size), small_case("float32", size=size)
    bad_value.v[0, 0, 77, 5] = value
    bad_key.k[0, 0, 77, 5] = value
    for context in every_context(bad_value):
        assert not np.isfinite(context[..., 5]).any()
        assert np.isfinite(np.delete(context, 5, axis=-1)).all()
    # A score of -inf, as half of the queries have it of an infinite key, is a weight of 0.
    is_nan = np.ones(bad_key.q.shape[:3], bool) if np.isnan(value) else bad_key.q[..., 5] > 0
    for context in every_context(bad_key):
        np.testing.assert_array_equal(np.isnan(context), np.broadcast_to(is_nan[..., None], context.shape))


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("factor", ["q", "k", "v"])
def test_tensors_are_rounded_to_the_nearest_tf32_number(factor: str, size: int) -> None:
    """Where they were cut off, as the tensor cores do it, 1 would come out."""
    case = small_case("float32", size=size, config=FusedAttention())
    case.q[...], case.k[...], case.v[...] = 0, 0, 1
    if factor != "v":
        case.q[..., 3] = case.k[..., 3] = 1
    tensor = getattr(case, factor)
    tensor[tensor == 1] = BETWEEN_TF32
    for variant, device in every_variant(case):
        context, logarithms = emulated_attention(case, variant, device=device)
        found = context if factor == "v" else logarithms - np.log(case.k.shape[2])
        np.testing.assert_allclose(found, NEXT_TF32, rtol=FP32_ROUNDING)


@pytest.mark.parametrize("size", [64, 128])
def test_weights_are_rounded_to_the_nearest_tf32_number(size: int) -> None:
    """One key has a weight of 1 and another a little more than half, which is what the context counts."""
    weight = float(BETWEEN_TF32) / 2
    bias = np.full((1, 1, 1, 150), -np.inf, np.float32)
    bias[..., 11], bias[..., 140] = 0, np.log(weight)
    case = small_case("float32", size=size, config=FusedAttention((Role.BIAS,)), operands={Role.BIAS: bias})
    case.q[...] = case.v[...] = 0
    case.v[:, :, 140] = 1
    for context in every_context(case):
        np.testing.assert_allclose(context * (1 + weight), NEXT_TF32 / 2, rtol=FP32_ROUNDING)


@pytest.mark.parametrize("factor", [40.0, 100.0])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_large_scores_do_not_overflow(dtype: str, factor: float) -> None:
    """Scores of some 10^4 at most. TF32 has the same numbers as float16: what rounding does to others would show."""
    case = small_case(factor=factor)
    check_every_variant(replace(case, **{name: getattr(case, name).astype(dtype) for name in "qkv"}))

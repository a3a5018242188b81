"""The attention kernels on the device against the float64 oracle. tests/python runs the same cases without one."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from attention_abi import FusedAttentionParams
from attention_cases import (
    HEAD_SIZES,
    AttentionCase,
    assert_attention_matches,
    expected_attention,
    mask_mixes,
    normal_case,
    place,
    random_attention,
)
from cuda.bindings import runtime as cudart
from mask_abi import DTYPES

from attention_device import PlacedAttention, attention, launch_attention, placed, variants_of_case
from attngraft.contract import EmptyRows, FusedAttention, Role
from kernel_abi import checked

SWEEP_CASES = int(os.environ.get("ATTNGRAFT_SWEEP", "2000"))
SWEEP_CHUNK = 50
CHAIN = 20
"""Launches there and back."""

SHIFTED_SHARE = 0.15
"""Of the random cases: whole tensors off the alignment of a vector, beside those whose rows are."""


def check(case: AttentionCase, variant: int = 0, shift: int = 0) -> tuple[np.ndarray, np.ndarray]:
    actual = attention(case, variant, shift)
    assert_attention_matches(actual, case)
    return actual


@pytest.mark.parametrize("first", range(0, SWEEP_CASES, SWEEP_CHUNK))
def test_random_sizes_layouts_and_masks(first: int) -> None:
    for seed in range(first, min(first + SWEEP_CHUNK, SWEEP_CASES)):
        rng = np.random.default_rng(seed + 10**6)
        shift = int(rng.integers(1, 8)) if rng.random() < SHIFTED_SHARE else 0
        check(random_attention(seed), shift=shift)


@pytest.mark.parametrize("size", sorted(set(HEAD_SIZES)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_variant_under_every_mask_twice_bit_for_bit(dtype: str, size: int) -> None:
    plain = normal_case(dtype, size=size)
    for config, operands in mask_mixes(plain).values():
        for exact in (0, 1) if dtype == "float32" else (0,):
            case = replace(plain, config=replace(config, exact=exact), operands=operands)
            found = variants_of_case(case)
            assert len(found) == len(set(found)) > 0
            for variant in found if size % 8 == 0 else [0]:
                first, second = check(case, variant), attention(case, variant)
                assert all(one.tobytes() == other.tobytes() for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (16, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_query_over_many_keys_twice_bit_for_bit(dtype: str, heads: int, kv_heads: int) -> None:
    """The keys of a row are split over blocks, whose results a second launch puts together."""
    lengths = {Role.KV_LENGTHS: np.array([9000, 4097], np.int32)}
    for config, operands in ((FusedAttention(scale=0.125), {}), (FusedAttention((Role.KV_LENGTHS,), 0.125), lengths)):
        case = normal_case(
            dtype, heads=heads, kv_heads=kv_heads, queries=1, keys=9000, size=64, config=config, operands=operands
        )
        for variant in variants_of_case(case):
            first, second = check(case, variant), attention(case, variant)
            assert all(one.tobytes() == other.tobytes() for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("queries", [1, 130])
@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sequences_without_any_key(dtype: str, empty_rows: str, queries: int) -> None:
    config = FusedAttention((Role.KV_LENGTHS,), 0.125, empty_rows=empty_rows)
    case = normal_case(
        dtype, queries=queries, keys=1500, config=config, operands={Role.KV_LENGTHS: np.array([0, 700], np.int32)}
    )
    for variant in variants_of_case(case):
        context, logarithms = check(case, variant)
        assert (logarithms[0] == -np.inf).all()
        assert empty_rows != EmptyRows.ZEROS or not context[0].any()


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
def test_single_rows_without_any_key(empty_rows: str) -> None:
    keep = np.ones((2, 1, 130, 200), bool)
    keep[1, 0, [0, 63, 64, 129]] = False
    config = FusedAttention((Role.KEEP,), 0.125, empty_rows=empty_rows)
    check(normal_case(config=config, operands={Role.KEEP: keep}))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_keys_at_all(dtype: str) -> None:
    with placed(normal_case(dtype, queries=5)) as there:
        there.params.keys = 0
        there.launch()
        context, logarithms = there.results()
    assert not context.any() and (logarithms == -np.inf).all()


@pytest.mark.parametrize("queries", [1, 130])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_beyond_a_length_or_before_a_start_matters(dtype: str, queries: int) -> None:
    operands = {Role.KV_LENGTHS: np.array([33, 700], np.int32), Role.KV_STARTS: np.array([7, 100], np.int32)}
    case = normal_case(
        dtype, queries=queries, keys=1500, config=FusedAttention(tuple(operands), 0.125), operands=operands
    )
    k, v = case.k.copy(), case.v.copy()
    for index, (start, end) in enumerate(zip(operands[Role.KV_STARTS], operands[Role.KV_LENGTHS], strict=True)):
        k[index, :, :start], v[index, :, :start] = np.inf, np.nan
        k[index, :, end:], v[index, :, end:] = np.nan, np.inf
    for variant in variants_of_case(case):
        before, after = check(case, variant), attention(replace(case, k=k, v=v), variant)
        assert before[0].tobytes() == after[0].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_of_a_masked_key_matters(dtype: str) -> None:
    keep = np.broadcast_to(np.arange(200) % 3 != 1, (1, 1, 1, 200)).copy()
    case = normal_case(dtype, config=FusedAttention((Role.KEEP,), 0.125), operands={Role.KEEP: keep})
    k, v = case.k.copy(), case.v.copy()
    k[:, :, 1::3], v[:, :, 1::3] = np.inf, np.nan
    for variant in variants_of_case(case):
        before, after = check(case, variant), attention(replace(case, k=k, v=v), variant)
        assert before[0].tobytes() == after[0].tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bad_score_among_the_allowed_makes_its_row_nan(dtype: str, value: float) -> None:
    case = normal_case(dtype)
    case.q[1, 3, 65, 3] = value
    for variant in variants_of_case(case):
        bad = np.isnan(attention(case, variant)[0].astype(np.float32))
        assert bad[1, 3, 65].all() and np.count_nonzero(bad) == case.v.shape[3]


def test_a_context_out_of_range_is_infinite_and_not_nan_elsewhere() -> None:
    """Values at the edge of fp16: sums of weights times them stay within it."""
    case = normal_case()
    case.v[...] = np.float16(65504)
    context, _ = attention(case)
    np.testing.assert_allclose(context.astype(np.float64), 65504, rtol=1e-3)


@pytest.mark.parametrize("gap", [8, 3])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_with_gaps_between_them(dtype: str, layout: str, gap: int) -> None:
    plain = normal_case(dtype)
    q, k, v = (place(array, layout, gap) for array in (plain.q, plain.k, plain.v))
    check(replace(plain, q=q, k=k, v=v, layout=layout, gap=gap))


def test_a_variant_for_other_heads_is_refused() -> None:
    small, large = normal_case(size=64), normal_case(size=128)
    with placed(large, variants_of_case(small)[0]) as there:
        assert launch_attention(there.params) == int(cudart.cudaError_t.cudaErrorInvalidValue)


def test_parameters_outside_the_contract_are_refused() -> None:
    wrong = {"type": 9, "head_size": 513, "kv_heads": 3, "scale": np.nan, "softcap": -1.0, "window_left": -2}
    with placed(normal_case()) as there:
        for name, value in wrong.items():
            right = getattr(there.params, name)
            setattr(there.params, name, value)
            assert launch_attention(there.params) == int(cudart.cudaError_t.cudaErrorInvalidValue), name
            setattr(there.params, name, right)
        there.launch()


@pytest.mark.parametrize("size", ["batch", "queries"])
def test_an_empty_tensor_launches_nothing(size: str) -> None:
    with placed(normal_case()) as there:
        setattr(there.params, size, 0)
        there.launch()
        assert all(np.isnan(result).all() for result in there.results())


@pytest.mark.parametrize("queries", [130, 1])
def test_the_launch_can_be_captured_and_replayed_on_new_data(queries: int) -> None:
    """A graph of one launch, and one of two (split keys)."""
    case, later = (normal_case(queries=queries, keys=3000, seed=seed) for seed in (0, 9))
    with placed(case) as there:
        stream = checked(cudart.cudaStreamCreate())
        checked(cudart.cudaStreamBeginCapture(stream, cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal))
        there.launch(int(stream))
        graph = checked(cudart.cudaStreamEndCapture(stream))
        instance = checked(cudart.cudaGraphInstantiate(graph, 0))
        for name in ("q", "k", "v"):
            there.upload(name, getattr(later, name))
        checked(cudart.cudaGraphLaunch(instance, stream))
        checked(cudart.cudaStreamSynchronize(stream))
        assert_attention_matches(there.results(), later)
        checked(cudart.cudaGraphExecDestroy(instance))
        checked(cudart.cudaGraphDestroy(graph))
        checked(cudart.cudaStreamDestroy(stream))


@pytest.mark.parametrize("queries", [384, 130, 1])
def test_launches_in_a_row_read_what_those_before_wrote(queries: int) -> None:
    """Each takes the context before it for its queries, and may begin while that is being written."""
    case = normal_case(queries=queries, keys=700, factor=2.0)
    for variant in variants_of_case(case):
        with placed(case, variant) as there:
            back = FusedAttentionParams.from_buffer_copy(there.params)
            back.query, back.context = there.params.context, there.params.query

            def chain(waits: bool, there: PlacedAttention = there, back: FusedAttentionParams = back) -> np.ndarray:
                there.upload("q", case.q)
                for params in [there.params, back] * CHAIN + [there.params]:
                    assert launch_attention(params) == 0
                    if waits:
                        checked(cudart.cudaDeviceSynchronize())
                return there.results()[0]

            expected = chain(waits=True)
            assert np.isfinite(expected).all()
            for _ in range(3):
                np.testing.assert_array_equal(chain(waits=False), expected)


def test_the_oracle_itself_is_finite_on_what_is_compared() -> None:
    """A sweep that compares NaN with NaN would prove nothing."""
    assert all(np.isfinite(expected_attention(random_attention(seed))[0]).all() for seed in range(20))

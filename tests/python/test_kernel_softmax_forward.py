"""The softmax kernels' own source on an emulated device, against the float64 oracle. tests/gpu runs the kernels."""

from __future__ import annotations

import os
from itertools import product

import numpy as np
import pytest
from emulated_device import Device
from mask_abi import DTYPES
from softmax_abi import FEW_ROWS, MANY_ROWS, NO_RUNG, WITHOUT_CLUSTERS, Layout, holding, policy_of, rungs
from softmax_cases import Case, not_finite_case, random_case
from softmax_checks import (
    ANY,
    BIAS,
    ELEMENTS,
    KEEP,
    NONE,
    PASSES,
    VECTORS,
    check,
    masked_case,
    normal,
)

from attngraft.contract import EmptyRows, MaskedSoftmax, Role

SWEEP_CASES = int(os.environ.get("ATTNGRAFT_EMULATED_SWEEP", "150"))
SWEEP_CHUNK = 10
VECTOR_BYTES = 16


@pytest.mark.parametrize("first", range(0, SWEEP_CASES, SWEEP_CHUNK))
def test_random_shapes_masks_and_places(first: int) -> None:
    for seed in range(first, min(first + SWEEP_CHUNK, SWEEP_CASES)):
        rng = np.random.default_rng(seed + 10**6)
        case = random_case(seed)
        in_place = bool(rng.random() < 0.3)
        source = Layout(int(rng.integers(0, 9)), int(rng.choice([0, 0, 3, 8])), bool(rng.random() < 0.3))
        target = Layout(int(rng.integers(0, 9)), int(rng.choice([0, 0, 5, 8])), bool(rng.random() < 0.3))
        device = (MANY_ROWS, FEW_ROWS, WITHOUT_CLUSTERS, holding())[int(rng.integers(4))]
        check(case, device=device, seed=seed, in_place=in_place, source=source, target=source if in_place else target)


@pytest.mark.parametrize("tensors", [NONE, KEEP, BIAS, ANY])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_rung_full_and_odd(dtype: str, tensors: int) -> None:
    """Whole vectors, one element less, and one element more than a vector less, which begins anywhere in one. Of rows
    that may be read twice, since others have kernels of their own."""
    per_vector = VECTOR_BYTES // DTYPES[dtype].itemsize
    found = [rung for rung in rungs(tensors) if rung != NO_RUNG]
    assert len(found) >= 4
    for threads, units in found:
        if dtype == "bfloat16" and threads > 256:
            continue  # as for float16, which takes its time
        keys = threads * units * per_vector
        for count in (keys, keys - 1, max(1, keys - per_vector - 1)):
            queries = 5 if keys < 2048 else 2
            case = masked_case((2, queries, count), dtype, tensors, empty_rows=EmptyRows.UNMASKED)
            strategy, rung, blocks, _ = policy_of(case, WITHOUT_CLUSTERS)
            is_next = count == keys - 1  # may begin so that it touches one vector more
            assert is_next or strategy == ELEMENTS or (rungs(tensors)[rung], blocks) == ((threads, units), 1)
            check(case, device=WITHOUT_CLUSTERS, seed=count)


@pytest.mark.parametrize("tensors", [NONE, KEEP, BIAS, ANY])
@pytest.mark.parametrize("keys", range(1, 20))
def test_short_rows_beginning_anywhere(keys: int, tensors: int) -> None:
    for dtype, offset in product(DTYPES, (0, 1, 3)):
        check(masked_case((3, 7, keys), dtype, tensors), source=Layout(offset), target=Layout(offset))


@pytest.mark.parametrize("apart", range(8))
def test_scores_and_probabilities_aligned_differently(apart: int) -> None:
    for keys in (5, 24, 100, 131, 264):
        case = masked_case((2, 3, keys), "float16", NONE, causal="bottom_right")
        check(case, source=Layout(1), target=Layout(1 + apart))
        check(case, source=Layout(0), target=Layout(apart, gap=3))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Layout(gap=8), Layout(gap=16)),
        (Layout(gap=3), Layout()),
        (Layout(), Layout(gap=5)),
        (Layout(is_transposed=True), Layout()),
        (Layout(gap=8, is_transposed=True), Layout(gap=1, is_transposed=True)),
    ],
)
def test_strides(source: Layout, target: Layout) -> None:
    for tensors, keys in product((NONE, KEEP, BIAS, ANY), (6, 64, 77)):
        check(masked_case((3, 2, 4, keys), "float16", tensors), source=source, target=target)


@pytest.mark.parametrize("tensors", [NONE, KEEP, BIAS, ANY])
@pytest.mark.parametrize(
    ("device", "keys"), [(MANY_ROWS, 20000), (MANY_ROWS, 33001), (FEW_ROWS, 17000), (FEW_ROWS, 17001)]
)
def test_clusters(device: Device, keys: int, tensors: int) -> None:
    case = masked_case((1, 2, keys), "float16", tensors, causal="bottom_right")
    strategy, _, blocks, found = policy_of(case, device)
    assert (strategy, found) == (VECTORS, tensors) and blocks > 1
    run = check(case, device=device)
    assert run.stored == 2 * keys * 2


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize("keys", [100, 17000, 20000])
def test_one_block_of_a_cluster_may_have_no_key(keys: int, empty_rows: str) -> None:
    operands = {Role.KV_LENGTHS: np.array([0, 3], np.int32), Role.KV_STARTS: np.array([0, 1], np.int32)}
    config = MaskedSoftmax(operands=tuple(operands), empty_rows=empty_rows)
    check(Case(normal((2, 1, keys)), config, operands), device=FEW_ROWS)


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize(
    ("tensors", "device", "dtype", "keys"),
    [
        (NONE, MANY_ROWS, "float32", 150_001),
        (BIAS, MANY_ROWS, "float32", 150_001),
        (NONE, WITHOUT_CLUSTERS, "float16", 70_001),
        (BIAS, WITHOUT_CLUSTERS, "float16", 40_001),
        (ANY, WITHOUT_CLUSTERS, "bfloat16", 40_001),
    ],
)
def test_rows_longer_than_all_registers(tensors: int, device: Device, dtype: str, keys: int, empty_rows: str) -> None:
    case = masked_case((2, 1, keys), dtype, tensors)
    config = MaskedSoftmax(operands=(*case.config.operands, Role.KV_LENGTHS), empty_rows=empty_rows)
    lengths = {Role.KV_LENGTHS: np.array([keys - 5, 0], np.int32)}
    case = Case(case.scores, config, {**case.operands, **lengths})
    strategy, _, blocks, found = policy_of(case, device)
    assert (strategy, found) == (PASSES, tensors) and (blocks > 1) == bool(device.has_clusters)
    check(case, device=device, source=Layout(1), target=Layout(1))


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize("keys", [3, 64, 197, 2048, 5000])
def test_a_wholly_masked_row_among_others(empty_rows: str, keys: int) -> None:
    keep = np.ones((2, 1, 3, keys), bool)
    keep[1, 0, 1] = False
    case = Case(normal((2, 2, 3, keys)), MaskedSoftmax(operands=(Role.KEEP,), empty_rows=empty_rows), {Role.KEEP: keep})
    row = check(case).probabilities[1, 0, 1].astype(np.float64)
    total = {EmptyRows.ZEROS: 0.0, EmptyRows.UNIFORM: 1.0, EmptyRows.UNMASKED: 1.0}[empty_rows]
    assert row.sum() == pytest.approx(total, abs=2e-2)


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize(("keys", "device"), [(4, MANY_ROWS), (197, MANY_ROWS), (1000, MANY_ROWS), (17000, FEW_ROWS)])
def test_nan_and_infinity_reach_their_own_row_only(keys: int, device: Device, empty_rows: str) -> None:
    for dtype in ("float32", "float16"):
        actual = check(not_finite_case(normal((6, keys), dtype), empty_rows), device=device).probabilities
        assert np.isnan(actual[:3]).all() and np.isfinite(actual[3:]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_hard_values(dtype: str) -> None:
    check(Case(np.full((2, 3, 64), -1000, DTYPES[dtype]), MaskedSoftmax()))
    check(Case(np.full((2, 3, 64), 30000, DTYPES[dtype]), MaskedSoftmax(scale=2.0)))
    check(Case((normal((2, 3, 500), "float32") * 1e4 / 3).astype(DTYPES[dtype]), MaskedSoftmax()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_at_the_end_of_the_range_of_numbers(dtype: str) -> None:
    """The products with log2(e) overflow; equal scores share their row all the same."""
    scores = np.full((3, 1000), -3.3e38, DTYPES[dtype])
    scores[1, ::2] = -3.2e38
    scores[2, 7] = 3e38
    actual = check(Case(scores, MaskedSoftmax())).probabilities.astype(np.float64)
    np.testing.assert_allclose(actual[0], 1e-3, rtol=1e-2)
    np.testing.assert_allclose(actual[1, ::2], 2e-3, rtol=1e-2)
    assert actual[2, 7] == 1 and actual[2].sum() == 1


def test_keys_that_intervals_exclude_are_not_read() -> None:
    batch, queries, keys = 2, 64, 1024
    scores = normal((batch, queries, keys))
    whole = check(Case(scores, MaskedSoftmax()))
    assert whole.scores_read == scores.nbytes
    lengths = {Role.KV_LENGTHS: np.array([512, 8], np.int32)}
    padded = check(Case(scores, MaskedSoftmax(operands=(Role.KV_LENGTHS,)), lengths))
    assert padded.scores_read == queries * (512 + 8) * 2
    square = normal((1, keys, keys))
    causal = check(Case(square, MaskedSoftmax(causal="bottom_right")))
    per_vector = VECTOR_BYTES // 2
    assert causal.scores_read == sum(-(-(query + 1) // per_vector) for query in range(keys)) * VECTOR_BYTES
    assert causal.stored == square.nbytes


def test_odd_rows_read_each_vector_once() -> None:
    scores = normal((1, 40, 197))
    run = check(Case(scores, MaskedSoftmax()))
    vectors = sum((row * 394 + 393) // VECTOR_BYTES - row * 394 // VECTOR_BYTES + 1 for row in range(40))
    last = scores.nbytes % VECTOR_BYTES  # of the tensor's: its bytes, one by one
    assert run.scores_read == (vectors - (last > 0)) * VECTOR_BYTES + last
    assert run.stored == scores.nbytes


def test_the_order_of_threads_does_not_matter() -> None:
    for device, shape in ((FEW_ROWS, (2, 17001)), (MANY_ROWS, (6, 2048)), (MANY_ROWS, (40, 197))):
        case = masked_case((1, *shape), "float16", KEEP)
        first, second = (check(case, device=device, seed=seed).probabilities for seed in (1, 2))
        assert first.tobytes() == second.tobytes()

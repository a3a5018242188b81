"""Long rows that blocks hold in shared memory, in small chunks, on the emulated device."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from emulated_device import Device
from mask_abi import DTYPES
from softmax_abi import CHUNK_BYTES, MANY_ROWS, Emulated, Layout, emulated_softmax, holding, policy_of
from softmax_cases import Case, not_finite_case
from softmax_checks import BIAS, EVEN, KEEP, LONG, NONE, VECTORS, check, masked_case, normal

from attngraft.contract import EmptyRows, MaskedSoftmax, Role

ROWS = 12  # of a case
MOST_CHUNKS = 14  # that a block has barriers for
VECTOR_BYTES = 16
MISPLACED = (Layout(1, 3), Layout(5))


def hold(case: Case, device: Device, blocks: int, **options: object) -> Emulated:
    """Checks a case of which so many blocks share each row."""
    strategy, _, found, _ = policy_of(case, device)
    assert (strategy, found) == (LONG, blocks)
    return check(case, device=device, **options)


@pytest.mark.parametrize("tensors", [NONE, KEEP, BIAS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_mask_in_one_block_and_in_clusters(dtype: str, tensors: int) -> None:
    per_chunk = CHUNK_BYTES // DTYPES[dtype].itemsize
    for chunks, blocks in ((1, 1), (3, 1), (7, 1), (8, 2), (9, 2), (25, 4), (31, 8), (56, 8), (80, 8)):
        case = masked_case((1, ROWS, chunks * per_chunk), dtype, tensors)
        run = hold(case, holding(), blocks, seed=chunks)
        assert run.scores_read == run.stored == case.scores.nbytes


@pytest.mark.parametrize("tensors", [NONE, KEEP, BIAS])
def test_rows_that_begin_anywhere(tensors: int) -> None:
    for dtype, keys, source in product(("float16", "float32"), (1027, 3001), MISPLACED):
        case = masked_case((1, ROWS, keys), dtype, tensors, causal="bottom_right", empty_rows=EmptyRows.UNIFORM)
        check(case, device=holding(), source=source)
        check(case, device=holding(), source=source, target=source)
        check(case, device=holding(), source=source, target=Layout(source.offset + 2, 1))


@pytest.mark.parametrize("tensors", [NONE, KEEP, BIAS])
@pytest.mark.parametrize("layout", [Layout(), Layout(gap=8), Layout(is_transposed=True), *MISPLACED])
def test_in_place(layout: Layout, tensors: int) -> None:
    """Rows are read while others are written."""
    for keys, seed in product((1027, 6000), range(3)):
        case = masked_case((3, 4, keys), "float16", tensors)
        check(case, device=holding(multiprocessors=2), seed=seed, in_place=True, source=layout, target=layout)


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize("tensors", [NONE, KEEP, BIAS])
def test_rows_without_a_key_among_others(tensors: int, empty_rows: str) -> None:
    """Of a batch of six rows, the first, the last, and two of them in a row."""
    lengths = np.array([0, 700, 0, 0, 1, 0], np.int32)
    for keys, layout in product((1024, 2999, 6000), (Layout(), Layout(3))):
        case = masked_case((6, 3, keys), "float16", tensors, empty_rows=empty_rows)
        config = MaskedSoftmax(
            operands=(*case.config.operands, Role.KV_LENGTHS), scale=0.25, empty_rows=empty_rows, window_left=keys - 1
        )
        case = Case(case.scores, config, {**case.operands, Role.KV_LENGTHS: lengths})
        check(case, device=holding(), source=layout, in_place=tensors == KEEP, target=layout)


def test_keys_that_intervals_exclude_are_not_read() -> None:
    keys = 4096
    scores = normal((4, 3, keys))
    lengths = np.array([keys, 8, 0, 2048], np.int32)
    case = Case(scores, MaskedSoftmax(operands=(Role.KV_LENGTHS,)), {Role.KV_LENGTHS: lengths})
    for device, blocks in ((holding(), 1), (holding(multiprocessors=3), 1)):
        assert hold(case, device, blocks).scores_read == 3 * int(lengths.sum()) * 2
    starts = {Role.KV_STARTS: keys - lengths}
    case = Case(scores, MaskedSoftmax(operands=(Role.KV_STARTS,)), starts)
    assert hold(case, holding(), 1).scores_read == 3 * int(lengths.sum()) * 2
    per_vector = VECTOR_BYTES // 2
    square = Case(normal((1, 600, 600)), MaskedSoftmax(causal="bottom_right"))
    run = hold(square, holding(), 1)
    assert run.scores_read == sum(-(-(row + 1) // per_vector) for row in range(600)) * VECTOR_BYTES
    window = Case(normal((1, ROWS, keys)), MaskedSoftmax(window_left=99, window_right=4))
    diagonal = range(keys - ROWS, keys)
    vectors = sum(min(key + 4, keys - 1) // per_vector - (key - 99) // per_vector + 1 for key in diagonal)
    assert hold(window, holding(), 1).scores_read == vectors * VECTOR_BYTES


def test_edges_are_read_byte_by_byte_and_once() -> None:
    """The tensor's first and last vector, which reach beyond it."""
    scores = normal((1, ROWS, 1023))
    run = check(Case(scores, MaskedSoftmax()), device=holding(), source=Layout(1))
    begins = [(row * 1023 + 1) * 2 for row in range(ROWS)]
    vectors = sum((begin + 2045) // VECTOR_BYTES - begin // VECTOR_BYTES + 1 for begin in begins)
    first, last = VECTOR_BYTES - 2, (begins[-1] + 2046) % VECTOR_BYTES
    assert run.scores_read == (vectors - 2) * VECTOR_BYTES + first + last
    assert run.stored == scores.nbytes


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
def test_nan_and_infinity_reach_their_own_row_only(empty_rows: str, blocks: int) -> None:
    for dtype in ("float32", "float16"):
        keys = 3000 * blocks * (2 if dtype == "float16" else 1)
        case = not_finite_case(normal((8, keys), dtype), empty_rows)
        actual = hold(case, holding(), blocks).probabilities
        assert np.isnan(actual[:3]).all() and np.isfinite(actual[3:]).all()


def test_rows_longer_than_a_cluster_holds_stay_with_other_kernels() -> None:
    rows, vectors = 8, CHUNK_BYTES // VECTOR_BYTES
    for chunks, is_held in ((1, True), (8 * MOST_CHUNKS, True), (8 * MOST_CHUNKS + 1, False)):
        case = Case(normal((rows, chunks * vectors * 4), "float32"), MaskedSoftmax())
        assert (policy_of(case, holding())[0] == LONG) == is_held
    capped = Case(normal((rows, vectors * 8)), MaskedSoftmax(softcap=5.0))
    assert policy_of(capped, holding())[0] == VECTORS


def test_the_order_of_threads_does_not_matter() -> None:
    for keys, tensors in product((2100, 6001), (KEEP, BIAS)):
        case = masked_case((1, ROWS, keys), "float16", tensors)
        runs = [
            emulated_softmax(case.scores, case.config, case.operands, device=holding(multiprocessors=n), seed=seed)
            for n, seed in ((1, 1), (1, 2), (3, 3))
        ]
        assert len({run.probabilities.tobytes() for run in runs}) == 1


def test_short_and_few_rows_stay_in_registers() -> None:
    assert policy_of(Case(normal((64, 512)), MaskedSoftmax()), holding())[0] == EVEN
    assert policy_of(Case(normal((7, 4096)), MaskedSoftmax()), holding(multiprocessors=8))[0] == EVEN
    assert policy_of(Case(normal((8, 4096)), MaskedSoftmax()), holding(multiprocessors=8))[0] == LONG
    assert policy_of(Case(normal((64, 4096)), MaskedSoftmax()), MANY_ROWS)[0] != LONG

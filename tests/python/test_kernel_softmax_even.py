"""Rows that lie equally far apart, held in registers and read once, on an emulated device: whole vectors or not."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from mask_abi import DTYPES
from softmax_abi import FEW_ROWS, MANY_ROWS, WITHOUT_CLUSTERS, Emulated, Layout, emulated_softmax, policy_of
from softmax_cases import Case
from softmax_checks import ANY, BIAS, EVEN, KEEP, NONE, UNEVEN, VECTORS, check, masked_case, normal

from attngraft.contract import EmptyRows, MaskedSoftmax, Role
from attngraft.verify import oracle

WHOLE = {"float16": (72, 200, 384, 520, 640, 768, 1024), "bfloat16": (144, 2048), "float32": (36, 132, 256, 4096)}
"""Row lengths of whole vectors, by type."""
ODD = {
    "float16": (71, 100, 197, 250, 321, 577, 700, 1001, 1500, 2033, 4097, 8191),
    "bfloat16": (135, 1999),
    "float32": (35, 98, 197, 259, 577, 701, 2049),
}
"""Others, whose rows begin anywhere in a vector."""
LENGTHS = [(dtype, keys) for table in (WHOLE, ODD) for dtype, lengths in table.items() for keys in lengths]

PER_VECTOR = {"float16": 8, "bfloat16": 8, "float32": 4}
VECTOR_BYTES = 16


def hold(case: Case, **options: object) -> Emulated:
    """Checks a case of even rows, every byte of which is stored once."""
    source, target = (options.get(name, Layout()) for name in ("source", "target"))
    assert policy_of(case, MANY_ROWS, source.offset, target.offset)[0] in (EVEN, UNEVEN)
    run = check(case, device=MANY_ROWS, **options)
    assert run.stored == case.scores.nbytes
    return run


@pytest.mark.parametrize("tensors", [NONE, KEEP, BIAS])
@pytest.mark.parametrize(("dtype", "keys"), LENGTHS)
def test_rows_of_any_length(dtype: str, keys: int, tensors: int) -> None:
    """Of which some are empty; more than whole blocks, where several rows are a block's."""
    for queries, in_place in ((13, False), (10, True)):
        hold(masked_case((2, queries, keys), dtype, tensors), seed=keys, in_place=in_place)


@pytest.mark.parametrize("tensors", [NONE, KEEP, BIAS])
@pytest.mark.parametrize(("dtype", "keys"), [("float16", 197), ("float16", 584), ("bfloat16", 99), ("float32", 197)])
def test_every_place_of_the_first_element(dtype: str, keys: int, tensors: int) -> None:
    """In a vector; in place, or vectors apart."""
    case = masked_case((3, 7, keys), dtype, tensors)
    per_vector = PER_VECTOR[dtype]
    for offset in range(per_vector):
        source = Layout(offset)
        hold(case, source=source, target=source, in_place=True, seed=offset)
        hold(case, source=source, target=Layout(offset + offset * per_vector), seed=offset)


@pytest.mark.parametrize("tensors", [KEEP, BIAS])
@pytest.mark.parametrize(("dtype", "keys"), [("float16", 197), ("float16", 200), ("bfloat16", 99), ("float32", 131)])
def test_masks_that_begin_anywhere(dtype: str, keys: int, tensors: int) -> None:
    """Nothing before or behind them is read, wherever in a vector scores begin."""
    for offset in range(PER_VECTOR[dtype]):
        source = Layout(offset // 2)
        case = masked_case((1, 9, keys), dtype, tensors)
        hold(case, source=source, target=source, mask=Layout(offset), seed=offset)


def test_masks_of_one_row_or_of_each() -> None:
    """Of a batch, of a head, of one query, of all rows; aligned as rows are, or not."""
    rng = np.random.default_rng(7)
    for keys in (200, 197):
        scores = normal((3, 2, 5, keys))
        for shape in ((3, 1, 1, keys), (1, 2, 1, keys), (3, 2, 5, keys), (1, 1, 5, keys), (keys,), (3, 1, 5, keys)):
            for role in (Role.KEEP, Role.BIAS):
                tensor = rng.random(shape) < 0.6 if role == Role.KEEP else rng.standard_normal(shape).astype(np.float16)
                hold(Case(scores, MaskedSoftmax(operands=(role,), scale=0.5), {role: tensor}))


@pytest.mark.parametrize("tensors", [NONE, KEEP, BIAS])
@pytest.mark.parametrize("dtype", WHOLE)
def test_intervals_of_keys(dtype: str, tensors: int) -> None:
    """Each row's own, some of them empty, beside a mask tensor or not; scores beyond them are not read."""
    per_vector = PER_VECTOR[dtype]
    lengths = [(keys, Layout()) for keys in WHOLE[dtype][:3]] + [(ODD[dtype][1], Layout(1))]
    for keys, layout in lengths:
        batches, queries = (3, 41) if keys < 400 else (3, 9)
        kv_lengths = {Role.KV_LENGTHS: np.array([keys - 5, 3, keys], np.int32)}
        kv_starts = {Role.KV_STARTS: np.array([7, 5, 0], np.int32)}
        for settings, operands in (
            ({"causal": "top_left"}, {}),
            ({"causal": "bottom_right", "window_left": 40}, {}),
            ({}, kv_lengths),
            ({"causal": "top_left"}, kv_lengths | kv_starts),
        ):
            case = masked_case((batches, queries, keys), dtype, tensors)
            roles = (*case.config.operands, *operands)
            config = MaskedSoftmax(operands=roles, scale=0.5, **settings)
            case = Case(case.scores, config, {**case.operands, **operands})
            run = hold(case, source=layout, target=layout)
            every = MaskedSoftmax(operands=tuple(operands), scale=0.5, **settings)
            allowed = np.count_nonzero(oracle.masked_softmax(np.zeros_like(case.scores), every, **operands))
            assert run.scores_read <= (allowed + 2 * batches * queries * per_vector) * case.scores.itemsize


@pytest.mark.parametrize("empty_rows", [EmptyRows.ZEROS, EmptyRows.UNIFORM])
def test_rows_without_a_key(empty_rows: str) -> None:
    """All rows of a batch, the first and the last one too; masked ones that are not 0 or 1."""
    for keys, dtype in ((199, "float16"), (200, "bfloat16"), (131, "float32")):
        keep = (np.random.default_rng(3).random((5, 1, 1, keys)) < 0.5).astype(np.uint8) * 200
        keep[[0, 2, 4]] = 0
        config = MaskedSoftmax(operands=(Role.KEEP,), scale=0.3, empty_rows=empty_rows)
        hold(Case(normal((5, 2, 3, keys), dtype), config, {Role.KEEP: keep}))


def test_nan_and_infinity_reach_their_own_row_only() -> None:
    """Neighbouring rows lie in the same vectors."""
    for dtype in ("float16", "bfloat16", "float32"):
        keys = 131
        scores = normal((30, keys), dtype)
        scores[7, -1], scores[10, 0], scores[13, :], scores[16, 3] = np.nan, np.inf, np.nan, np.nan
        scores[19, :] = -np.inf
        keep = np.ones((30, keys), bool)
        keep[16, 3] = False  # not allowed: changes nothing
        case = Case(scores, MaskedSoftmax(operands=(Role.KEEP,)), {Role.KEEP: keep})
        for offset in range(PER_VECTOR[dtype]):
            made = hold(case, source=Layout(offset), target=Layout(offset)).probabilities
            assert np.isnan(made).any(axis=1).nonzero()[0].tolist() == [7, 10, 13]


def test_vectors_at_the_ends_of_rows_are_read_twice_and_those_of_the_tensor_in_part() -> None:
    keys, rows, offset = 197, 21, 3
    run = hold(Case(normal((rows, keys)), MaskedSoftmax()), source=Layout(offset), target=Layout(offset))
    begins = [(row * keys + offset) * 2 for row in range(rows)]
    vectors = sum(-(-(begin + keys * 2) // VECTOR_BYTES) - begin // VECTOR_BYTES for begin in begins)
    beyond = begins[0] % VECTOR_BYTES + -(begins[-1] + keys * 2) % VECTOR_BYTES
    assert beyond > 0
    assert run.scores_read == vectors * VECTOR_BYTES - beyond


def test_the_order_of_threads_does_not_matter() -> None:
    for keys, tensors in product((197, 1500), (NONE, KEEP)):
        case = masked_case((2, 9, keys), "float16", tensors)
        runs = [
            emulated_softmax(case.scores, case.config, case.operands, device=MANY_ROWS, seed=seed) for seed in range(4)
        ]
        assert len({run.probabilities.tobytes() for run in runs}) == 1


def test_what_is_not_even() -> None:
    """Rows that may be read twice, other masks, scores and probabilities apart in a vector or by different strides, and
    rows that are short, or few enough for clusters."""
    shape = (2, 3, 197)
    case = masked_case(shape, "float16", NONE)
    assert policy_of(case, WITHOUT_CLUSTERS)[0] == UNEVEN
    assert policy_of(case, MANY_ROWS, 3, 11)[0] == UNEVEN
    assert policy_of(masked_case((2, 3, 200), "float16", NONE), MANY_ROWS)[0] == EVEN
    assert policy_of(case, MANY_ROWS, 3, 4)[0] == VECTORS
    for other in (
        masked_case(shape, "float16", KEEP, empty_rows=EmptyRows.UNMASKED),
        masked_case(shape, "float16", ANY),
        masked_case(shape, "float16", NONE, softcap=5.0),
        masked_case((2, 3, 55), "float16", NONE),
        masked_case((2, 3, 16392), "float16", NONE),
    ):
        assert policy_of(other, MANY_ROWS)[0] == VECTORS
    assert policy_of(masked_case((1, 1, 16392), "float16", NONE), FEW_ROWS)[0] == VECTORS
    gap = emulated_softmax(normal((2, 5, 200)), MaskedSoftmax(scale=1.0), {}, source=Layout(gap=8))
    np.testing.assert_array_equal(
        gap.probabilities, emulated_softmax(normal((2, 5, 200)), MaskedSoftmax(scale=1.0), {}).probabilities
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_apart_by_more_than_their_length(dtype: str) -> None:
    for tensors, gap in product((NONE, KEEP, BIAS), (3, 8)):
        layout = Layout(gap=gap)
        check(masked_case((2, 5, 133), dtype, tensors), device=MANY_ROWS, source=layout, target=layout)

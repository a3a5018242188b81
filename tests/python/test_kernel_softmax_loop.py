"""Softmax kernels that take whole rows one after another, the next one read ahead, on an emulated device."""

from __future__ import annotations

import numpy as np
import pytest
from mask_abi import DTYPES
from softmax_abi import MANY_ROWS, WITHOUT_CLUSTERS, Layout, emulated_softmax, policy_of
from softmax_cases import Case
from softmax_checks import ANY, BIAS, KEEP, LOOP, NONE, VECTORS, check, masked_case, normal

from attngraft.contract import EmptyRows, MaskedSoftmax, Role
from attngraft.verify import oracle

LOOPED = {"float16": (72, 200, 384, 520, 768, 1024), "bfloat16": (144, 2048), "float32": (36, 132, 256, 4096)}
"""Row lengths of whole vectors, by type."""


@pytest.mark.parametrize("tensors", [NONE, KEEP, BIAS])
@pytest.mark.parametrize(("dtype", "keys"), [(dtype, keys) for dtype, table in LOOPED.items() for keys in table])
def test_many_whole_rows_one_after_another(dtype: str, keys: int, tensors: int) -> None:
    """Rows of which some are empty, several for each thread group, the last round of blocks not full."""
    for queries, in_place in ((131, False), (150, True)):
        case = masked_case((2, queries, keys), dtype, tensors)
        assert policy_of(case, MANY_ROWS)[0] == LOOP
        check(case, device=MANY_ROWS, seed=keys, in_place=in_place)


def test_mask_values_of_one_row_or_of_each_in_a_loop() -> None:
    """The mask of a row stays as long as rows have the same: of a batch, of a head, of one query, of all rows."""
    rng = np.random.default_rng(7)
    scores = normal((3, 2, 44, 200))
    for shape in ((3, 1, 1, 200), (1, 2, 1, 200), (3, 2, 44, 200), (1, 1, 44, 200), (200,), (3, 1, 44, 200)):
        for role in (Role.KEEP, Role.BIAS):
            tensor = rng.random(shape) < 0.6 if role == Role.KEEP else rng.standard_normal(shape).astype(np.float16)
            case = Case(scores, MaskedSoftmax(operands=(role,), scale=0.5), {role: tensor})
            assert policy_of(case, MANY_ROWS)[0] == LOOP
            check(case, device=MANY_ROWS)


@pytest.mark.parametrize("dtype", LOOPED)
def test_intervals_of_keys_in_a_loop(dtype: str) -> None:
    """Each row's own, some of them empty; scores beyond them are not read."""
    per_vector = 16 // DTYPES[dtype].itemsize
    for keys in LOOPED[dtype][:3]:
        scores = normal((3, 3 if keys < 150 else 1, keys, keys), dtype)
        lengths = np.array([keys - 5, 3, keys], np.int32)
        starts = np.array([7, 5, 0], np.int32)
        for config, operands in (
            ({"causal": "top_left"}, {}),
            ({"causal": "bottom_right", "window_left": 40}, {}),
            ({}, {Role.KV_LENGTHS: lengths}),
            ({"causal": "top_left"}, {Role.KV_LENGTHS: lengths, Role.KV_STARTS: starts}),
        ):
            case = Case(scores, MaskedSoftmax(operands=tuple(operands), scale=0.5, **config), operands)
            assert policy_of(case, MANY_ROWS)[0] == LOOP
            run = check(case, device=MANY_ROWS)
            rows = scores.size // keys
            allowed = np.count_nonzero(oracle.masked_softmax(case.scores, case.config, **case.operands))
            assert run.scores_read <= (allowed + 2 * rows * per_vector) * scores.itemsize


def test_what_goes_into_no_loop() -> None:
    """Masks of other kinds or several at once, few rows, rows that do not end on vectors."""
    shape = (2, 130, 200)
    assert policy_of(masked_case(shape, "float16", NONE), MANY_ROWS)[0] == LOOP
    for case in (
        masked_case(shape, "float16", KEEP, causal="top_left"),
        masked_case(shape, "float16", BIAS, window_left=4),
        masked_case(shape, "float16", KEEP, empty_rows=EmptyRows.UNMASKED),
        masked_case(shape, "float16", ANY),
        masked_case((2, 5, 200), "float16", NONE),
        masked_case((2, 130, 201), "float16", NONE),
        masked_case((2, 130, 64), "float16", NONE),
    ):
        assert policy_of(case, MANY_ROWS)[0] == VECTORS
    assert policy_of(masked_case(shape, "float16", NONE), WITHOUT_CLUSTERS)[0] == VECTORS
    gap = emulated_softmax(normal((2, 65, 200)), MaskedSoftmax(scale=1.0), {}, source=Layout(gap=8))
    np.testing.assert_array_equal(
        gap.probabilities, emulated_softmax(normal((2, 65, 200)), MaskedSoftmax(scale=1.0), {}).probabilities
    )

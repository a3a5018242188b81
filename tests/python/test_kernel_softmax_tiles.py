"""Rows that pass through shared memory in tiles, on the emulated device: two warps, tiles of few rows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from emulated_device import Device
from softmax_abi import MANY_ROWS, Emulated, Layout, emulated_softmax, policy_of, tiling
from softmax_cases import Case
from softmax_checks import ANY, BIAS, KEEP, NONE, TILES, check, masked_case, normal

from attngraft.contract import EmptyRows, MaskedSoftmax, Role

TILED = {
    "float16": (71, 100, 197, 200, 250, 321, 577, 584, 700, 1001, 1500, 1504, 2033),
    "bfloat16": (135, 584, 1999),
    "float32": (35, 100, 197, 259, 577, 700, 1020),
}
"""Row lengths by type, whose bytes no line of 128 bytes divides, for every rung."""

PER_VECTOR = {"float16": 8, "bfloat16": 8, "float32": 4}
VECTOR_BYTES = 16


def rows_for(keys: int, dtype: str) -> int:
    """So many that they are taken in tiles, in an odd number, which leaves a tile that is not full."""
    vectors = -(-(keys + 2 * PER_VECTOR[dtype]) // PER_VECTOR[dtype])
    return 2048 // (8 if vectors <= 48 else 16 if vectors <= 80 else 32) + 3


def tile(case: Case, device: Device | None = None, **options: object) -> Emulated:
    """Checks a case that is taken in tiles, every byte of which is stored once."""
    device = device or tiling()
    source, target = (options.get(name, Layout()) for name in ("source", "target"))
    assert policy_of(case, device, source.offset, target.offset)[0] == TILES
    run = check(case, device=device, **options)
    assert run.stored == case.scores.nbytes
    return run


@pytest.mark.parametrize("tensors", [NONE, KEEP])
@pytest.mark.parametrize(("dtype", "keys"), [(dtype, keys) for dtype, table in TILED.items() for keys in table])
def test_rows_of_any_length(dtype: str, keys: int, tensors: int) -> None:
    """Rows of which some are empty, many tiles for each warp, tiles that two masks meet in."""
    rows = rows_for(keys, dtype)
    for shape, in_place in (((1, rows, keys), False), ((3, -(-rows // 3), keys), True)):
        tile(masked_case(shape, dtype, tensors), seed=keys, in_place=in_place)


@pytest.mark.parametrize("tensors", [NONE, KEEP])
@pytest.mark.parametrize(("dtype", "keys"), [("float16", 197), ("float16", 584), ("bfloat16", 99), ("float32", 197)])
def test_every_place_of_the_first_element(dtype: str, keys: int, tensors: int) -> None:
    """In a vector; and in place, or so many vectors apart in a line."""
    case = masked_case((3, -(-rows_for(keys, dtype) // 3), keys), dtype, tensors)
    per_vector = PER_VECTOR[dtype]
    for offset in range(per_vector):
        source = Layout(offset)
        tile(case, source=source, target=source, in_place=True, seed=offset)
        tile(case, source=source, target=Layout(offset + offset * per_vector), seed=offset)


def test_mask_values_of_one_row_or_of_each() -> None:
    """The mask of a row stays as long as rows have the same: of a batch, of a head, of one query, of all rows."""
    rng = np.random.default_rng(7)
    for keys, dtype in ((197, "float16"), (200, "float16"), (98, "float32")):
        scores = normal((3, 2, 44, keys), dtype)
        shapes = (
            (3, 1, 1, keys), (1, 2, 1, keys), (3, 2, 1, keys), (3, 2, 44, keys), (1, 1, 44, keys), (keys,),
            (3, 1, 44, keys),
        )  # fmt: skip
        for shape in shapes:
            keep = rng.random(shape) < 0.6
            case = Case(scores, MaskedSoftmax(operands=(Role.KEEP,), scale=0.5), {Role.KEEP: keep})
            tile(case, seed=len(shape), source=Layout(1), target=Layout(1))


@pytest.mark.parametrize("shared_bytes", [7_400, 11_000, 18_000])
def test_rings_of_two_to_four_tiles(shared_bytes: int) -> None:
    """And several blocks, of which warps have no tile, or one."""
    for multiprocessors, seed in product((1, 2), range(3)):
        for tensors in (NONE, KEEP):
            case = masked_case((5, 110, 197), "float16", tensors)
            tile(case, tiling(shared_bytes, multiprocessors), seed=seed, in_place=seed == 1)


@pytest.mark.parametrize("empty_rows", [EmptyRows.ZEROS, EmptyRows.UNIFORM])
def test_rows_without_a_key(empty_rows: str) -> None:
    """All rows of a batch, the first and the last one too; masked ones that are not 0 or 1."""
    for keys, dtype in ((199, "float16"), (200, "bfloat16"), (131, "float32")):
        keep = (np.random.default_rng(3).random((5, 1, 1, keys)) < 0.5).astype(np.uint8) * 200
        keep[[0, 2, 4]] = 0
        config = MaskedSoftmax(operands=(Role.KEEP,), scale=0.3, empty_rows=empty_rows)
        tile(Case(normal((5, 2, 29, keys), dtype), config, {Role.KEEP: keep}))


def test_nan_and_infinity_reach_their_own_row_only() -> None:
    """Neighbouring rows lie in the same vectors."""
    for dtype in ("float16", "bfloat16", "float32"):
        keys = 131
        scores = normal((300, keys), dtype)
        scores[7, -1], scores[10, 0], scores[13, :], scores[16, 3] = np.nan, np.inf, np.nan, np.nan
        scores[19, :] = -np.inf
        keep = np.ones((300, keys), bool)
        keep[16, 3] = False  # not allowed: changes nothing
        case = Case(scores, MaskedSoftmax(operands=(Role.KEEP,)), {Role.KEEP: keep})
        for offset in range(PER_VECTOR[dtype]):
            made = tile(case, source=Layout(offset), target=Layout(offset)).probabilities
            assert np.isnan(made).any(axis=1).nonzero()[0].tolist() == [7, 10, 13]


def test_vectors_at_the_ends_of_tiles_are_read_twice_and_those_of_the_tensor_in_part() -> None:
    keys, rows, tile_rows, offset = 197, 259, 4, 3
    scores = normal((rows, keys))
    run = tile(Case(scores, MaskedSoftmax()), source=Layout(offset), target=Layout(offset))
    begins = [(first * keys + offset) * 2 for first in range(0, rows, tile_rows)]
    ends = [(min(first + tile_rows, rows) * keys + offset) * 2 for first in range(0, rows, tile_rows)]
    vectors = sum(-(-end // VECTOR_BYTES) - begin // VECTOR_BYTES for begin, end in zip(begins, ends, strict=True))
    beyond = begins[0] % VECTOR_BYTES + -ends[-1] % VECTOR_BYTES
    assert beyond > 0
    assert run.scores_read == vectors * VECTOR_BYTES - beyond


def test_the_order_of_threads_does_not_matter() -> None:
    for keys, tensors in product((197, 1500), (NONE, KEEP)):
        case = masked_case((2, 150, keys), "float16", tensors)
        runs = [
            emulated_softmax(case.scores, case.config, case.operands, device=tiling(multiprocessors=n), seed=seed)
            for n, seed in ((1, 1), (1, 2), (2, 3), (3, 4))
        ]
        assert len({run.probabilities.tobytes() for run in runs}) == 1


def test_what_goes_into_no_tile() -> None:
    """Rows that differ in more than their place, gaps, other kinds of masks, tensors apart in a vector, few rows, short
    and long ones, no shared memory; and rows of whole lines, where a loop takes them."""
    shape = (2, 140, 197)
    case = masked_case(shape, "float16", NONE)
    assert policy_of(case, tiling())[0] == TILES
    assert policy_of(case, tiling(), 3, 11)[0] == TILES
    assert policy_of(case, tiling(), 3, 4)[0] != TILES
    for other in (
        masked_case(shape, "float16", NONE, causal="top_left"),
        masked_case(shape, "float16", NONE, window_left=4),
        masked_case(shape, "float16", KEEP, empty_rows=EmptyRows.UNMASKED),
        masked_case(shape, "float16", ANY),
        masked_case(shape, "float16", BIAS),
        masked_case((2, 5, 197), "float16", NONE),
        masked_case((2, 900, 55), "float16", NONE),
        masked_case((2, 70, 2050), "float16", NONE),
        masked_case((2, 140, 256), "float16", NONE),
    ):
        assert policy_of(other, tiling())[0] != TILES
    for device in (MANY_ROWS, Device(multiprocessors=1, shared_bytes=tiling().shared_bytes)):
        assert policy_of(case, device)[0] != TILES
    check(case, device=tiling(), source=Layout(gap=1))


def test_rows_of_whole_lines_that_no_loop_takes() -> None:
    """They begin anywhere: loops are for such that begin on vectors."""
    for keys, tensors in product((256, 1024), (NONE, KEEP)):
        case = masked_case((2, 140, keys), "float16", tensors)
        tile(case, source=Layout(5), target=Layout(5))

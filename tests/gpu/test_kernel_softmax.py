"""The kernels against the float64 oracle of the contract."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import runtime as cudart

from attngraft.contract import EmptyRows, MaskedSoftmax, Role
from attngraft.verify import oracle
from kernel_abi import DTYPES, checked, device_memory, download, launch, make_params, masked_softmax, upload
from softmax_cases import KEY_COUNTS, Case, assert_matches, not_finite_case, random_case

SWEEP_CASES = int(os.environ.get("ATTNGRAFT_SWEEP", "1200"))
SWEEP_CHUNK = 50


def expected_of(case: Case) -> np.ndarray:
    return oracle.masked_softmax(case.scores, case.config, **case.operands)


def check(case: Case, **options: int | bool) -> np.ndarray:
    actual = masked_softmax(case.scores, case.config, case.operands, **options)
    assert_matches(actual, expected_of(case), case)
    return actual


def normal(shape: tuple[int, ...], dtype: str = "float16", seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 3).astype(DTYPES[dtype])


@pytest.mark.parametrize("first", range(0, SWEEP_CASES, SWEEP_CHUNK))
def test_random_shapes_and_masks(first: int) -> None:
    for seed in range(first, min(first + SWEEP_CHUNK, SWEEP_CASES)):
        rng = np.random.default_rng(seed + 10**6)
        input_offset, output_offset = (int(v) for v in rng.integers(0, 8, 2) * (rng.random() < 0.3))
        if rng.random() < 0.5:
            output_offset = input_offset
        check(
            random_case(seed),
            in_place=bool(rng.random() < 0.3),
            input_offset=input_offset,
            output_offset=output_offset,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keys", KEY_COUNTS)
def test_every_row_length_without_and_with_masks(dtype: str, keys: int) -> None:
    scores = normal((2, 3, 5, keys), dtype, keys)
    check(Case(scores, MaskedSoftmax(scale=0.25)))
    rng = np.random.default_rng(keys)
    keep = rng.random((2, 1, 1, keys)) < 0.7
    keep[0, 0, 0, 0] = True
    bias = rng.standard_normal((1, 3, 5, keys)).astype(DTYPES[dtype])
    config = MaskedSoftmax(operands=(Role.KEEP, Role.BIAS), scale=0.25, causal="bottom_right")
    check(Case(scores, config, {Role.KEEP: keep, Role.BIAS: bias}))


MANY_ROWS = ((16, 0, 33_800), (48, 0, 17_000), (48, 3, 17_000), (128, 0, 8_500), (256, 3, 4_300), (1024, 0, 1_100))
"""Vectors of a row, elements less than that, and rows: several blocks for each multiprocessor of an H200."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tensors", ["plain", "keep", "bias", "lengths", "causal"])
def test_many_rows(dtype: str, tensors: str) -> None:
    """So many that a device is full of them several times; some without a key."""
    batch, heads = 4, 2
    for vectors, missing, rows in MANY_ROWS:
        queries, keys = rows // (batch * heads) + 1, vectors * 16 // DTYPES[dtype].itemsize - missing
        rng = np.random.default_rng(keys)
        operands = {
            "keep": {Role.KEEP: rng.random((batch, 1, 1, keys)) < 0.7},
            "bias": {Role.BIAS: rng.standard_normal((batch, 1, queries, keys)).astype(DTYPES[dtype])},
            "lengths": {Role.KV_LENGTHS: np.array([0, 1, keys // 2, keys], np.int32)},
        }.get(tensors, {})
        causal = "bottom_right" if tensors == "causal" else "none"
        config = MaskedSoftmax(operands=tuple(operands), scale=0.25, causal=causal)
        case = Case(normal((batch, heads, queries, keys), dtype, keys), config, operands)
        apart = check(case)
        assert apart.tobytes() == check(case, in_place=True).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tensors", ["plain", "keep", "lengths"])
def test_many_long_rows(dtype: str, tensors: str) -> None:
    """So many that blocks hold them in shared memory, one each or clusters of them; one without a key."""
    for rows, keys, offset in ((640, 20000, 0), (640, 17003, 1), (320, 70000, 0)):
        scores = normal((rows // 32, 4, 8, keys), dtype, keys)
        operands: dict[str, np.ndarray] = {}
        if tensors == "keep":
            operands[Role.KEEP] = np.random.default_rng(rows).random((rows // 32, 1, 8, keys)) < 0.7
            operands[Role.KEEP][0, 0, 3] = False
        if tensors == "lengths":
            operands[Role.KV_LENGTHS] = np.linspace(0, keys, rows // 32).astype(np.int32)
        config = MaskedSoftmax(operands=tuple(operands), scale=0.25, empty_rows=EmptyRows.UNMASKED)
        case = Case(scores, config, operands)
        apart = check(case, input_offset=offset, output_offset=offset)
        assert apart.tobytes() == check(case, in_place=True, input_offset=offset, output_offset=offset).tobytes()


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize("keys", [3, 64, 197, 2048, 40001])
def test_a_wholly_masked_row_among_others(empty_rows: str, keys: int) -> None:
    scores = normal((2, 2, 3, keys))
    keep = np.ones((2, 1, 3, keys), bool)
    keep[1, 0, 1] = False
    case = Case(scores, MaskedSoftmax(operands=(Role.KEEP,), empty_rows=empty_rows), {Role.KEEP: keep})
    row = check(case)[1, 0, 1].astype(np.float64)
    total = {EmptyRows.ZEROS: 0.0, EmptyRows.UNIFORM: 1.0, EmptyRows.UNMASKED: 1.0}[empty_rows]
    assert row.sum() == pytest.approx(total, abs=2e-2)


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize("keys", [4, 197, 40001])
def test_nan_and_infinity_reach_their_own_row_only(empty_rows: str, keys: int) -> None:
    actual = check(not_finite_case(normal((6, keys), "float32"), empty_rows))
    assert np.isnan(actual[:3]).all() and np.isfinite(actual[3:]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_lowest_bias_absorbs_the_scores_as_the_exporters_mean_it(dtype: str) -> None:
    scores = normal((2, 1, 2, 40), dtype)
    lowest = float(ml_dtypes.finfo(DTYPES[dtype]).min)
    bias = np.zeros((2, 1, 1, 40), DTYPES[dtype])
    bias[:, :, :, 30:] = lowest
    bias[1] = lowest
    actual = check(Case(scores, MaskedSoftmax(operands=(Role.BIAS,)), {Role.BIAS: bias}))
    assert (actual[0, ..., 30:] == 0).all()
    if dtype != "float16":
        np.testing.assert_allclose(actual[1].astype(np.float64), 1 / 40, rtol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hard_values(dtype: str) -> None:
    check(Case(np.full((2, 3, 64), -1000, DTYPES[dtype]), MaskedSoftmax()))
    check(Case(np.full((2, 3, 64), 30000, DTYPES[dtype]), MaskedSoftmax(scale=2.0)))
    check(Case((normal((2, 3, 500), "float32") * 1e4 / 3).astype(DTYPES[dtype]), MaskedSoftmax()))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((4, 12, 24, 24), "float16"),
        ((2, 16, 128, 130), "bfloat16"),
        ((1_500_000, 2), "float16"),
        ((70_000, 33), "float32"),
    ],
)
def test_shapes_that_failed_elsewhere(shape: tuple[int, ...], dtype: str) -> None:
    check(Case(normal(shape, dtype), MaskedSoftmax(scale=0.5)))


def test_padding_mask_of_batch_by_keys_with_odd_length() -> None:
    scores = normal((3, 2, 4, 1025))
    keep = (np.random.default_rng(1).random((3, 1, 1, 1025)) < 0.5).astype(np.int64)
    check(Case(scores, MaskedSoftmax(operands=(Role.KEEP,), scale=0.125), {Role.KEEP: keep}))


def test_a_window_keeps_the_padding_mask() -> None:
    lengths = np.array([5, 60], np.int32)
    config = MaskedSoftmax(operands=(Role.KV_LENGTHS,), window_left=8, window_right=8)
    actual = check(Case(normal((2, 2, 64, 64)), config, {Role.KV_LENGTHS: lengths}))
    assert (actual[0, :, :, 5:] == 0).all() and (actual[1, :, :, 60:] == 0).all()


def test_two_runs_are_equal_bit_for_bit() -> None:
    case = random_case(7)
    first = masked_softmax(case.scores, case.config, case.operands)
    second = masked_softmax(case.scores, case.config, case.operands)
    assert first.tobytes() == second.tobytes()


def test_parameters_outside_the_contract_are_refused() -> None:
    scores = normal((2, 4, 8))
    params = make_params(0, 0, scores.shape, scores.dtype, MaskedSoftmax(), {})
    assert launch(params) == int(cudart.cudaError_t.cudaErrorInvalidValue)
    with device_memory(scores.nbytes) as address:
        params = make_params(address, address, scores.shape, scores.dtype, MaskedSoftmax(), {})
        params.type = 9
        assert launch(params) == int(cudart.cudaError_t.cudaErrorInvalidValue)


def test_an_empty_tensor_launches_nothing() -> None:
    params = make_params(0, 0, (2, 0, 8), DTYPES["float16"], MaskedSoftmax(), {})
    assert launch(params) == 0


def test_the_launch_can_be_captured_and_replayed_on_new_data() -> None:
    scores = normal((4, 16, 384))
    later = normal((4, 16, 384), seed=9)
    config = MaskedSoftmax(scale=0.125)
    with device_memory(scores.nbytes) as source, device_memory(scores.nbytes) as target:
        upload(source, scores)
        stream = checked(cudart.cudaStreamCreate())
        params = make_params(source, target, scores.shape, scores.dtype, config, {})
        checked(cudart.cudaStreamBeginCapture(stream, cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal))
        assert launch(params, int(stream)) == 0
        graph = checked(cudart.cudaStreamEndCapture(stream))
        instance = checked(cudart.cudaGraphInstantiate(graph, 0))
        upload(source, later)
        checked(cudart.cudaGraphLaunch(instance, stream))
        checked(cudart.cudaStreamSynchronize(stream))
        case = Case(later, config)
        assert_matches(download(target, later.shape, later.dtype), expected_of(case), case)
        checked(cudart.cudaGraphExecDestroy(instance))
        checked(cudart.cudaGraphDestroy(graph))
        checked(cudart.cudaStreamDestroy(stream))

"""The backward kernels of MaskedSoftmax against float64: the emulated device's cases, and what only a device has."""

from __future__ import annotations

import os

import numpy as np
import pytest
from cuda.bindings import runtime as cudart
from mask_abi import DTYPES
from softmax_backward_cases import CASES, make_case, random_backward
from softmax_backward_device import backward, placed

from kernel_abi import checked, upload

SWEEP_CASES = int(os.environ.get("ATTNGRAFT_SWEEP", "1200"))
SWEEP_CHUNK = 50

LARGE = {
    (70_001, 1024): {"bias_shape": (1, 1024)},
    (300, 131_072): {"bias_shape": (300, 1)},
    (3, 1_000_003): {},
    (2, 16, 128, 130): {"bias_shape": (16, 128, 130)},
    (4, 12, 24, 24): {"bias_shape": (1, 12, 24, 24)},
    (200_000, 2): {"bias_shape": (2,)},
}
"""More blocks than multiprocessors, rows for every cluster and beyond, sums that many blocks share."""


@pytest.mark.parametrize("name", CASES)
def test_every_case(name: str) -> None:
    case = CASES[name]()
    case.assert_matches(*backward(case))


@pytest.mark.parametrize("first", range(0, SWEEP_CASES, SWEEP_CHUNK))
def test_random_shapes_and_masks(first: int) -> None:
    for seed in range(first, min(first + SWEEP_CHUNK, SWEEP_CASES)):
        case = random_backward(seed)
        case.assert_matches(*backward(case))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", LARGE)
def test_large_tensors(shape: tuple[int, ...], dtype: str) -> None:
    case = make_case(shape, dtype, **LARGE[shape])
    case.assert_matches(*backward(case))


@pytest.mark.parametrize("keys", [64, 2048, 40_000, 300_000])
def test_two_runs_are_equal_bit_for_bit(keys: int) -> None:
    case = make_case((64, keys), "float32", bias_shape=(1, keys))
    for first, second in zip(backward(case), backward(case), strict=True):
        assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("keys", [384, 40_000])
def test_the_launches_can_be_captured_and_replayed_on_new_data(keys: int) -> None:
    """Those of the rows, in a cluster too, of the bias's gradient, and of its joining."""
    shape = (400, keys) if keys == 384 else (4, keys)
    case, later = (make_case(shape, seed=seed, bias_shape=(1, keys)) for seed in (0, 9))
    with placed(case) as there:
        stream = checked(cudart.cudaStreamCreate())
        checked(cudart.cudaStreamBeginCapture(stream, cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal))
        there.launch(int(stream))
        graph = checked(cudart.cudaStreamEndCapture(stream))
        instance = checked(cudart.cudaGraphInstantiate(graph, 0))
        for name, array in (("probabilities", later.probabilities), ("gradient", later.gradient)):
            upload(there.addresses[name], array)
            np.copyto(getattr(case, name), array)  # what the results' inputs are compared with
        checked(cudart.cudaGraphLaunch(instance, stream))
        checked(cudart.cudaStreamSynchronize(stream))
        later.assert_matches(*there.results())
        checked(cudart.cudaGraphExecDestroy(instance))
        checked(cudart.cudaGraphDestroy(graph))
        checked(cudart.cudaStreamDestroy(stream))

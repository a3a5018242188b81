"""The backward kernels' own source on an emulated device, against float64. tests/gpu has the same cases."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace

import numpy as np
import pytest
from softmax_backward_abi import emulated_backward, emulation, make_params, names_of
from softmax_backward_cases import CASES, make_case, random_backward

from attngraft.contract import MaskedSoftmax

SWEEP_CASES = int(os.environ.get("ATTNGRAFT_EMULATED_SWEEP", "60"))
SWEEP_CHUNK = 10
CASES_OF_A_TEST = 12
INVALID_VALUE = 1

NAMES = list(CASES)


@pytest.mark.parametrize("first", range(0, len(NAMES), CASES_OF_A_TEST))
def test_every_case(first: int) -> None:
    for seed, name in enumerate(NAMES[first : first + CASES_OF_A_TEST]):
        case = CASES[name]()
        case.assert_matches(*emulated_backward(case, seed))


@pytest.mark.parametrize("first", range(0, SWEEP_CASES, SWEEP_CHUNK))
def test_random_shapes_and_masks(first: int) -> None:
    for seed in range(first, min(first + SWEEP_CHUNK, SWEEP_CASES)):
        case = random_backward(seed)
        case.assert_matches(*emulated_backward(case, seed))


@pytest.mark.parametrize("multiprocessors", [0, 132])
def test_the_order_of_threads_does_not_matter(multiprocessors: int) -> None:
    case = make_case((4, 3, 1500), "float32", bias_shape=(3, 1500), multiprocessors=multiprocessors)
    first, second = (emulated_backward(case, seed) for seed in (1, 2))
    for one, other in zip(first, second, strict=True):
        assert one.tobytes() == other.tobytes()


def test_the_cases_can_fail() -> None:
    """One unit in the last place too much, in one element, is seen."""
    case = make_case((2, 3, 40), bias_shape=(3, 40), bias_dtype="float16")
    grad_scores, grad_bias = emulated_backward(case)
    for wrong in (grad_scores, grad_bias):
        element = np.unravel_index(np.abs(wrong).argmax(), wrong.shape)
        right = wrong[element]
        wrong[element] = np.nextafter(right, np.float16(np.inf)) + (np.nextafter(right, np.float16(np.inf)) - right)
        with pytest.raises(AssertionError, match="beyond the bound"):
            case.assert_matches(grad_scores, grad_bias)
        wrong[element] = right
    case.assert_matches(grad_scores, grad_bias)


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8), (2, 3, 0)])
def test_empty_scores_give_a_bias_zeros(shape: tuple[int, ...]) -> None:
    bias_shape = (1, 1, max(shape[-1], 1))
    case = replace(make_case((1, 1, 1)), scores=np.zeros(shape, np.float16), gradient=np.zeros(shape, np.float16))
    grad_scores, grad_bias = emulated_backward(replace(case, bias_shape=bias_shape))
    assert grad_scores.shape == shape and grad_bias is not None
    assert (grad_bias == 0).all() and grad_bias.shape == bias_shape


def status_of(changed: dict[str, object], config: MaskedSoftmax | None = None) -> int:
    """Of a launch on tensors that are not there: refused before they are touched."""
    case = make_case((2, 3, 8), config=config)
    params = make_params(case, {name: array.ctypes.data for name, (array, _) in names_of(case).items()} | {
        "scores_gradient": case.gradient.ctypes.data
    })  # fmt: skip
    for name, value in changed.items():
        setattr(params, name, value)
    message = ctypes.create_string_buffer(1)
    return emulation().attngraft_test_softmax_backward(ctypes.byref(params), None, 0, message, 1)


def test_parameters_outside_the_contract_are_refused() -> None:
    for name in ("probabilities", "gradient", "scores_gradient"):
        assert status_of({name: None}) == INVALID_VALUE
        assert status_of({name: 4097}) == INVALID_VALUE
    assert status_of({"type": 9}) == INVALID_VALUE
    assert status_of({"scale": float("nan")}) == INVALID_VALUE
    assert status_of({"softcap": -1.0}) == INVALID_VALUE
    assert status_of({"window_left": -2}) == INVALID_VALUE
    assert status_of({"scores": None}, MaskedSoftmax(softcap=2.0)) == INVALID_VALUE
    assert status_of({"scores": None}, MaskedSoftmax(empty_rows="uniform")) == INVALID_VALUE


def test_a_gradient_of_the_bias_needs_the_workspace() -> None:
    assert status_of({"bias_gradient": 4096}) == INVALID_VALUE

"""From PyTorch's tensors to the softmax's backward kernels and back: plugin/torch over the emulated device, on CPU
tensors, against the operator that PyTorch operations do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch_cases import elsewhere, load_emulated, scalars_of, to_torch
from torch_softmax_cases import gradient_tolerance, random_case, scores_of

import attngraft.torch  # noqa: F401 - defines the operators
from attngraft.contract import EmptyRows, Role
from attngraft.torch import library

CASES = 30

B, H, SQ, SK = 2, 4, 3, 5

SCALARS = (1.0, 0, -1, -1, 0.0, 0)
"""No scale, no bound, no cap, zeros."""

NO_MASKS = (None, None, None, None)


@pytest.fixture(scope="module", autouse=True)
def emulated() -> None:
    load_emulated()


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def both(*arguments: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of the kernels, and of PyTorch operations."""
    operators = (torch.ops.attngraft_emulated, torch.ops.attngraft)
    return [operator.masked_softmax_backward(*arguments) for operator in operators]


@pytest.mark.parametrize("seed", range(CASES))
def test_the_operator_equals_that_of_pytorch_operations(seed: int) -> None:
    """Every rank, type and mix of masks; tensors and masks in memory of any order."""
    case = random_case(seed)
    rng = np.random.default_rng(seed)
    scores = scores_of(case)
    masks = {role: to_torch(array) for role, array in case.operands.items()}
    for role in {Role.BIAS, Role.KEEP} & masks.keys():
        masks[role] = elsewhere(masks[role], case.scores.shape, rng)
    operands = [masks.get(role) for role in Role.ALL]
    scalars = scalars_of(case.config)
    probabilities = torch.ops.attngraft.masked_softmax(scores, *operands, *scalars)
    torch.manual_seed(seed)
    pull = torch.randn(scores.shape).to(scores.dtype)
    tensors = [elsewhere(tensor, case.scores.shape, rng) for tensor in (pull, probabilities, scores)]
    before = [tensor.clone() for tensor in tensors]
    ours, theirs = both(*tensors, *operands, *scalars, Role.BIAS in masks)
    for found, expected in zip(ours, theirs, strict=True):
        assert found.dtype == expected.dtype and found.shape == expected.shape and found.is_contiguous()
        tolerance = 2 * gradient_tolerance(case, expected, max(1, scores.numel() / max(1, expected.numel())))
        torch.testing.assert_close(
            found, expected, rtol=0, atol=tolerance, equal_nan=True, msg=lambda text: f"{text}\n{case.describe()}"
        )
    assert all(torch.equal(now, was) for now, was in zip(tensors, before, strict=True))


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
def test_rows_without_keys(empty_rows: str) -> None:
    scores, keep = normal(B, H, SQ, SK), torch.ones(B, 1, SQ, 1, dtype=torch.int64)
    keep[1, 0, 2] = 0
    bias = normal(SQ, SK)
    bias[1] = -torch.inf
    scalars = (*SCALARS[:-1], EmptyRows.ALL.index(empty_rows))
    masks = (bias, keep, None, None)
    probabilities = torch.ops.attngraft.masked_softmax(scores, *masks, *scalars)
    ours, theirs = both(normal(*scores.shape), probabilities, scores, *masks, *scalars, True)
    torch.testing.assert_close(ours, theirs)
    assert (ours[0][:, :, 1] == 0).all() and (ours[0][1, :, 2] == 0).all() == (empty_rows != EmptyRows.UNMASKED)
    assert ours[0].abs().max() > 0


@pytest.mark.parametrize("shape", [(0, SK), (SQ, 0), (B, H, 0, SK), (0, H, SQ, SK)])
def test_empty_tensors_give_a_bias_zeros(shape: tuple[int, ...]) -> None:
    empty, bias = torch.ones(shape), normal(1, 1)
    grad_scores, grad_bias = torch.ops.attngraft_emulated.masked_softmax_backward(
        empty, empty, None, bias, None, None, None, *SCALARS, True
    )
    assert grad_scores.shape == shape and torch.equal(grad_bias, torch.zeros(1, 1))


def test_an_expanded_bias_has_a_gradient_of_its_own_shape() -> None:
    """Its strides of 0 are no sums."""
    scores, bias = normal(B, H, SQ, SK), normal(1, 1, 1, SK).expand(B, H, SQ, SK)
    probabilities = torch.softmax(scores + bias, -1)
    ours, theirs = both(normal(*scores.shape), probabilities, None, bias, None, None, None, *SCALARS, True)
    torch.testing.assert_close(ours, theirs)
    assert ours[1].shape == (B, H, SQ, SK)


def test_without_the_gradient_of_the_bias() -> None:
    scores = normal(B, SQ, SK)
    (grad_scores, nothing), _ = both(normal(*scores.shape), torch.softmax(scores, -1), None, *NO_MASKS, *SCALARS, False)
    assert grad_scores.shape == scores.shape and nothing.shape == (0,)


def test_the_schema_is_that_of_the_package() -> None:
    schema = str(torch.ops.attngraft_emulated.masked_softmax_backward.default._schema)
    assert schema == f"attngraft_emulated::masked_softmax_backward{library.SCHEMAS['masked_softmax_backward']}"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"probabilities": normal(SK)}, "probabilities: expected two to six dimensions"),
    ({"gradient": normal(B, H, SQ, 4)}, "grad_probabilities: expected the shape of probabilities"),
    ({"gradient": normal(H, SQ, SK)}, "grad_probabilities: expected the shape of probabilities"),
    ({"gradient": normal(B, H, SQ, SK).half()}, "grad_probabilities: expected the type of probabilities"),
    ({"scores": normal(B, H, SQ, SK).half()}, "scores: expected the type of probabilities"),
    ({"scores": normal(B, H, SK)}, "scores: expected the shape of probabilities"),
    ({"scores": None, "softcap": 2.0}, "scores: expected a tensor, with a softcap or uniform empty rows"),
    ({"scores": None, "empty_rows": 1}, "scores: expected a tensor, with a softcap or uniform empty rows"),
    ({"bias": None}, "bias: expected a tensor, since its gradient is wanted"),
    ({"bias": normal(SQ, 4)}, "bias: expected a shape that broadcasts to the scores"),
    ({"bias": normal(SK).half()}, "bias: expected the type of probabilities, or float32"),
    ({"keep": normal(SK)}, "keep: expected bool, int8, uint8, int32 or int64"),
    ({"kv_lengths": normal(B)}, "kv_lengths: expected int32"),
    ({"causal": -1}, "causal: expected 0, 1 or 2"),
    ({"empty_rows": 3}, "empty_rows: expected 0, 1 or 2"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=[message[:45] for _, message in REFUSED])
def test_what_the_kernels_cannot_check_is_refused(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        **{name: normal(B, H, SQ, SK) for name in ("gradient", "probabilities", "scores")},
        **dict.fromkeys(Role.ALL),
        "bias": normal(SK),
        **{"scale": 1.0, "causal": 0, "window_left": -1, "window_right": -1, "softcap": 0.0, "empty_rows": 0},
        "with_bias": True,
    } | changed
    with pytest.raises(RuntimeError, match=re.escape(f"attngraft::masked_softmax_backward: {message}")):
        torch.ops.attngraft_emulated.masked_softmax_backward(*arguments.values())


def test_a_type_that_no_kernel_has_is_refused() -> None:
    tensor = normal(SQ, SK).double()
    with pytest.raises(RuntimeError, match="probabilities: expected float32, float16 or bfloat16"):
        torch.ops.attngraft_emulated.masked_softmax_backward(tensor, tensor, None, *NO_MASKS, *SCALARS, False)

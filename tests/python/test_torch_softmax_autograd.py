"""Gradients of attngraft.torch.masked_softmax: against finite differences and PyTorch's own, and where others fail."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck
from torch_softmax_cases import arguments_of_mask, gradient_tolerance, random_case, scores_of
from torch_training import LOSS_TOLERANCE, STEPS, loss_curve

from attngraft.contract import CausalMode, EmptyRows, Role
from attngraft.errors import ContractError
from attngraft.torch import masked_softmax

B, H, SQ, SK = 2, 3, 4, 5

KEEP = torch.tensor([[1, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
"""The rows of batch entry 1 have no key."""

BIAS_SHAPES = [(B, H, SQ, SK), (B, 1, SQ, SK), (H, 1, SK), (SQ, 1), (SK,), ()]

ALLOWED_FIRST = 3
"""Keys of a row that are not masked where a test masks the others."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """For such small tensors threads cost more than they save."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_inputs(bias_shape: tuple[int, ...] = (1, H, SQ, SK), dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Scores and a bias that want gradients."""
    torch.manual_seed(0)
    tensors = torch.randn(B, H, SQ, SK) * 2, torch.randn(bias_shape)
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
def test_gradients_are_those_of_finite_differences(empty_rows: str, softcap: float) -> None:
    arguments: dict[str, Any] = {"softcap": softcap, "causal": "bottom_right", "scale": -0.7}

    def function(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return masked_softmax(scores, mask=KEEP, bias=bias, empty_rows=empty_rows, **arguments)

    assert gradcheck(function, make_inputs(), fast_mode=True)


@pytest.mark.parametrize("shape", BIAS_SHAPES)
def test_the_gradient_of_a_bias_is_summed_over_what_it_is_broadcast_along(shape: tuple[int, ...]) -> None:
    scores, bias = make_inputs(shape)
    function = lambda scores, bias: masked_softmax(scores, mask=KEEP, bias=bias, softcap=3.0)  # noqa: E731
    assert gradcheck(function, (scores, bias), fast_mode=True)
    (gradient,) = torch.autograd.grad(function(scores, bias).square().sum(), bias)
    assert gradient.shape == shape and gradient.dtype == bias.dtype


@pytest.mark.parametrize("shape", [(SQ, SK), (B, SQ, SK), (B, 1, 2, 1, SQ, SK)])
def test_gradients_of_other_ranks(shape: tuple[int, ...]) -> None:
    scores = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([3, 0][: shape[0] if len(shape) > 2 else 1], dtype=torch.int32)
    assert gradcheck(
        lambda scores: masked_softmax(scores, kv_lengths=lengths, empty_rows="uniform"), (scores,), fast_mode=True
    )


def reference(scores: torch.Tensor, bias: torch.Tensor | None, arguments: dict[str, Any]) -> torch.Tensor:
    """PyTorch's gradients through the formula, for cases whose rows all have a key or give zeros."""
    wide = scores.double() * arguments["scale"]
    if cap := arguments["softcap"]:
        wide = torch.tanh(wide / cap) * cap
    wide = wide if bias is None else wide + bias.double()
    with torch.no_grad():
        allowed = masked_softmax(torch.zeros_like(wide), **{**arguments, Role.BIAS: None}) > 0
        allowed &= wide != -math.inf
        filled = allowed.any(-1, keepdim=True)
    weights = torch.softmax(torch.where(allowed, wide, -math.inf).masked_fill(~filled, 0.0), -1)
    return torch.where(filled, weights, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_gradients_of_random_cases_are_those_of_pytorch_in_float64(seed: int) -> None:
    case = random_case(seed)
    arguments = {**arguments_of_mask(case), "empty_rows": EmptyRows.ZEROS}
    scores, bias = scores_of(case), arguments.get(Role.BIAS)
    inputs = [tensor.requires_grad_() for tensor in (scores, bias) if tensor is not None]
    probabilities = masked_softmax(scores, **arguments)
    pull = torch.randn(probabilities.shape).to(scores.dtype)
    ours = torch.autograd.grad(probabilities, inputs, pull)
    theirs = torch.autograd.grad(reference(scores, bias, arguments), inputs, pull.double())
    for gradient, expected, tensor in zip(ours, theirs, inputs, strict=True):
        assert gradient.dtype == tensor.dtype and gradient.shape == tensor.shape and gradient.isfinite().all()
        tolerance = gradient_tolerance(case, expected, scores.numel() / tensor.numel())
        torch.testing.assert_close(
            gradient.double(), expected.double(), rtol=0, atol=tolerance, msg=lambda text: f"{text}\n{case.describe()}"
        )


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_row_without_keys_poisons_no_gradient(dtype: torch.dtype, empty_rows: str, softcap: float) -> None:
    """Also where a bias of -inf, and not a mask, leaves it without."""
    scores, _ = make_inputs(dtype=dtype)
    bias = torch.zeros(SQ, SK, dtype=dtype)
    bias[1] = -math.inf
    bias.requires_grad_()
    probabilities = masked_softmax(scores, mask=KEEP, bias=bias, empty_rows=empty_rows, softcap=softcap)
    grad_scores, grad_bias = torch.autograd.grad(probabilities.float().square().sum(), (scores, bias))
    assert grad_scores.isfinite().all() and grad_bias.isfinite().all() and grad_bias[0].abs().sum() > 0
    assert (grad_scores[0, :, 1] == 0).all() and grad_scores[0, :, 0].abs().sum() > 0
    assert (grad_scores[1, :, 0] == 0).all() == (empty_rows != EmptyRows.UNMASKED)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_what_a_masked_key_holds_changes_no_gradient(softcap: float, bad: float) -> None:
    """Neither its score nor the gradient that comes in for it; in an allowed place both do what they must."""
    scores, _ = make_inputs(dtype=torch.float32)
    keep = torch.arange(SK) < ALLOWED_FIRST
    pull = torch.randn_like(scores)
    spoilt_scores = torch.where(keep, scores, bad).detach().requires_grad_()
    spoilt_pull = torch.where(keep, pull, bad)
    clean = torch.autograd.grad(masked_softmax(scores, keep=keep, softcap=softcap), scores, pull)[0]
    spoilt = torch.autograd.grad(masked_softmax(spoilt_scores, keep=keep, softcap=softcap), spoilt_scores, spoilt_pull)[
        0
    ]
    assert torch.equal(spoilt, clean) and (clean[..., ALLOWED_FIRST:] == 0).all()
    spoilt_pull[0, 0, 0, 0] = math.nan
    (gradient,) = torch.autograd.grad(masked_softmax(scores, keep=keep, softcap=softcap), scores, spoilt_pull)
    assert gradient[0, 0, 0, :ALLOWED_FIRST].isnan().all() and gradient.isnan().sum() == ALLOWED_FIRST


@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_the_inputs_of_the_backward_pass_stay_as_they_are(softcap: float) -> None:
    scores, bias = make_inputs(dtype=torch.float32)
    probabilities = masked_softmax(scores, bias=bias, softcap=softcap)
    pull = torch.randn_like(probabilities)
    tensors = (pull, probabilities, scores, bias)
    before = [tensor.detach().clone() for tensor in tensors]
    torch.autograd.grad(probabilities, (scores, bias), pull)
    assert all(torch.equal(now, was) for now, was in zip(tensors, before, strict=True))


def test_only_the_gradients_that_are_asked_for() -> None:
    scores, bias = make_inputs()
    masked_softmax(scores, bias=bias.detach()).square().sum().backward()
    assert scores.grad is not None and bias.grad is None
    masked_softmax(scores.detach(), bias=bias).square().sum().backward()
    assert bias.grad is not None


def kept_bytes(**arguments: Any) -> int:
    """Of what the backward pass keeps, in elements of the scores."""
    scores = torch.randn(B, H, SQ, SK, requires_grad=True)
    sizes: dict[int, int] = {}
    pack = lambda tensor: sizes.setdefault(tensor.data_ptr(), tensor.numel()) and tensor  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        masked_softmax(scores, **arguments)
    return sum(sizes.values())


def test_the_backward_pass_keeps_the_probabilities_alone_unless_it_needs_more() -> None:
    whole = B * H * SQ * SK
    bias = torch.randn(H, SQ, SK)
    assert kept_bytes(mask=KEEP, bias=bias, causal=CausalMode.TOP_LEFT) == whole
    assert kept_bytes(bias=bias.requires_grad_()) == whole + bias.numel()
    assert kept_bytes(softcap=2.0) == 2 * whole
    assert kept_bytes(mask=KEEP, empty_rows=EmptyRows.UNIFORM) == 2 * whole + KEEP.numel()


def test_second_derivatives_are_refused() -> None:
    scores, bias = make_inputs()
    probabilities = masked_softmax(scores, bias=bias)
    (first,) = torch.autograd.grad(probabilities.square().sum(), scores, create_graph=True)
    with pytest.raises(ContractError, match="masked_softmax: no second derivatives; attngraft.torch.attention"):
        first.sum().backward()


def test_training_two_layers_gives_the_losses_of_eager_attention() -> None:
    ours, theirs = loss_curve(with_operator=True), loss_curve(with_operator=False)
    assert ours.shape == (STEPS,) and theirs[-20:].mean() < 0.5 * theirs[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=LOSS_TOLERANCE)

"""Gradients of attngraft.torch: against finite differences in float64, and where rows have no key at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_cases import random_attention
from torch.autograd import gradcheck
from torch_cases import arguments_of, tensors_of

from attngraft.contract import EmptyRows, Role
from attngraft.errors import ContractError
from attngraft.torch import attention, fused_attention

B, H, HK, SQ, SK, D, DV = 2, 4, 2, 3, 5, 4, 3

KEEP = torch.tensor([[1, 0, 1, 1, 1], [0, 0, 0, 0, 0]])[:, None, None]
"""The rows of batch entry 1 have no key."""

BIAS_SHAPES = [(B, H, SQ, SK), (H, 1, SK), (SQ, 1), (SK,), ()]

TOLERANCES = {"float32": 2e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Of a gradient, as a share of its largest element: the gradients' own rounding, and that of the weights."""


def make_inputs(bias_shape: tuple[int, ...] = (B, 1, SQ, SK), dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """q in [B,S,H,D] order, k, v and a bias, all of which want gradients."""
    torch.manual_seed(0)
    q = torch.randn(B, SQ, H, D).transpose(1, 2)
    tensors = (q, torch.randn(B, HK, SK, D), torch.randn(B, HK, SK, DV), torch.randn(bias_shape))
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def both_results(**arguments: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The context and the log-sum-exp, finite also where a row has no key, as functions of make_inputs."""

    def results(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> tuple[Any, Any]:
        context, logarithms = fused_attention(q, k, v, bias=bias, keep=KEEP, return_lse=True, **arguments)
        return context, torch.where(logarithms.isinf(), 0.0, logarithms)

    return results


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
def test_gradients_are_those_of_finite_differences(empty_rows: str, softcap: float) -> None:
    arguments: dict[str, Any] = {"empty_rows": empty_rows, "softcap": softcap, "causal": "bottom_right"}
    assert gradcheck(both_results(**arguments), make_inputs(), fast_mode=True)
    for weights in (False, True):

        def front_door(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, weights: bool = weights
        ) -> Any:
            return attention(q, k, v, bias=bias, keep=KEEP, need_weights=weights, **arguments)

        assert gradcheck(front_door, make_inputs(), fast_mode=True)


@pytest.mark.parametrize("shape", BIAS_SHAPES)
def test_the_gradient_of_a_bias_is_summed_over_what_it_is_broadcast_along(shape: tuple[int, ...]) -> None:
    assert gradcheck(both_results(), make_inputs(shape), fast_mode=True)


@pytest.mark.parametrize("seed", range(20))
def test_gradients_of_random_cases_are_those_of_pytorch_operations(seed: int) -> None:
    """The operator's backward pass beside that of PyTorch through the same formula, in the tensors' own type."""
    case = random_attention(seed, 50_000)
    arguments = arguments_of(case)
    results = []
    for weights in (False, True):
        inputs = [tensor.clone().requires_grad_() for tensor in tensors_of(case)]
        if (bias := arguments.get(Role.BIAS)) is not None:
            inputs.append(bias.clone().requires_grad_())
            arguments = arguments | {Role.BIAS: inputs[3]}
        if weights:
            context = attention(*inputs[:3], **arguments, need_weights=True)[0]
        else:
            context = fused_attention(*inputs[:3], **arguments)
        pull = torch.linspace(-1, 1, context.numel()).reshape(context.shape).to(context.dtype)
        results.append(torch.autograd.grad(context, inputs, pull))
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype and ours.isfinite().all()
        tolerance = TOLERANCES[case.dtype] * max(1e-3, theirs.abs().max().item())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance, msg=lambda text: f"{text}\n{case.describe()}")


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
def test_a_row_without_keys_poisons_no_gradient(empty_rows: str) -> None:
    """Also where a bias of -inf, and not a mask, leaves it without."""
    for function in (fused_attention, attention, lambda *a, **b: attention(*a, **b, need_weights=True)[0]):
        q, k, v, _ = make_inputs(dtype=torch.float32)
        bias = torch.zeros(SQ, SK)
        bias[1] = -math.inf
        bias.requires_grad_()
        context = function(q, k, v, bias=bias, keep=KEEP, empty_rows=empty_rows)
        for gradient in torch.autograd.grad(context.square().sum(), (q, k, v, bias)):
            assert gradient.isfinite().all() and gradient.abs().sum() > 0


def test_gradients_where_a_bias_lowers_a_whole_row() -> None:
    """As exporters and models mask rows of padding. PyTorch's own attention on the CPU gives others."""
    bias = torch.zeros(B, 1, SQ, SK)
    bias[0, 0, 1] = -1e9
    found = []
    for need_weights in (False, True):
        *qkv, _ = make_inputs(dtype=torch.float32)
        result = attention(*qkv, bias=bias, need_weights=need_weights)
        context = result[0] if isinstance(result, tuple) else result
        found.append(torch.autograd.grad(context.square().sum(), qkv))
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_only_the_gradients_that_are_asked_for() -> None:
    q, k, v, bias = make_inputs()
    context = fused_attention(q, k.detach(), v, bias=bias.detach())
    context.sum().backward()
    assert q.grad is not None and v.grad is not None and k.grad is None and bias.grad is None


def test_the_incoming_gradient_stays_as_it_is() -> None:
    q, k, v, bias = make_inputs(dtype=torch.float32)
    context = fused_attention(q, k, v, bias=bias)
    pull = torch.randn_like(context)
    before = pull.clone()
    torch.autograd.grad(context, (q, k, v, bias), pull)
    torch.testing.assert_close(pull, before, rtol=0, atol=0)


def test_second_derivatives_are_refused_and_there_is_a_way_to_have_them() -> None:
    q, k, v, bias = make_inputs()
    (first,) = torch.autograd.grad(fused_attention(q, k, v, bias=bias).square().sum(), q, create_graph=True)
    with pytest.raises(ContractError, match=r"no second derivatives; attngraft.torch.attention\(.*need_weights=True"):
        first.sum().backward()
    context, _ = attention(q, k, v, bias=bias, need_weights=True)
    (first,) = torch.autograd.grad(context.square().sum(), q, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), q)
    assert second.isfinite().all() and second.abs().sum() > 0

"""attngraft.torch.attention with weights by masked_softmax between two products, as devices with the kernel take it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import assert_attention_matches, random_attention
from torch.autograd import gradcheck
from torch_cases import arguments_of, tensors_of, to_numpy

from attngraft.contract import EmptyRows
from attngraft.torch import attention, front_door, fused_attention, path_of

CASES = 40
WORK_LIMIT = 200_000

B, H, HK, SQ, SK, D = 2, 4, 2, 3, 5, 4


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator is taken on the CPU too, where PyTorch operations stand in for its kernel."""
    monkeypatch.setattr(front_door, "_softmax_cannot", lambda call, dropout_p: None)


@pytest.mark.parametrize("seed", range(CASES))
def test_random_cases_are_attention_in_float64(seed: int) -> None:
    case = random_attention(seed, WORK_LIMIT)
    case = replace(case, config=replace(case.config, exact=0))  # as exact as PyTorch's products
    tensors, arguments = tensors_of(case), arguments_of(case)
    path = path_of(*tensors, **arguments, need_weights=True)
    assert path.name == "eager" and "is the kernel of masked_softmax" in path.reason
    context, weights = attention(*tensors, **arguments, need_weights=True)
    _, logarithms = fused_attention(*tensors, **arguments, return_lse=True)
    assert_attention_matches((to_numpy(context), to_numpy(logarithms)), case)
    assert weights.shape == case.scores_shape() and weights.dtype == tensors[0].dtype


@pytest.mark.parametrize("empty_rows", EmptyRows.ALL)
def test_gradients_are_those_of_finite_differences(empty_rows: str) -> None:
    torch.manual_seed(0)
    keep = torch.tensor([[1, 0, 1, 1, 1], [0, 0, 0, 0, 0]])[:, None, None]

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, bias = tensors
        return attention(q, k, v, bias=bias, keep=keep, softcap=2.0, empty_rows=empty_rows, need_weights=True)

    shapes = ((B, H, SQ, D), (B, HK, SK, D), (B, HK, SK, 3), (H, 1, SK))
    assert gradcheck(function, [torch.randn(shape).double().requires_grad_() for shape in shapes], fast_mode=True)


def test_compiles_to_one_graph() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        context, weights = attention(q, k, k, bias=bias, causal="top_left", softcap=2.0, need_weights=True)
        return context + weights.sum(-1, keepdim=True)

    torch.manual_seed(0)
    inputs = [torch.randn(shape).requires_grad_() for shape in ((B, H, SQ, D), (B, HK, SK, D), (H, 1, SK))]
    ours, theirs = torch.compile(function, fullgraph=True, backend="aot_eager")(*inputs), function(*inputs)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(result.square().sum(), inputs) for result in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_large_scores_of_half_types_do_not_overflow_before_they_are_scaled() -> None:
    q = torch.full((1, 1, 2, 64), 60.0, dtype=torch.float16)
    k = q.clone()
    k[:, :, 1] = -60
    context, weights = attention(q, k, k, need_weights=True)
    assert torch.equal(weights, torch.tensor([1.0, 0.0]).half().expand(1, 1, 2, 2)) and torch.equal(context, q)

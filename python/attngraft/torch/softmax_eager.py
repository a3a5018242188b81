"""Masked softmax by PyTorch operations, forward and backward: where there is no kernel, and what kernels must equal.

Arithmetic is float32, or float64 for float64 scores. Scores, probabilities and their gradients are [..., Sq, Sk] of one
type; what is returned is contiguous.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attngraft.contract import EmptyRows, MaskedSoftmax, Role
from attngraft.torch.checks import Operands
from attngraft.torch.softmax import accumulation_type, allowed_keys, biased, capped, probabilities

__all__ = ["backward", "forward", "needs_scores"]


def forward(scores: Tensor, operands: Operands, config: MaskedSoftmax) -> Tensor:
    """The probabilities."""
    s, allowed = _masked_scores(scores, operands, config)
    return probabilities(s, allowed, config.empty_rows).to(scores.dtype).contiguous()


def needs_scores(softcap: float, empty_rows: str) -> bool:
    """Whether the backward pass reads the scores: for softcap's slope, and to tell rows that are uniform because they
    have no allowed key, whose gradient is 0, from others."""
    return softcap != 0 or empty_rows == EmptyRows.UNIFORM


def backward(
    grad_probabilities: Tensor,
    probabilities: Tensor,
    scores: Tensor | None,
    operands: Operands,
    config: MaskedSoftmax,
    with_bias: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of the scores and, `with_bias`, of the bias, each of its tensor's shape and type; else the last is [0].

    ds = p * (g - sum over the row of p * g). A key without weight takes no part, whatever its g and its score are.
    scores  may be None unless `needs_scores`
    """
    wide = accumulation_type(probabilities.dtype)
    weights = probabilities.to(wide)
    weighed = weights != 0
    grad = torch.where(weighed, grad_probabilities.to(wide), 0.0)
    grad_s = torch.where(weighed, weights * (grad - (weights * grad).sum(-1, keepdim=True)), 0.0)
    if config.empty_rows == EmptyRows.UNIFORM:
        _, allowed = _masked_scores(_given(scores), operands, config)
        grad_s = torch.where(allowed.any(-1, keepdim=True), grad_s, 0.0)
    grad_x = grad_s * config.scale
    if config.softcap:
        tangent = torch.tanh(_given(scores).to(wide) * (config.scale / config.softcap))
        grad_x = torch.where(weighed, grad_x * (1 - tangent.square()), 0.0)
    grad_scores = grad_x.to(probabilities.dtype).contiguous()
    bias = operands[Role.BIAS]
    if not with_bias or bias is None:
        return grad_scores, grad_scores.new_empty(0)
    return grad_scores, grad_s.sum_to_size(bias.shape).to(bias.dtype).contiguous()


def _masked_scores(scores: Tensor, operands: Operands, config: MaskedSoftmax) -> tuple[Tensor, Tensor]:
    """s in the type of the arithmetic, and where it may count."""
    s = biased(capped(scores.to(accumulation_type(scores.dtype)), config), operands[Role.BIAS])
    return s, allowed_keys(s, scores.shape[-2], config, operands)


def _given(scores: Tensor | None) -> Tensor:
    assert scores is not None, "the backward pass of this configuration reads the scores"
    return scores

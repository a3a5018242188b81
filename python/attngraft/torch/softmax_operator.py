"""Everything of torch.ops.attngraft.masked_softmax but its CUDA kernels: CPU, shapes, autograd, autocast, vmap.

Arguments are those of the schemas in library.py, all positional. Gradients come from the operator
`masked_softmax_backward`: on CUDA from its kernels, elsewhere from PyTorch operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngraft.contract import EmptyRows, MaskedSoftmax, Role
from attngraft.torch import softmax_eager, vmap
from attngraft.torch.arguments import OPERAND_COUNT, SCALAR_COUNT, config_of, operands_of
from attngraft.torch.autocast import bias_in_autocast, without_autocast
from attngraft.torch.checks import Operands
from attngraft.torch.registration import OperatorParts, register_operator

__all__ = ["masked_softmax_operator"]

masked_softmax_operator = torch.ops.attngraft.masked_softmax.default
_backward_operator = torch.ops.attngraft.masked_softmax_backward.default

_BIAS = 1
"""Behind the scores."""


def _split(rest: tuple[Any, ...]) -> tuple[Operands, MaskedSoftmax]:
    """Operands and configuration: what comes after the tensors [..., Sq, Sk]."""
    operands = operands_of(rest[:OPERAND_COUNT])
    return operands, config_of(MaskedSoftmax, operands, rest[OPERAND_COUNT : OPERAND_COUNT + SCALAR_COUNT])


def _forward(scores: Tensor, *rest: Any) -> Tensor:
    return softmax_eager.forward(scores, *_split(rest))


def _forward_shapes(scores: Tensor, *_rest: Any) -> Tensor:
    return scores.new_empty(scores.shape)


def _backward(grad: Tensor, probabilities: Tensor, scores: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    operands, config = _split(rest)
    with without_autocast(probabilities.device):  # a backward pass may run inside a region
        return softmax_eager.backward(grad, probabilities, scores, operands, config, rest[-1])


def _backward_shapes(
    _grad: Tensor, probabilities: Tensor, _scores: Tensor | None, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor]:
    grad_bias = probabilities.new_empty(0) if bias is None or not rest[-1] else bias.new_empty(bias.shape)
    return probabilities.new_empty(probabilities.shape), grad_bias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keeps the probabilities, and what else the configuration needs: the scores, the masks of rows that are uniform,
    the bias for the shape of its gradient."""
    scores, operands = inputs[0], operands_of(inputs[1 : 1 + OPERAND_COUNT])
    ctx.scalars = inputs[1 + OPERAND_COUNT :]
    softcap, empty_rows = ctx.scalars[-2], EmptyRows.ALL[ctx.scalars[-1]]
    ctx.with_bias = ctx.needs_input_grad[_BIAS]
    if empty_rows != EmptyRows.UNIFORM:
        operands = {**dict.fromkeys(Role.ALL), Role.BIAS: operands[Role.BIAS] if ctx.with_bias else None}
    scores = scores if softmax_eager.needs_scores(softcap, empty_rows) else None
    ctx.save_for_backward(output, scores, *(operands[role] for role in Role.ALL))


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    found = _backward_operator(grad, *ctx.saved_tensors, *ctx.scalars, ctx.with_bias)
    wanted = [tensor if needed else None for tensor, needed in zip(found, ctx.needs_input_grad[:2], strict=True)]
    return (*wanted, *(None for _ in ctx.needs_input_grad[2:]))


def _autocast(scores: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    bias = bias if bias is None else bias_in_autocast(scores, bias)
    with without_autocast(scores.device):
        return masked_softmax_operator(scores, bias, *rest)


register_operator(
    "masked_softmax",
    OperatorParts(
        forward=_forward,
        forward_shapes=_forward_shapes,
        forward_vmap=vmap.softmax_forward,
        backward=_backward,
        backward_shapes=_backward_shapes,
        backward_vmap=vmap.softmax_backward,
        setup_context=_setup_context,
        gradients=_gradients,
        autocast=_autocast,
    ),
)

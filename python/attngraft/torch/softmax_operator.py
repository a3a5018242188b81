"""Everything of torch.ops.attngraft.masked_softmax but its CUDA kernel: CPU, shapes, autograd, autocast, vmap.

Arguments are those of the schema in library.py, all positional. Gradients come from the operator
`masked_softmax_backward`, which PyTorch operations do on every device: a kernel registered for a device takes their
place there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngraft.contract import EmptyRows, MaskedSoftmax, Role
from attngraft.errors import ContractError
from attngraft.torch import softmax_eager, vmap
from attngraft.torch.arguments import OPERAND_COUNT, SCALAR_COUNT, config_of, operands_of
from attngraft.torch.autocast import bias_in_autocast, without_autocast
from attngraft.torch.checks import Operands
from attngraft.torch.library import LIBRARY

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


def _refuse_second(_ctx: Any, *_grads: Tensor) -> tuple[Tensor | None, ...]:
    raise ContractError(
        "masked_softmax: no second derivatives; attngraft.torch.attention(..., need_weights=True) has them on the CPU "
        "and in float64"
    )


def _autocast(scores: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    bias = bias if bias is None else bias_in_autocast(scores, bias)
    with without_autocast(scores.device):
        return masked_softmax_operator(scores, bias, *rest)


def _register() -> None:
    name, backward_name = "attngraft::masked_softmax", "attngraft::masked_softmax_backward"
    LIBRARY.impl("masked_softmax", _forward, "CPU")
    LIBRARY.impl("masked_softmax_backward", _backward, "CompositeExplicitAutograd")
    torch.library.register_fake(name, _forward_shapes, lib=LIBRARY)
    torch.library.register_fake(backward_name, _backward_shapes, lib=LIBRARY)
    torch.library.register_autograd(name, _gradients, setup_context=_setup_context, lib=LIBRARY)
    torch.library.register_autograd(backward_name, _refuse_second, lib=LIBRARY)
    torch.library.register_vmap(name, vmap.softmax_forward, lib=LIBRARY)
    torch.library.register_vmap(backward_name, vmap.softmax_backward, lib=LIBRARY)
    for key in ("AutocastCPU", "AutocastCUDA"):
        LIBRARY.impl("masked_softmax", _autocast, key)


_register()

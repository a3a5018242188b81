"""Everything of torch.ops.attngraft.fused_attention but its CUDA kernel: CPU, shapes, autograd, autocast, vmap.

Arguments are those of the schema in library.py, all positional. Gradients come from the operator
`fused_attention_backward`, which PyTorch operations do on every device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngraft.contract import FusedAttention
from attngraft.torch import eager, vmap
from attngraft.torch.arguments import OPERAND_COUNT, SCALAR_COUNT, config_of, operands_of
from attngraft.torch.autocast import in_autocast_types, without_autocast
from attngraft.torch.checks import Operands
from attngraft.torch.registration import OperatorParts, register_operator
from attngraft.torch.softmax import accumulation_type

__all__ = ["fused_attention_operator"]

fused_attention_operator = torch.ops.attngraft.fused_attention.default
_backward_operator = torch.ops.attngraft.fused_attention_backward.default

_TENSORS = 3 + OPERAND_COUNT
"""q, k, v and the operands come first; the scalars of a mask follow."""


def _split(rest: tuple[Any, ...]) -> tuple[Operands, FusedAttention, tuple[Any, ...]]:
    """Operands, configuration and flags: what comes after q, k and v."""
    operands = operands_of(rest[:OPERAND_COUNT])
    flags = OPERAND_COUNT + SCALAR_COUNT
    return operands, config_of(FusedAttention, operands, rest[OPERAND_COUNT:flags]), rest[flags:]


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    operands, config, (_exact, with_log_sum_exp) = _split(rest)
    return eager.forward(q, k, v, operands, config, with_log_sum_exp)


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    shape = q.shape[:3] if rest[-1] else (0,)
    return eager.empty_context(q, v.shape[3]), q.new_empty(shape, dtype=accumulation_type(q.dtype))


def _backward(
    grad_context: Tensor, grad_log_sum_exp: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    operands, config, (with_bias,) = _split(rest)
    with without_autocast(q.device):  # a backward pass may run inside a region
        return eager.backward(grad_context, grad_log_sum_exp, q, k, v, operands, config, with_bias)


def _backward_shapes(
    _grad_context: Tensor, _grad_log_sum_exp: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    grads = (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
    return (*grads, torch.empty_like(bias) if rest[-1] else q.new_empty(0))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS])
    ctx.scalars = inputs[_TENSORS : _TENSORS + SCALAR_COUNT]


def _gradients(ctx: Any, grad_context: Tensor, grad_log_sum_exp: Tensor) -> tuple[Tensor | None, ...]:
    with_bias = ctx.needs_input_grad[3]
    grads = _backward_operator(grad_context, grad_log_sum_exp, *ctx.saved_tensors, *ctx.scalars, with_bias)
    wanted = [grad if needed else None for grad, needed in zip(grads, ctx.needs_input_grad[:4], strict=True)]
    return (*wanted, *(None for _ in ctx.needs_input_grad[4:]))


def _autocast(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    q, k, v, bias = in_autocast_types(q, k, v, bias)
    with without_autocast(q.device):
        return fused_attention_operator(q, k, v, bias, *rest)


register_operator(
    "fused_attention",
    OperatorParts(
        forward=_forward,
        forward_shapes=_forward_shapes,
        forward_vmap=vmap.forward,
        backward=_backward,
        backward_shapes=_backward_shapes,
        backward_vmap=vmap.backward,
        setup_context=_setup_context,
        gradients=_gradients,
        autocast=_autocast,
    ),
)

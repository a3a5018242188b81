"""Everything of torch.ops.attngraft.fused_attention but its CUDA kernel: CPU, shapes, autograd, autocast, vmap.

Arguments are those of the schema in library.py, all positional. Gradients come from the operator
`fused_attention_backward`, which PyTorch operations do on every device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngraft.contract import CausalMode, EmptyRows, FusedAttention, Role
from attngraft.errors import ContractError
from attngraft.torch import eager, vmap
from attngraft.torch.autocast import in_autocast_types, without_autocast
from attngraft.torch.checks import Operands
from attngraft.torch.library import LIBRARY

__all__ = ["fused_attention_operator"]

fused_attention_operator = torch.ops.attngraft.fused_attention.default
_backward_operator = torch.ops.attngraft.fused_attention_backward.default

_TENSORS = 7
"""q, k, v and the four operands come first."""
_SCALARS = 6
"""scale to empty_rows follow."""


def _operands(tensors: tuple[Tensor | None, ...]) -> Operands:
    return dict(zip(Role.ALL, tensors, strict=True))


def _config(scale: float, causal: int, left: int, right: int, softcap: float, empty_rows: int) -> FusedAttention:
    return FusedAttention(
        scale=scale,
        causal=CausalMode.ALL[causal],
        window_left=left,
        window_right=right,
        softcap=softcap,
        empty_rows=EmptyRows.ALL[empty_rows],
    )


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    operands, config, (_exact, with_log_sum_exp) = _operands(rest[:4]), _config(*rest[4:10]), rest[10:]
    return eager.forward(q, k, v, operands, config, with_log_sum_exp)


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    shape = q.shape[:3] if rest[-1] else (0,)
    return eager.empty_context(q, v.shape[3]), q.new_empty(shape, dtype=eager.accumulation_type(q.dtype))


def _backward(
    grad_context: Tensor, grad_log_sum_exp: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    operands, config, with_bias = _operands(rest[:4]), _config(*rest[4:10]), rest[10]
    with without_autocast(q.device):  # a backward pass may run inside a region
        return eager.backward(grad_context, grad_log_sum_exp, q, k, v, operands, config, with_bias)


def _backward_shapes(
    _grad_context: Tensor, _grad_log_sum_exp: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    grads = (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
    return (*grads, torch.empty_like(bias) if rest[-1] else q.new_empty(0))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS])
    ctx.scalars = inputs[_TENSORS : _TENSORS + _SCALARS]


def _gradients(ctx: Any, grad_context: Tensor, grad_log_sum_exp: Tensor) -> tuple[Tensor | None, ...]:
    with_bias = ctx.needs_input_grad[3]
    grads = _backward_operator(grad_context, grad_log_sum_exp, *ctx.saved_tensors, *ctx.scalars, with_bias)
    wanted = [grad if needed else None for grad, needed in zip(grads, ctx.needs_input_grad[:4], strict=True)]
    return (*wanted, *(None for _ in ctx.needs_input_grad[4:]))


def _refuse_second(_ctx: Any, *_grads: Tensor) -> tuple[Tensor | None, ...]:
    raise ContractError(
        "fused_attention: no second derivatives; use attngraft.torch.attention(..., need_weights=True), whose PyTorch "
        "operations have them"
    )


def _autocast(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    q, k, v, bias = in_autocast_types(q, k, v, bias)
    with without_autocast(q.device):
        return fused_attention_operator(q, k, v, bias, *rest)


def _register() -> None:
    name, backward_name = "attngraft::fused_attention", "attngraft::fused_attention_backward"
    LIBRARY.impl("fused_attention", _forward, "CPU")
    LIBRARY.impl("fused_attention_backward", _backward, "CompositeExplicitAutograd")
    torch.library.register_fake(name, _forward_shapes, lib=LIBRARY)
    torch.library.register_fake(backward_name, _backward_shapes, lib=LIBRARY)
    torch.library.register_autograd(name, _gradients, setup_context=_setup_context, lib=LIBRARY)
    torch.library.register_autograd(backward_name, _refuse_second, lib=LIBRARY)
    torch.library.register_vmap(name, vmap.forward, lib=LIBRARY)
    torch.library.register_vmap(backward_name, vmap.backward, lib=LIBRARY)
    for key in ("AutocastCPU", "AutocastCUDA"):
        LIBRARY.impl("fused_attention", _autocast, key)


_register()

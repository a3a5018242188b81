"""The contract's masks for torch's scaled_dot_product_attention, which chooses among PyTorch's own kernels.

In: arguments of the contract that it can express. Out: the context, of q's type. Rows without any allowed key take
part as if all were allowed and are replaced afterwards, since backends differ in what they give for them. On CUDA it is
asked without masks only: of 40 random cases with masks 3 gave zeros or NaN in rows with allowed keys (2.11, H200). On
the CPU its gradients are wrong in rows to which a mask adds a number as low as -1e9 throughout (2.11): it is not asked
about a bias where gradients are wanted.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from attngraft.contract import CausalMode, EmptyRows, Role
from attngraft.torch.call import AttentionCall
from attngraft.torch.softmax import accumulation_type, allowed_keys, reached_keys

__all__ = ["sdpa", "sdpa_cannot"]


def sdpa_cannot(call: AttentionCall, dropout_p: float) -> str | None:
    """Why scaled_dot_product_attention cannot compute this; None if it can."""
    q, k, config, bias = call.q, call.k, call.config, call.operands[Role.BIAS]
    if config.softcap:
        return "scaled_dot_product_attention has no softcap"
    if config.scale <= 0:
        return f"scaled_dot_product_attention takes no scale of {config.scale}"
    if bias is not None and bias.dtype != q.dtype:
        return "scaled_dot_product_attention takes no bias of another type than q's"
    if bias is not None and torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, call.v, bias)):
        return "scaled_dot_product_attention under additive masks was seen to give wrong gradients"
    if dropout_p and config.empty_rows != EmptyRows.ZEROS:
        return "its dropout would not reach rows without allowed keys"
    if q.numel() == 0 or k.numel() == 0:
        return "scaled_dot_product_attention is not asked about empty tensors"
    if q.is_cuda and _is_causal_alone(call) is None:
        return "scaled_dot_product_attention under masks was seen to be wrong on CUDA"
    return None


def sdpa(call: AttentionCall, dropout_p: float = 0.0) -> Tensor:
    """Context [B,H,Sq,Dv], where `sdpa_cannot` says None."""
    q, k, v, config = call.q, call.k, call.v, call.config
    options = {"dropout_p": dropout_p, "scale": config.scale}
    if q.shape[1] != k.shape[1]:  # under torch.compile the comparison itself may be a symbol, which is no bool
        options["enable_gqa"] = True
    if (is_causal := _is_causal_alone(call)) is not None:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, **options)
    mask, filled = _mask(call)
    context = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    return torch.where(filled, context, _of_empty_row(q, v, config.empty_rows))


def _is_causal_alone(call: AttentionCall) -> bool | None:
    """`is_causal`, which spares the mask and starts at the top left; None where it does not say it all."""
    config = call.config
    if config.operands or max(config.window_left, config.window_right) >= 0:
        return None
    if config.causal == CausalMode.BOTTOM_RIGHT and call.q.shape[2] != call.k.shape[2]:
        return None
    return config.causal != CausalMode.NONE


def _mask(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """A mask that broadcasts to the scores, bool or additive of q's type, with all keys in rows that have none; and
    which rows have some, [..., 1]."""
    q, operands, config = call.q, call.operands, call.config
    bias, keys = operands[Role.BIAS], call.k.shape[2]
    if bias is None:
        s = q.new_zeros((1, 1, 1, keys))
    else:
        s = bias.expand(torch.broadcast_shapes(bias.shape, (1, 1, 1, keys)))
    reached, filled = reached_keys(s, allowed_keys(s, q.shape[2], config, operands), config.empty_rows)
    if bias is None:
        return reached | ~filled, filled
    return torch.where(reached, s, -math.inf).masked_fill(~filled, 0.0), filled


def _of_empty_row(q: Tensor, v: Tensor, empty_rows: str) -> Tensor:
    """What takes the place of a row without any allowed key: the mean of the values, or zeros. Broadcasts to the
    context."""
    if empty_rows != EmptyRows.UNIFORM:
        return q.new_zeros(())
    mean = v.to(accumulation_type(v.dtype)).mean(2, keepdim=True).to(v.dtype)
    return mean.repeat_interleave(q.shape[1] // v.shape[1], 1)

"""Fused attention by PyTorch operations: on the CPU, as the backward pass everywhere, and where weights are wanted.

`forward` and `backward` go through the query rows in blocks, so that memory grows with the sequence and not with its
square. Arithmetic is float32, or float64 for float64 tensors. Shapes: q [B,H,Sq,D], k [B,Hk,Sk,D], v [B,Hk,Sk,Dv].
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from attngraft.contract import EmptyRows, FusedAttention, MaskedSoftmax, Role
from attngraft.torch.checks import Operands
from attngraft.torch.masked import call_softmax
from attngraft.torch.softmax import (
    accumulation_type,
    allowed_keys,
    biased,
    capped,
    log_sum_exp,
    probabilities,
    rows_of,
)

__all__ = ["backward", "empty_context", "forward", "with_kernel_weights", "with_weights"]

BLOCK_SCORES = 2**24
"""Scores of a block of query rows: 64 MiB in float32, large enough that a product fills a device."""


def empty_context(q: Tensor, value_size: int) -> Tensor:
    """[B,H,Sq,Dv] in q's memory order: where q's heads are closer together than its rows, the context's are too."""
    batch, heads, queries, _ = q.shape
    if q.stride(1) < q.stride(2):
        return q.new_empty((batch, queries, heads, value_size)).transpose(1, 2)
    return q.new_empty((batch, heads, queries, value_size))


def with_weights(
    q: Tensor, k: Tensor, v: Tensor, operands: Operands, config: FusedAttention, dropout_p: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Context [B,H,Sq,Dv] and weights [B,H,Sq,Sk] of q's type, differentiable by PyTorch as often as one likes. With
    dropout the weights are those that were used, as torch.nn.MultiheadAttention returns them."""
    wide = accumulation_type(q.dtype)
    s = biased(capped(_scores(q.to(wide), k.to(wide)), config), operands[Role.BIAS])
    weights = probabilities(s, allowed_keys(s, q.shape[2], config, operands), config.empty_rows)
    weights = functional.dropout(weights, dropout_p) if dropout_p else weights
    return _weigh(weights, v.to(wide)).to(q.dtype), weights.to(q.dtype)


def with_kernel_weights(
    q: Tensor, k: Tensor, v: Tensor, operands: Operands, config: FusedAttention
) -> tuple[Tensor, Tensor]:
    """The same by PyTorch's products in q's own type with the operator `masked_softmax` between them, differentiable
    once. The product scales the scores, so that those of half types do not overflow before."""
    # PyTorch's products times 0 are not to be relied on (2.11 on the CPU in bfloat16: what was in memory).
    in_product, in_softmax = (config.scale, 1.0) if config.scale else (1.0, 0.0)
    scores = _scaled_scores(q, k, in_product)
    softmax = MaskedSoftmax(
        operands=config.operands,
        scale=in_softmax,
        causal=config.causal,
        window_left=config.window_left,
        window_right=config.window_right,
        softcap=config.softcap,
        empty_rows=config.empty_rows,
    )
    weights = call_softmax(scores, operands, softmax)
    return _weigh(weights, v), weights


def forward(
    q: Tensor, k: Tensor, v: Tensor, operands: Operands, config: FusedAttention, with_log_sum_exp: bool
) -> tuple[Tensor, Tensor]:
    """Context [B,H,Sq,Dv] of q's type and memory order; log-sum-exp [B,H,Sq], or [0] where it is not wanted."""
    wide = accumulation_type(q.dtype)
    k, v = k.to(wide), v.to(wide)
    context = empty_context(q, v.shape[3])
    logarithms = q.new_empty(q.shape[:3] if with_log_sum_exp else (0,), dtype=wide)
    for rows in _row_blocks(q, k):
        s = biased(capped(_scores(q[:, :, rows].to(wide), k), config), rows_of(operands[Role.BIAS], rows))
        allowed = allowed_keys(s, q.shape[2], config, operands, rows)
        context[:, :, rows] = _weigh(probabilities(s, allowed, config.empty_rows), v).to(q.dtype)
        if with_log_sum_exp:
            logarithms[:, :, rows] = log_sum_exp(s, allowed)
    return context, logarithms


def backward(
    grad_context: Tensor,
    grad_log_sum_exp: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    operands: Operands,
    config: FusedAttention,
    with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and, `with_bias`, of the bias, each of its tensor's shape and type; else the last is [0].

    The weights are computed again from the scores rather than from the log-sum-exp of the forward pass: that may have
    been made in TF32, and weights of two precisions would not add up to one.
    grad_log_sum_exp  [B,H,Sq], or [0] where it was no result.
    """
    wide = accumulation_type(q.dtype)
    wide_k, wide_v = k.to(wide), v.to(wide)
    grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(wide_k), torch.zeros_like(wide_v)
    bias = operands[Role.BIAS] if with_bias else None
    grad_bias = q.new_zeros(0) if bias is None else torch.zeros_like(bias, dtype=wide)
    for rows in _row_blocks(q, k):
        wide_q, grad = q[:, :, rows].to(wide), grad_context[:, :, rows].to(wide)
        grad_logarithms = grad_log_sum_exp[:, :, rows] if grad_log_sum_exp.numel() else None
        c = capped(_scores(wide_q, wide_k), config)
        s = biased(c, rows_of(operands[Role.BIAS], rows))
        allowed = allowed_keys(s, q.shape[2], config, operands, rows)
        weights = probabilities(s, allowed, config.empty_rows)
        grad_s = _softmax_gradient(weights, _scores(grad, wide_v), grad_logarithms, allowed, config.empty_rows)
        if bias is not None:
            _add_reduced(rows_of(grad_bias, rows), grad_s)
        grad_x = grad_s * config.scale
        if config.softcap:
            grad_x = grad_x * (1 - (c / config.softcap).square())
        grad_q[:, :, rows] = _weigh(grad_x, wide_k).to(q.dtype)
        grad_k += _collect(grad_x, wide_q, k.shape[1])
        grad_v += _collect(weights, grad, k.shape[1])
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), grad_bias if bias is None else grad_bias.to(bias.dtype)


def _softmax_gradient(
    weights: Tensor, grad_weights: Tensor, grad_logarithms: Tensor | None, allowed: Tensor, empty_rows: str
) -> Tensor:
    """The gradient of s: p * (g - sum(p * g)), and p times that of the log-sum-exp. Where a row has no allowed key its
    log-sum-exp is constant, and so are its weights if they are zeros or uniform."""
    centred = grad_weights - (weights * grad_weights).sum(-1, keepdim=True)
    if grad_logarithms is None and empty_rows != EmptyRows.UNIFORM:
        return weights * centred
    filled = allowed.any(-1, keepdim=True)
    if grad_logarithms is not None:
        centred = centred + torch.where(filled, grad_logarithms[..., None], 0.0)
    grad_s = weights * centred
    return torch.where(filled, grad_s, 0.0) if empty_rows == EmptyRows.UNIFORM else grad_s


def _row_blocks(q: Tensor, k: Tensor) -> Iterator[slice]:
    """Slices of the query rows, each of at most BLOCK_SCORES scores, or of one row."""
    batch, heads, queries, _ = q.shape
    length = max(1, BLOCK_SCORES // max(1, batch * heads * k.shape[2]))
    for start in range(0, queries, length):
        yield slice(start, min(start + length, queries))


def _by_key_head(rows: Tensor, kv_heads: int) -> Tensor:
    """[B,H,R,X] as [B,Hk,G*R,X]: the rows of all query heads that share a key head, below each other."""
    batch, heads, count, size = rows.shape
    return rows.reshape(batch, kv_heads, heads // max(kv_heads, 1) * count, size)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """q [B,H,R,D] times k [B,Hk,Sk,D]: [B,H,R,Sk], without copies of k for the heads that share it."""
    return (_by_key_head(q, k.shape[1]) @ k.transpose(2, 3)).reshape(*q.shape[:3], k.shape[2])


def _scaled_scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """`scale` times the same, rounded once."""
    rows, keys = _by_key_head(q, k.shape[1]).flatten(0, 1), k.transpose(2, 3).flatten(0, 1)
    scaled = torch.baddbmm(rows.new_empty(1, 1, 1), rows, keys, beta=0, alpha=scale)
    return scaled.reshape(*q.shape[:3], k.shape[2])


def _weigh(weights: Tensor, v: Tensor) -> Tensor:
    """weights [B,H,R,Sk] times v [B,Hk,Sk,X]: [B,H,R,X]."""
    return (_by_key_head(weights, v.shape[1]) @ v).reshape(*weights.shape[:3], v.shape[3])


def _collect(weights: Tensor, rows: Tensor, kv_heads: int) -> Tensor:
    """The transposed product, [B,Hk,Sk,X], summed over the rows [B,H,R,X] of all heads that share a key head."""
    return _by_key_head(weights, kv_heads).transpose(2, 3) @ _by_key_head(rows, kv_heads)


def _add_reduced(total: Tensor, grad_s: Tensor) -> None:
    """Adds to `total`, which broadcasts to grad_s, the sum over what it is broadcast along."""
    total += grad_s.sum_to_size(total.shape)

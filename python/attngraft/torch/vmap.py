"""torch.vmap of the attention operators: the new dimension is folded into the batch, so that one launch does it all.

A tensor [B, ...] that has no new dimension is repeated along it by a stride of 0; only where B is more than 1 does
folding copy it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["backward", "forward"]

_SCORE_RANK = 4

Dims = tuple[int | None, ...]


def forward(info: Any, in_dims: Dims, *args: Any) -> tuple[tuple[Tensor, Tensor], Dims]:
    """The rule of `fused_attention`, as torch.library.register_vmap wants it."""
    size = info.batch_size
    batch = _batch_of(args[0], in_dims[0])
    heads = [_folded(tensor, dim, size) for tensor, dim in zip(args[:3], in_dims, strict=False)]
    masks = [_folded_mask(mask, dim, size, batch) for mask, dim in zip(args[3:5], in_dims[3:], strict=False)]
    counts = [_folded(tensor, dim, size) for tensor, dim in zip(args[5:7], in_dims[5:], strict=False)]
    context, logarithms = torch.ops.attngraft.fused_attention(*heads, *masks, *counts, *args[7:])
    with_log_sum_exp = args[-1]
    if not with_log_sum_exp:
        return (_unfolded(context, size, batch), logarithms), (0, None)
    return (_unfolded(context, size, batch), _unfolded(logarithms, size, batch)), (0, 0)


def backward(info: Any, in_dims: Dims, *args: Any) -> tuple[tuple[Tensor, ...], Dims]:
    """The rule of `fused_attention_backward`: every gradient has the new dimension, also of tensors that have not."""
    size, with_bias = info.batch_size, args[-1]
    batch = _batch_of(args[2], in_dims[2])
    grad_context, grad_logarithms = args[0], args[1]
    grads = [_folded(grad_context, in_dims[0], size)]
    has_logarithms = grad_logarithms.dim() - (in_dims[1] is not None) > 1
    grads.append(_folded(grad_logarithms, in_dims[1], size) if has_logarithms else args[0].new_zeros(0))
    heads = [_folded(tensor, dim, size) for tensor, dim in zip(args[2:5], in_dims[2:], strict=False)]
    bias = _folded_mask(args[5], in_dims[5], size, batch, whole=with_bias)
    keep = _folded_mask(args[6], in_dims[6], size, batch)
    counts = [_folded(tensor, dim, size) for tensor, dim in zip(args[7:9], in_dims[7:], strict=False)]
    *found, grad_bias = torch.ops.attngraft.fused_attention_backward(*grads, *heads, bias, keep, *counts, *args[9:])
    found = [_unfolded(grad, size, batch) for grad in found]
    if not with_bias:
        return (*found, grad_bias), (0, 0, 0, None)
    shape = _without(args[5].shape, in_dims[5])
    aligned = (1,) * (_SCORE_RANK - len(shape)) + shape
    grad_bias = _unfolded(grad_bias, size, batch).sum_to_size((size, *aligned)).reshape(size, *shape)
    return (*found, grad_bias), (0, 0, 0, 0)


def _without(shape: tuple[int, ...], dim: int | None) -> tuple[int, ...]:
    return tuple(shape) if dim is None else (*shape[:dim], *shape[dim + 1 :])


def _batch_of(q: Tensor, dim: int | None) -> int:
    return _without(q.shape, dim)[0]


def _in_front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _folded(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """[B, ...], with or without the new dimension at `dim`, as [size * B, ...]."""
    return None if tensor is None else _in_front(tensor, dim, size).flatten(0, 1)


def _folded_mask(mask: Tensor | None, dim: int | None, size: int, batch: int, whole: bool = False) -> Tensor | None:
    """The same of a mask that broadcasts to [B, H, Sq, Sk]. One that is the same for all stays so, unless `whole`."""
    if mask is None:
        return None
    rank = mask.dim() - (dim is not None)
    is_shared = dim is None and (rank < _SCORE_RANK or mask.shape[0] == 1)
    if is_shared and not whole:
        return mask
    mask = _in_front(mask, dim, size)
    mask = mask.reshape(size, *(1,) * (_SCORE_RANK - rank), *mask.shape[1:])
    return mask.expand(size, batch, *mask.shape[2:]).flatten(0, 1)


def _unfolded(tensor: Tensor, size: int, batch: int) -> Tensor:
    return tensor.unflatten(0, (size, batch))

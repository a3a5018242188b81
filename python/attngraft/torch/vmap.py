"""torch.vmap of the operators: the new dimension is folded into the batch, so that one launch does it all.

A tensor [B, ...] that has no new dimension is repeated along it by a stride of 0; only where B is more than 1 does
folding copy it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attngraft.contract import MIN_RANK

__all__ = ["backward", "forward", "softmax_backward", "softmax_forward"]

_HEADS_RANK = 4
"""Of the scores that q [B,H,Sq,D] and k make."""

Dims = tuple[int | None, ...]


def forward(info: Any, in_dims: Dims, *args: Any) -> tuple[tuple[Tensor, Tensor], Dims]:
    """The rule of `fused_attention`, as torch.library.register_vmap wants it."""
    size = info.batch_size
    batch = _batch_of(args[0], in_dims[0])
    heads = [_folded(tensor, dim, size) for tensor, dim in zip(args[:3], in_dims, strict=False)]
    masks = [
        _folded_mask(mask, dim, size, batch, _HEADS_RANK) for mask, dim in zip(args[3:5], in_dims[3:], strict=False)
    ]
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
    bias = _folded_mask(args[5], in_dims[5], size, batch, _HEADS_RANK, whole=with_bias)
    keep = _folded_mask(args[6], in_dims[6], size, batch, _HEADS_RANK)
    counts = [_folded(tensor, dim, size) for tensor, dim in zip(args[7:9], in_dims[7:], strict=False)]
    *found, grad_bias = torch.ops.attngraft.fused_attention_backward(*grads, *heads, bias, keep, *counts, *args[9:])
    found = [_unfolded(grad, size, batch) for grad in found]
    if not with_bias:
        return (*found, grad_bias), (0, 0, 0, None)
    return (*found, _unfolded_bias(grad_bias, args[5], in_dims[5], size, batch)), (0, 0, 0, 0)


def softmax_forward(info: Any, in_dims: Dims, *args: Any) -> tuple[Tensor, int]:
    """The rule of `masked_softmax`."""
    size, shape = info.batch_size, _without(args[0].shape, in_dims[0])
    masks = _folded_operands(args[1:5], in_dims[1:5], size, shape)
    found = torch.ops.attngraft.masked_softmax(_folded_scores(args[0], in_dims[0], size), *masks, *args[5:])
    return found.reshape(size, *shape), 0


def softmax_backward(info: Any, in_dims: Dims, *args: Any) -> tuple[tuple[Tensor, Tensor], Dims]:
    """The rule of `masked_softmax_backward`: every gradient has the new dimension, also of tensors that have not."""
    size, with_bias, shape = info.batch_size, args[-1], _without(args[1].shape, in_dims[1])
    tensors = [_folded_scores(tensor, dim, size) for tensor, dim in zip(args[:3], in_dims, strict=False)]
    masks = _folded_operands(args[3:7], in_dims[3:7], size, shape, whole_bias=with_bias)
    grad_scores, grad_bias = torch.ops.attngraft.masked_softmax_backward(*tensors, *masks, *args[7:])
    grad_scores = grad_scores.reshape(size, *shape)
    if not with_bias:
        return (grad_scores, grad_bias), (0, None)
    batch = shape[0] if len(shape) > MIN_RANK else 1
    return (grad_scores, _unfolded_bias(grad_bias, args[3], in_dims[3], size, batch)), (0, 0)


def _without(shape: tuple[int, ...], dim: int | None) -> tuple[int, ...]:
    return tuple(shape) if dim is None else (*shape[:dim], *shape[dim + 1 :])


def _batch_of(q: Tensor, dim: int | None) -> int:
    return _without(q.shape, dim)[0]


def _in_front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _folded(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """[B, ...], with or without the new dimension at `dim`, as [size * B, ...]."""
    return None if tensor is None else _in_front(tensor, dim, size).flatten(0, 1)


def _folded_scores(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """The same of a tensor of the scores' shape; [Sq, Sk] is a batch of one."""
    if tensor is None or tensor.dim() - (dim is not None) > MIN_RANK:
        return _folded(tensor, dim, size)
    return _in_front(tensor, dim, size)


def _folded_operands(
    operands: Sequence[Tensor | None], in_dims: Dims, size: int, shape: tuple[int, ...], whole_bias: bool = False
) -> list[Tensor | None]:
    """The contract's roles for scores of that shape, without the new dimension."""
    batch, rank = (shape[0], len(shape)) if len(shape) > MIN_RANK else (1, MIN_RANK + 1)
    bias = _folded_mask(operands[0], in_dims[0], size, batch, rank, whole=whole_bias)
    keep = _folded_mask(operands[1], in_dims[1], size, batch, rank)
    return [bias, keep, *(_folded(counts, dim, size) for counts, dim in zip(operands[2:], in_dims[2:], strict=True))]


def _folded_mask(
    mask: Tensor | None, dim: int | None, size: int, batch: int, rank: int, whole: bool = False
) -> Tensor | None:
    """The same of a mask that broadcasts to scores of that rank, [B, ..., Sq, Sk]. One that is the same for all stays
    so, unless `whole`."""
    if mask is None:
        return None
    own_rank = mask.dim() - (dim is not None)
    is_shared = dim is None and (own_rank < rank or mask.shape[0] == 1)
    if is_shared and not whole:
        return mask
    mask = _in_front(mask, dim, size)
    mask = mask.reshape(size, *(1,) * (rank - own_rank), *mask.shape[1:])
    return mask.expand(size, batch, *mask.shape[2:]).flatten(0, 1)


def _unfolded(tensor: Tensor, size: int, batch: int) -> Tensor:
    return tensor.unflatten(0, (size, batch))


def _unfolded_bias(grad: Tensor, bias: Tensor, dim: int | None, size: int, batch: int) -> Tensor:
    """The gradient of a bias that was folded as a whole, in the bias's own shape behind the new dimension."""
    shape = _without(bias.shape, dim)
    aligned = (1,) * (grad.dim() - len(shape)) + shape
    return _unfolded(grad, size, batch).sum_to_size((size, *aligned)).reshape(size, *shape)

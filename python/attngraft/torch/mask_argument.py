"""The `mask` of masked_softmax: one tensor in the shapes that models have, as the contract's `keep` or `bias`."""

from __future__ import annotations

import torch
from torch import Tensor

from attngraft.contract import MIN_RANK, Role
from attngraft.errors import ContractError
from attngraft.torch.autocast import bias_in_autocast
from attngraft.torch.checks import Operands, check_mask_type

__all__ = ["with_mask"]


def with_mask(operands: Operands, mask: Tensor, scores: Tensor) -> Operands:
    """The operands with the mask among them. Raises ContractError where its role is taken, and for a mask whose type or
    shape has no meaning, or two."""
    role = Role.BIAS if mask.is_floating_point() else Role.KEEP
    if operands[role] is not None:
        kind = "an additive" if role == Role.BIAS else "a boolean or integer"
        raise ContractError(f"mask: {kind} mask is what {role} is, which is given too; give one of them")
    if role == Role.BIAS:
        mask = bias_in_autocast(scores, mask)
    check_mask_type("mask", role, mask, scores.dtype)
    return {**operands, role: _aligned(mask, scores)}


def _aligned(mask: Tensor, scores: Tensor) -> Tensor:
    """The mask as a view that broadcasts to the scores by NumPy's rules."""
    shape, (queries, keys) = tuple(mask.shape), tuple(scores.shape[-2:])
    batch = scores.shape[0] if scores.dim() > MIN_RANK else 1
    if mask.dim() == MIN_RANK:
        of_batch, of_queries = _broadcasts(shape, (batch, keys)), _broadcasts(shape, (queries, keys))
        if of_batch and of_queries and scores.dim() > MIN_RANK and not _is(shape[0], 1):
            raise _ambiguous(shape, scores.dim())
        if of_queries:
            return mask
        if of_batch:
            return _behind_batch(mask, scores.dim())
    if mask.dim() == scores.dim() and _broadcasts(shape, tuple(scores.shape)):
        return mask
    if mask.dim() == MIN_RANK + 1 < scores.dim() and _broadcasts(shape, (batch, queries, keys)):
        return _behind_batch(mask, scores.dim())
    legal = [f"[{queries}, {keys}]", f"[{batch}, {keys}]", f"[{batch}, {queries}, {keys}]", str(list(scores.shape))]
    raise ContractError(
        f"mask: shape {list(shape)} is none of {', '.join(dict.fromkeys(legal))}, nor broadcasts to the last; give one "
        "of these, or bias or keep for others"
    )


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    return all(_is(size, 1) or _is(size, wanted) for size, wanted in zip(shape, target, strict=True))


def _is(size: int, wanted: int) -> bool:
    """Whether two sizes are equal: where torch.export has symbols for them, in its example. Asking the symbols would
    bind the exported program to sizes that differ wherever these do; that those agree which must is checked later."""
    return _number(size) == _number(wanted)


def _number(size: int) -> int:
    hint = size.node.hint if isinstance(size, torch.SymInt) else size
    return size if hint is None else hint


def _behind_batch(mask: Tensor, rank: int) -> Tensor:
    """[B, ...] with ones behind the batch dimension, up to the rank of the scores."""
    for _ in range(rank - mask.dim()):
        mask = mask.unsqueeze(1)
    return mask


def _ambiguous(shape: tuple[int, ...], rank: int) -> ContractError:
    count, keys = shape
    ones = [1] * (rank - MIN_RANK)
    return ContractError(
        f"mask: shape {list(shape)} is [Sq, Sk] and [B, Sk] at once; give {[*ones, count, keys]} if it is a row for "
        f"each query, {[count, *ones, keys]} if it is one for each batch entry"
    )

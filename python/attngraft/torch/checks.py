"""Which tensors the functions of attngraft.torch accept. Out: nothing, or a ContractError in one line."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attngraft.contract import KEEP_DTYPES, MAX_HEAD_SIZE, MAX_RANK, MIN_RANK, SCORE_DTYPES, Role
from attngraft.errors import ContractError

__all__ = [
    "Operands",
    "attention_kernel_cannot",
    "check_attention",
    "check_mask_type",
    "check_softmax",
    "name_of",
    "softmax_kernel_cannot",
]

Operands = Mapping[str, Tensor | None]
"""The contract's roles, all of them, with their tensors."""

_HEADS_RANK = 4

_FLOAT_TYPES = (*SCORE_DTYPES, "float64")
"""float64 is for PyTorch operations alone: gradient checks want it."""


def name_of(dtype: torch.dtype) -> str:
    """The contract's name of a type: `float16` of torch.float16."""
    return str(dtype).removeprefix("torch.")


def check_attention(q: Tensor, k: Tensor, v: Tensor, operands: Operands) -> None:
    """Raises ContractError unless the tensors are q [B,H,Sq,D], k [B,Hk,Sk,D], v [B,Hk,Sk,Dv] of one type and device,
    and the operands what the contract says of their roles."""
    if q.dim() != _HEADS_RANK:
        raise ContractError(f"q: shape {list(q.shape)} is not [B, H, Sq, D]; give four dimensions")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_float(name, tensor)
        if tensor.dtype != q.dtype:
            raise ContractError(f"{name}: {name_of(tensor.dtype)} is not q's type, {name_of(q.dtype)}; cast it")
        _check_device(name, tensor, "q", q)
    _check_heads(q, k, v)
    _check_operands(operands, "q", q, (*q.shape[:3], k.shape[2]))


def check_softmax(scores: Tensor, operands: Operands) -> None:
    """Raises ContractError unless the scores are [..., Sq, Sk] of rank 2 to 6, and the operands what the contract says
    of their roles."""
    if not MIN_RANK <= scores.dim() <= MAX_RANK:
        raise ContractError(
            f"scores: shape {list(scores.shape)} is not [..., Sq, Sk]; give {MIN_RANK} to {MAX_RANK} dimensions"
        )
    _check_float("scores", scores)
    _check_operands(operands, "scores", scores, tuple(scores.shape))


def check_mask_type(name: str, role: str, mask: Tensor, scores_type: torch.dtype) -> None:
    """Raises ContractError, calling the mask `name`, unless its type is one that the role has beside such scores."""
    legal = (name_of(scores_type), "float32") if role == Role.BIAS else KEEP_DTYPES
    if name_of(mask.dtype) not in legal:
        raise ContractError(f"{name}: {name_of(mask.dtype)} is not one of {', '.join(dict.fromkeys(legal))}; cast it")


def attention_kernel_cannot(q: Tensor, v: Tensor) -> str | None:
    """Why the fused kernel does not take tensors of this type and head size, wherever they are; None if it does."""
    if name_of(q.dtype) not in SCORE_DTYPES:
        return f"q: {name_of(q.dtype)} is not one of {', '.join(SCORE_DTYPES)}"
    if not (1 <= q.shape[3] <= MAX_HEAD_SIZE and 1 <= v.shape[3] <= MAX_HEAD_SIZE):
        return f"head sizes {q.shape[3]} and {v.shape[3]} are not both in 1 to {MAX_HEAD_SIZE}"
    return None


def softmax_kernel_cannot(dtype: torch.dtype) -> str | None:
    """Why the softmax kernel does not take scores of this type, wherever they are; None if it does."""
    return None if name_of(dtype) in SCORE_DTYPES else f"{name_of(dtype)} scores are not {', '.join(SCORE_DTYPES)}"


def _check_float(name: str, tensor: Tensor) -> None:
    if name_of(tensor.dtype) not in _FLOAT_TYPES:
        raise ContractError(f"{name}: {name_of(tensor.dtype)} is not one of {', '.join(_FLOAT_TYPES)}")


def _check_device(name: str, tensor: Tensor, first_name: str, first: Tensor) -> None:
    if tensor.device != first.device:
        raise ContractError(f"{name}: is on {tensor.device}, {first_name} on {first.device}; move it there")


def _check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    batch, heads, _, size = q.shape
    if k.dim() != _HEADS_RANK or k.shape[0] != batch or k.shape[3] != size:
        raise ContractError(f"k: shape {list(k.shape)} is not [B, Hk, Sk, D] with B {batch} and D {size}, as q has")
    if v.dim() != _HEADS_RANK or v.shape[:3] != k.shape[:3]:
        raise ContractError(f"v: shape {list(v.shape)} is not [B, Hk, Sk, Dv] with {list(k.shape[:3])} first, as k has")
    if heads and (k.shape[1] == 0 or heads % k.shape[1]):
        raise ContractError(f"q: {heads} heads are no multiple of k's {k.shape[1]}")


def _check_operands(operands: Operands, first_name: str, first: Tensor, scores: tuple[int, ...]) -> None:
    """Of scores of that shape; the tensor `first`, so called in messages, has their type and device."""
    for role in (Role.BIAS, Role.KEEP):
        if (mask := operands[role]) is not None:
            check_mask_type(role, role, mask, first.dtype)
            _check_device(role, mask, first_name, first)
            _check_broadcast(role, mask, scores)
    for role in (Role.KV_LENGTHS, Role.KV_STARTS):
        if (counts := operands[role]) is not None:
            _check_device(role, counts, first_name, first)
            _check_counts(role, counts, scores[0] if len(scores) > MIN_RANK else 1)


def _check_broadcast(role: str, mask: Tensor, scores: tuple[int, ...]) -> None:
    trailing = scores[len(scores) - mask.dim() :] if mask.dim() <= len(scores) else ()
    if len(trailing) != mask.dim() or any(a not in (1, b) for a, b in zip(mask.shape, trailing, strict=True)):
        raise ContractError(f"{role}: shape {list(mask.shape)} does not broadcast to the scores {list(scores)}")


def _check_counts(role: str, counts: Tensor, batch: int) -> None:
    if counts.dtype != torch.int32:
        raise ContractError(f"{role}: {name_of(counts.dtype)} is not int32; cast it")
    if tuple(counts.shape) != (batch,):
        raise ContractError(f"{role}: shape {list(counts.shape)} is not [{batch}], one value a batch entry")

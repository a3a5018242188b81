"""What torch.autocast means for attention: q, k and v in its type, as PyTorch's own attention has them.

A bias may stay float32, since that loses nothing; where there are float64 tensors, autocast changes none. The scores of
a masked softmax stay as they are: PyTorch widens those of its own softmax to float32, which this one computes in.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

__all__ = ["bias_in_autocast", "in_autocast_types", "without_autocast"]

KINDS = ("cpu", "cuda")
"""Kinds of devices on which autocast is minded."""


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Inside, PyTorch operations on that kind of device keep the types of their tensors."""
    if device.type in KINDS:
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def in_autocast_types(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The tensors in the type of the autocast region around; the same tensors where there is none."""
    kind = q.device.type
    if not _is_on(kind) or any(tensor.dtype == torch.float64 for tensor in (q, k, v)):
        return q, k, v, bias
    dtype = torch.get_autocast_dtype(kind)
    if bias is not None and bias.dtype != torch.float32:
        bias = bias.to(dtype)
    return q.to(dtype), k.to(dtype), v.to(dtype), bias


def bias_in_autocast(scores: Tensor, bias: Tensor) -> Tensor:
    """A bias that goes with the scores: inside an autocast region one of another half type is widened to float32, since
    there the types are not the caller's choice."""
    is_other_half = bias.dtype in (torch.float16, torch.bfloat16) and bias.dtype != scores.dtype
    return bias.float() if is_other_half and _is_on(scores.device.type) else bias


def _is_on(kind: str) -> bool:
    return kind in KINDS and torch.is_autocast_enabled(kind)

"""What torch.autocast means for attention: q, k and v in its type, as PyTorch's own attention has them.

A bias may stay float32, since that loses nothing; where there are float64 tensors, autocast changes none.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

__all__ = ["in_autocast_types", "without_autocast"]

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
    is_on = kind in KINDS and torch.is_autocast_enabled(kind)
    if not is_on or any(tensor.dtype == torch.float64 for tensor in (q, k, v)):
        return q, k, v, bias
    dtype = torch.get_autocast_dtype(kind)
    if bias is not None and bias.dtype != torch.float32:
        bias = bias.to(dtype)
    return q.to(dtype), k.to(dtype), v.to(dtype), bias

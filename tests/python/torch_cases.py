"""The cases of attention_cases.py as PyTorch's tensors, on any device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from attention_cases import DTYPES, AttentionCase

__all__ = ["arguments_of", "to_numpy", "to_torch", "tensors_of"]


def to_torch(array: np.ndarray, device: str = "cpu") -> torch.Tensor:
    """The same values with the same strides; bfloat16 goes as its bits, since NumPy and PyTorch share no such type."""
    if array.dtype == DTYPES["bfloat16"]:
        return to_torch(array.view(np.int16), device).view(torch.bfloat16)
    tensor = torch.from_numpy(array)
    if device == "cpu":
        return tensor
    there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return there.copy_(tensor)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(DTYPES["bfloat16"])
    return tensor.numpy()


def tensors_of(case: AttentionCase, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v of a case."""
    q, k, v = (to_torch(array, device) for array in (case.q, case.k, case.v))
    return q, k, v


def arguments_of(case: AttentionCase, device: str = "cpu") -> dict[str, Any]:
    """The masks and scalars of a case as attngraft.torch has them."""
    config = case.config
    return {
        **{role: to_torch(array, device) for role, array in case.operands.items()},
        "causal": config.causal,
        "window": (config.window_left, config.window_right),
        "scale": config.scale,
        "softcap": config.softcap,
        "empty_rows": config.empty_rows,
        "exact": bool(config.exact),
    }

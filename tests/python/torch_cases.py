"""The cases of attention_cases.py as PyTorch's tensors on any device, and the operators over stand-ins for kernels."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from attention_cases import AttentionCase
from emulated_device import library_path
from mask_abi import DTYPES

from attngraft.contract import CausalMode, EmptyRows, MaskConfig

__all__ = [
    "arguments_of",
    "arguments_of_mask",
    "elsewhere",
    "load_emulated",
    "scalars_of",
    "tensors_of",
    "to_numpy",
    "to_torch",
]


class MaskedCase(Protocol):
    """What the cases of both operators have."""

    @property
    def config(self) -> MaskConfig: ...

    @property
    def operands(self) -> dict[str, np.ndarray]: ...


def load_emulated() -> None:
    """Gives torch.ops.attngraft_emulated. Fails where it was not built."""
    built = library_path("torch")
    assert built.is_file(), f"{built} was not built: CMake found no PyTorch beside the build's Python"
    torch.ops.load_library(str(built))


def elsewhere(tensor: torch.Tensor, scores: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    """The same tensor, which broadcasts to the scores, in other memory: expanded by strides of 0, with rows for
    columns, or a view of a larger one."""
    way = rng.integers(4)
    if way == 0:
        return tensor.expand(torch.broadcast_shapes(tensor.shape, scores))
    if way == 1 and tensor.dim() >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if way == 2:
        return torch.nn.functional.pad(tensor, (3, 2))[..., 3:-2]
    return tensor


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
    """The masks and scalars of a case as attngraft.torch's attention functions have them."""
    return {**arguments_of_mask(case, device), "exact": bool(case.config.exact)}


def arguments_of_mask(case: MaskedCase, device: str = "cpu") -> dict[str, Any]:
    """The same of what both operators' cases have."""
    config = case.config
    return {
        **{role: to_torch(array, device) for role, array in case.operands.items()},
        "causal": config.causal,
        "window": (config.window_left, config.window_right),
        "scale": config.scale,
        "softcap": config.softcap,
        "empty_rows": config.empty_rows,
    }


def scalars_of(config: MaskConfig) -> tuple[Any, ...]:
    """The scalars of a mask as the operators' schemas have them."""
    causal, empty_rows = CausalMode.ALL.index(config.causal), EmptyRows.ALL.index(config.empty_rows)
    return config.scale, causal, config.window_left, config.window_right, config.softcap, empty_rows

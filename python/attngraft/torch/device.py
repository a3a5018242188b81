"""Which devices the kernels run on, and what the functions say where they do not."""

from __future__ import annotations

import torch

from attngraft.errors import ContractError, MissingDependency
from attngraft.torch.library import kernel_is_missing

__all__ = ["device_cannot", "require_kernel"]

LEAST_CAPABILITY = 80
"""8.0, ten times the number: the first with the bfloat16 and TF32 matrix products that the kernels are made of."""

_HAVE_OPERATIONS = ("cpu", "meta")
"""Kinds of devices on which PyTorch operations stand in for the kernels."""


def device_cannot(device: torch.device) -> str | None:
    """Why the kernels do not run on a device; None if they do."""
    if device.type != "cuda":
        return f"the tensors are on {device}, the kernels are for CUDA devices"
    capability = _capability(device.index)
    if capability < LEAST_CAPABILITY:
        return f"{device} has compute capability {capability / 10}, the kernels need {LEAST_CAPABILITY / 10} or more"
    return None


def require_kernel(function: str, device: torch.device, tensors_cannot: str | None, advice: str) -> None:
    """Raises where an operator has no implementation: ContractError for such tensors or such a device,
    MissingDependency without the library. `tensors_cannot` says why the kernel does not take the tensors, if so."""
    if device.type in _HAVE_OPERATIONS:
        return
    if why := device_cannot(device) or tensors_cannot:
        raise ContractError(f"{function}: {why}; {advice}")
    if why := kernel_is_missing():
        raise MissingDependency(f"{function}: {why}; {advice}")


def _capability(index: int | None) -> int:
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor


# Graphs are compiled for the device of their tensors. torch.compiler.assume_constant_result does just this, but imports
# the whole compiler: a second, for everyone who imports attngraft.torch.
_capability._dynamo_marked_constant = True  # type: ignore[attr-defined]

"""Which devices the fused kernel runs on."""

from __future__ import annotations

import torch

__all__ = ["device_cannot"]

LEAST_CAPABILITY = 80
"""8.0, ten times the number: the first with the bfloat16 and TF32 matrix products that the kernels are made of."""


def device_cannot(device: torch.device) -> str | None:
    """Why the kernel does not run on a device; None if it does."""
    if device.type != "cuda":
        return f"q is on {device}, the kernel is for CUDA devices"
    capability = _capability(device.index)
    if capability < LEAST_CAPABILITY:
        return f"{device} has compute capability {capability / 10}, the kernel needs {LEAST_CAPABILITY / 10} or more"
    return None


def _capability(index: int | None) -> int:
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor


# Graphs are compiled for the device of their tensors. torch.compiler.assume_constant_result does just this, but imports
# the whole compiler: a second, for everyone who imports attngraft.torch.
_capability._dynamo_marked_constant = True  # type: ignore[attr-defined]

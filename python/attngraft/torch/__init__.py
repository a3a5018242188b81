"""Attention in PyTorch over attngraft's kernels, with the contract's masks (attngraft.contract).

    fused_attention(q, k, v, ...)   the fused kernel on CUDA, the same by PyTorch operations on the CPU
    attention(q, k, v, ...)         the front door: the kernel where it applies, else PyTorch's own ways
    path_of(q, k, v, ...)           which of them `attention` takes, and why
    masked_softmax(scores, ...)     scale, masks and softmax in one kernel on CUDA, by PyTorch operations on the CPU
    patch(model), unpatch(model)    Hugging Face models on `attention`, and back
    register_attention()            the same by attn_implementation="attngraft"

Importing this package imports PyTorch, and loads libattngraft_torch.so where it is installed.
"""

from __future__ import annotations

from attngraft.errors import MissingDependency

try:
    import torch as _torch
except ImportError as error:
    raise MissingDependency(
        f"attngraft.torch needs PyTorch, which cannot be imported ({error}); pip install 'torch>=2.6'"
    ) from error

from attngraft.torch.front_door import Path, attention, path_of
from attngraft.torch.fused import fused_attention
from attngraft.torch.masked import masked_softmax
from attngraft.torch.patch import patch, register_attention, unpatch

__all__ = [
    "Path",
    "attention",
    "fused_attention",
    "masked_softmax",
    "patch",
    "path_of",
    "register_attention",
    "unpatch",
]

del _torch

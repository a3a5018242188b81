"""How many softmaxes a module computes, counted by running it once in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.zoo.entry import Model

__all__ = ["count_softmaxes"]

SOFTMAX_OPERATORS = ("aten::_softmax", "aten::_log_softmax", "aten::_safe_softmax")
FUSED_PREFIX = "aten::_scaled_dot_product"
"""What scaled_dot_product_attention becomes where PyTorch has a kernel for it; elsewhere it is a plain softmax."""


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.softmaxes = 0

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = function.name().split(".")[0]
        self.softmaxes += name in SOFTMAX_OPERATORS or name.startswith(FUSED_PREFIX)
        return function(*args, **(kwargs or {}))


def count_softmaxes(model: Model) -> tuple[int, int]:
    """Attention softmaxes and other softmaxes of one forward pass on the example inputs."""
    if model.sites is not None:
        return model.sites, model.others
    counter = _Counter()
    run: Callable[..., object] = model.module
    with torch.no_grad(), counter:
        run(*model.inputs.values())
    return counter.softmaxes - model.others, model.others

"""PyTorch's device memory, for tests that say what is copied."""

from __future__ import annotations

from collections.abc import Callable

import torch


def allocations(call: Callable[[], object]) -> int:
    """How often a call asks PyTorch for device memory."""
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    kept = call()
    count = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    del kept
    return count

"""The random cases of the softmax kernels as PyTorch's tensors, on any device."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_cases import arguments_of_mask, to_numpy, to_torch

sys.path.append(str(Path(__file__).parents[1] / "gpu"))

from softmax_cases import (  # noqa: E402
    SCORE_ROUNDING,
    TOLERANCES,
    Case,
    assert_matches,
    largest_score,
    random_case,
)

from attngraft.verify import oracle  # noqa: E402

__all__ = [
    "TOLERANCES",
    "arguments_of_mask",
    "check",
    "gradient_tolerance",
    "random_case",
    "scores_of",
]

GRADIENT_TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""As a share of a gradient's largest element: the rounding of the probabilities, and of the result."""

LEAST_GRADIENT = 1e-2
"""Below it a gradient's tolerance falls no more: what remains there is the rounding of larger terms."""


def scores_of(case: Case, device: str = "cpu") -> Tensor:
    return to_torch(case.scores, device)


def gradient_tolerance(case: Case, gradient: Tensor, summands: float = 1.0) -> float:
    """Absolute, of a gradient whose elements are sums of so many, given what it should be."""
    rounding = GRADIENT_TOLERANCES[scores_of(case).dtype] + SCORE_ROUNDING * largest_score(case)
    size = gradient.abs().max().item() if gradient.numel() else 0.0
    return rounding * max(LEAST_GRADIENT if summands == 1 else 1.0, size) * math.sqrt(summands)


def check(probabilities: Tensor, case: Case) -> None:
    """Against the contract's oracle in float64."""
    expected = oracle.masked_softmax(case.scores, case.config, **case.operands)
    assert_matches(to_numpy(probabilities), np.asarray(expected), case)

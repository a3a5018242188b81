"""How texts of different lengths are padded in the benchmarks."""

from __future__ import annotations

import numpy as np

__all__ = ["padding_mask"]

SHORTEST_TEXT = 128
"""Padded sequences are this long or longer, up to the whole length."""


def padding_mask(rng: np.random.Generator, batch: int, sequence: int) -> np.ndarray:
    """bool [batch, sequence]: true for the words of each text, which its padding follows."""
    lengths = rng.integers(SHORTEST_TEXT, sequence, batch, endpoint=True)
    return np.arange(sequence) < lengths[:, None]

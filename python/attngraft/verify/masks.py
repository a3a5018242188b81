"""Attention masks that hurt: padding on either side, holes, a row in which nothing may be attended to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["EMPTY_ROWS", "LEFT_PADDED", "MASK_PATTERNS", "attend_pattern"]

LEFT_PADDED, EMPTY_ROWS = "left-padded", "one row masked"

MASK_PATTERNS = ("full", "right-padded", LEFT_PADDED, "holed", EMPTY_ROWS)
"""What is tried on every model that takes a mask. Left padding and holes break fusions that reduce the mask to a
length; a wholly masked row is where fillings with -inf and with finite values differ."""


def attend_pattern(pattern: str, shape: tuple[int, ...], generator: np.random.Generator) -> npt.NDArray[np.bool_]:
    """True where a key may be attended to. The last axis counts keys; the rows of the others differ in their padding.

    For "one row masked" the last index of the first axis is masked as a whole, the others as for "right-padded".
    """
    attend = np.ones(shape, dtype=bool)
    if not shape or attend.size == 0 or pattern == "full":
        return attend
    keys = shape[-1]
    first = np.arange(shape[0]).reshape((-1,) + (1,) * (len(shape) - 1)) if len(shape) > 1 else np.zeros(1, dtype=int)
    index = np.arange(keys)
    # Row 0 is padded by half, later rows by less, so that the lengths in a batch differ.
    padding = np.maximum(keys // (2 + first), 0)
    if pattern == "holed":
        attend &= generator.random(shape) < 0.6
        attend[..., 0] = True
    elif pattern == LEFT_PADDED:
        attend &= index >= padding
    else:
        attend &= index < keys - padding
    if pattern == EMPTY_ROWS:
        attend[-1 if len(shape) > 1 else slice(None)] = False
    return attend

"""Reading masks for what they are: from the nodes that make a mask to causality, window and padding tensors.

Comes in: a graph and the name of an additive mask or of a condition. Goes out: a MaskMeaning that equals it for every
input, or None when the graph does not prove one.
"""

from attngraft.match.meaning.polynomials import Polynomial
from attngraft.match.meaning.read import (
    constant_integers,
    is_stored_zero_one,
    read_condition,
    read_dims,
    read_mask,
    read_truth,
    slice_bounds,
)
from attngraft.match.meaning.records import MaskMeaning, PaddingMask

__all__ = [
    "MaskMeaning",
    "PaddingMask",
    "Polynomial",
    "constant_integers",
    "is_stored_zero_one",
    "read_condition",
    "read_dims",
    "read_mask",
    "read_truth",
    "slice_bounds",
]

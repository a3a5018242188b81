"""The frame of masks written as ONNX text: the model around one, and inputs that hurt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from meaning_proof import padding_masks
from onnx import ModelProto

from attngraft.contract import CausalMode
from attngraft.match.meaning import MaskMeaning, PaddingMask

INFINITY = float("inf")
LOWEST = float(np.finfo(np.float32).min)
PADDING = PaddingMask("padding", (1, 2))
SIZES = ((2, 1, 1), (3, 5, 5), (2, 3, 7), (1, 7, 3), (2, 1, 6))
"""Batch, queries, keys."""


@dataclass(frozen=True)
class Mask:
    """ONNX text that makes `mask` from q [B, 2, Sq, 4], k [B, 2, Sk, 4] and padding [B, Sk], and what it means.

    square    the graph is valid, or its meaning provable, only for as many queries as keys: one symbol for both.
    """

    text: str
    meaning: MaskMeaning | None
    square: bool = False
    padding: str = "int64"
    constants: Mapping[str, object] = field(default_factory=dict)

    def model(self) -> ModelProto:
        keys = "S" if self.square else "T"
        model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        masks (float[B,2,S,4] q, float[B,2,{keys},4] k, {self.padding}[B,{keys}] padding) => (float[B,2,S,{keys}] sum)
        {{
            zero = Constant<value_int = 0>()
            one = Constant<value_int = 1>()
            q_shape = Shape(q)
            k_shape = Shape(k)
            two = Constant<value_int = 2>()
            sq = Gather(q_shape, two)
            sk = Gather(k_shape, two)
            nothing = Constant<value_float = 0.0>()
            {self.text}
            transposed = Transpose<perm = [0, 1, 3, 2]>(k)
            raw = MatMul(q, transposed)
            sum = Add(raw, mask)
        }}
        """)
        for name, value in {"axes_1_2": np.array([1, 2]), "axis_0": np.array([0]), **self.constants}.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return model

    def feeds(self) -> list[tuple[dict[str, np.ndarray], tuple[int, ...]]]:
        """Inputs, and the scores' shape, for every kind of padding and several sizes."""
        kind = {"int64": np.int64, "bool": np.bool_, "float": np.float32, "int32": np.int32}[self.padding]
        return [
            (
                {
                    "q": np.zeros((batch, 2, queries, 4), np.float32),
                    "k": np.zeros((batch, 2, keys, 4), np.float32),
                    "padding": padding.astype(kind),
                },
                (batch, 2, queries, keys),
            )
            for batch, queries, keys in SIZES
            if queries == keys or not self.square
            for padding in padding_masks(batch, keys)
        ]


POSITIONS = """
    i_flat = Range(zero, sq, one)
    j = Range(zero, sk, one)
    i = Unsqueeze(i_flat, axis_1)
"""
POSITION_AXES = {"axis_1": np.array([1])}
ALLOWED = """
    b = Cast<to = 9>(padding)
    wide = Unsqueeze(b, axes_1_2)
"""
FILLED = """
    lowest = Constant<value_float = -3.4028234663852886e38>()
    mask = Where(keep, nothing, lowest)
"""
CAUSAL_TOP_LEFT = MaskMeaning(CausalMode.TOP_LEFT, fill=LOWEST)
KEPT = MaskMeaning(paddings=(PaddingMask("keep"),), fill=LOWEST)
INFINITE_CAUSAL = MaskMeaning(CausalMode.TOP_LEFT)
SHAPE = """
    sq1 = Unsqueeze(sq, axis_0)
    sk1 = Unsqueeze(sk, axis_0)
    shape = Concat<axis = 0>(sq1, sk1)
"""


def positions(comparison: str, meaning: MaskMeaning | None, **others) -> Mask:
    """A mask that keeps where a comparison of i and j says so."""
    return Mask(POSITIONS + comparison + FILLED, meaning, constants={**POSITION_AXES, **others})

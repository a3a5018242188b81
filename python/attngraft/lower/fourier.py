"""DFT, which no TensorRT takes, as products with matrices of cosines and sines: n times the arithmetic of a fast
transform, and for the lengths of sequences and hidden sizes a small part of a model.

    X_k = sum over j of x_j * exp(-2 pi i jk / n)        (ONNX's operator DFT; the inverse has +2 pi i, and 1/n)
"""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto, TensorProto

from attngraft.lower.parts import NodeParts

__all__ = ["fourier_products"]


def fourier_products(node: NodeProto, *, rank: int, axis: int, is_inverse: bool, dtype: int) -> list[NodeProto]:
    """Nodes that make `node`'s output from complex numbers [..., 2] of ONNX element type `dtype`, transformed along
    `axis`, not the last one. Standard operators of opset 17 on; any size along the axis."""
    parts = NodeParts(node)
    last = [*(each for each in range(rank - 1) if each != axis), axis]
    real, imaginary = (
        parts.add("Transpose", parts.add("Gather", node.input[0], parts.integers(index), axis=-1), perm=last)
        for index in (0, 1)
    )
    cosines, sines, size = _matrices(parts, axis, dtype)
    if is_inverse:
        sines = parts.add("Neg", sines)
        real, imaginary = (parts.add("Div", part, size) for part in (real, imaginary))
    turned = (
        parts.add("Add", parts.add("MatMul", real, cosines), parts.add("MatMul", imaginary, sines)),
        parts.add("Sub", parts.add("MatMul", imaginary, cosines), parts.add("MatMul", real, sines)),
    )
    back = np.argsort(last).tolist()
    both = [parts.add("Unsqueeze", parts.add("Transpose", part, perm=back), parts.integers([-1])) for part in turned]
    parts.add("Concat", *both, axis=-1, output=node.output[0])
    return parts.nodes


def _matrices(parts: NodeParts, axis: int, dtype: int) -> tuple[str, str, str]:
    """cos and sin of 2 pi jk / n, [n, n], and n. jk modulo n in integers: in float32, sin(2 pi jk / n) would have few
    digits left where jk is many times n."""
    size = parts.add("Shape", parts.node.input[0], start=axis, end=axis + 1)
    places = parts.add("Range", parts.integers(0), parts.add("Squeeze", size), parts.integers(1))
    products = parts.add("Mul", parts.add("Reshape", places, parts.integers([-1, 1])), places)
    turns = parts.add("Cast", parts.add("Mod", products, size), to=TensorProto.FLOAT)
    wide_size = parts.add("Cast", size, to=TensorProto.FLOAT)
    circle = parts.number(2 * math.pi, TensorProto.FLOAT)
    angles = parts.add("Mul", parts.add("Div", turns, wide_size), circle)
    made = (parts.add("Cos", angles), parts.add("Sin", angles), wide_size)
    return made if dtype == TensorProto.FLOAT else tuple(parts.add("Cast", name, to=dtype) for name in made)

"""DFT, which no TensorRT takes, as products with matrices of cosines and sines: n times the arithmetic of a fast
transform, and for the lengths of sequences and hidden sizes a small part of a model.

    X_k = sum over j of x_j * exp(-2 pi i jk / n)        (ONNX's operator DFT; the inverse has +2 pi i, and 1/n)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

__all__ = ["fourier_products"]


def fourier_products(node: NodeProto, *, rank: int, axis: int, is_inverse: bool, dtype: int) -> list[NodeProto]:
    """Nodes that make `node`'s output from complex numbers [..., 2] of ONNX element type `dtype`, transformed along
    `axis`, not the last one. Standard operators of opset 17 on; any size along the axis."""
    return _Products(node, dtype).nodes(rank, axis, is_inverse)


class _Products:
    def __init__(self, node: NodeProto, dtype: int) -> None:
        self._input, self._output, self._dtype = node.input[0], node.output[0], dtype
        self._made: list[NodeProto] = []

    def nodes(self, rank: int, axis: int, is_inverse: bool) -> list[NodeProto]:
        last = [*(each for each in range(rank - 1) if each != axis), axis]
        real, imaginary = (self._add("Transpose", self._part(index), perm=last) for index in (0, 1))
        cosines, sines, size = self._matrices(axis)
        if is_inverse:
            sines = self._add("Neg", sines)
            real, imaginary = (self._add("Div", part, size) for part in (real, imaginary))
        turned = (
            self._add("Add", self._add("MatMul", real, cosines), self._add("MatMul", imaginary, sines)),
            self._add("Sub", self._add("MatMul", imaginary, cosines), self._add("MatMul", real, sines)),
        )
        back = np.argsort(last).tolist()
        parts = [
            self._add("Unsqueeze", self._add("Transpose", part, perm=back), self._integers([-1])) for part in turned
        ]
        self._add("Concat", *parts, axis=-1, result=self._output)
        return self._made

    def _part(self, index: int) -> str:
        """Real parts, or imaginary ones: without the last dimension."""
        return self._add("Gather", self._input, self._integers(index), axis=-1)

    def _matrices(self, axis: int) -> tuple[str, str, str]:
        """cos and sin of 2 pi jk / n, [n, n], and n. jk modulo n in integers: in float32, sin(2 pi jk / n) would have
        few digits left where jk is many times n."""
        size = self._add("Shape", self._input, start=axis, end=axis + 1)
        places = self._add("Range", self._integers(0), self._add("Squeeze", size), self._integers(1))
        products = self._add("Mul", self._add("Reshape", places, self._integers([-1, 1])), places)
        turns = self._add("Cast", self._add("Mod", products, size), to=TensorProto.FLOAT)
        wide_size = self._add("Cast", size, to=TensorProto.FLOAT)
        angles = self._add("Mul", self._add("Div", turns, wide_size), self._number(2 * math.pi))
        return (
            self._typed(self._add("Cos", angles)),
            self._typed(self._add("Sin", angles)),
            self._typed(wide_size),
        )

    def _typed(self, name: str) -> str:
        return name if self._dtype == TensorProto.FLOAT else self._add("Cast", name, to=self._dtype)

    def _integers(self, value: int | Sequence[int]) -> str:
        return self._constant(np.asarray(value, np.int64))

    def _number(self, value: float) -> str:
        return self._constant(np.asarray(value, np.float32))

    def _constant(self, array: np.ndarray) -> str:
        return self._add("Constant", value=onnx.numpy_helper.from_array(array))

    def _add(self, op_type: str, *inputs: str, result: str = "", **attributes: object) -> str:
        name = result or f"{self._output}_fourier_{len(self._made)}"
        self._made.append(onnx.helper.make_node(op_type, list(inputs), [name], name, **attributes))
        return name

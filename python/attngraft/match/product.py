"""The two matrix products of attention, read for what they multiply: MatMul, Gemm, FusedMatMul and Einsum alike."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import NodeProto

from attngraft.match.meaning import read_dims
from attngraft.match.operators import attribute, exchanges_last_two, is_pass_through, is_standard
from attngraft.match.scale import scale_factor
from attngraft.onnx_graph import GraphView

__all__ = ["Operand", "ScoreProduct", "read_score_product", "read_values_product"]


@dataclass(frozen=True)
class Operand:
    """`tensor` times `factor`, as an operand of a product; `transposed`: with its last two dimensions exchanged."""

    tensor: str
    factor: float = 1.0
    transposed: bool = False


@dataclass(frozen=True)
class ScoreProduct:
    """scores = factor * query . key^T. `query` is [..., Sq, D]; `key` [..., Sk, D], or [..., D, Sk] if
    `key_transposed`."""

    query: str
    key: str
    key_transposed: bool
    factor: float


def read_score_product(view: GraphView, node: NodeProto, *, swapped: bool = False) -> ScoreProduct | str:
    """What makes the scores, or in one phrase why that is no query . key^T.

    `swapped`: the scores are [..., Sk, Sq], as where the softmax goes over the last dimension but one.
    """
    read = _operands(view, node)
    if isinstance(read, str):
        return read
    left, right, factor = read
    if swapped:  # scores^T = key . query^T
        left, right = _exchanged(right), _exchanged(left)
    query, key = _plain_origin(view, left), _origins(view, right)[-1]
    if query is None:
        return "the query is transposed in a way that no lowering has words for"
    return ScoreProduct(query.tensor, key.tensor, not key.transposed, factor * query.factor * key.factor)


def read_values_product(view: GraphView, node: NodeProto, probabilities: str) -> Operand | str:
    """The values that the probabilities are multiplied with from the left, or the reason why that is not what
    happens."""
    read = _operands(view, node)
    if isinstance(read, str):
        return read
    left, right, factor = read
    values = _plain_origin(view, right)
    if left.tensor != probabilities or left.transposed or values is None or factor * values.factor != 1.0:
        return f"{node.op_type} does not multiply the probabilities with the values from the left"
    return values


def _operands(view: GraphView, node: NodeProto) -> tuple[Operand, Operand, float] | str:
    """left . right of a product, times a number."""
    if is_standard(node, "MatMul"):
        return Operand(node.input[0]), Operand(node.input[1]), 1.0
    if is_standard(node, "Einsum"):
        return _einsum_operands(node)
    if (
        node.op_type == "FusedMatMul"
        and not attribute(node, "transBatchA", 0)
        and not attribute(node, "transBatchB", 0)
    ):
        flags = [bool(attribute(node, name, 0)) for name in ("transA", "transB")]
    elif is_standard(node, "Gemm") and (len(node.input) < 3 or not node.input[2]):
        flags = [bool(attribute(node, name, 0)) for name in ("transA", "transB")]
    else:
        return f"the product is {node.op_type} in a form that no lowering has words for"
    left, right = (Operand(name, transposed=flag) for name, flag in zip(node.input[:2], flags, strict=True))
    return left, right, float(attribute(node, "alpha", 1.0))


def _einsum_operands(node: NodeProto) -> tuple[Operand, Operand, float] | str:
    """Einsum that equals a MatMul of its operands in either order, each plain or with its last two dimensions
    exchanged."""
    equation = attribute(node, "equation", b"").decode().replace(" ", "")
    terms, arrow, result = equation.partition("->")
    parts = terms.split(",")
    refused = f"the product is Einsum {equation!r}, which is no MatMul of its operands"
    if not arrow or len(parts) != 2 or len(node.input) != 2 or len(result) < 2:
        return refused
    batch, row, column = result[:-2], result[-2], result[-1]
    for (left, right), names in ((parts, node.input), (parts[::-1], node.input[::-1])):
        inner = set(left) & set(right) - set(result)
        if len(inner) != 1 or len(set(result)) != len(result):
            continue
        (contracted,) = inner
        straight = {batch + row + contracted: False, batch + contracted + row: True}
        other = {batch + contracted + column: False, batch + column + contracted: True}
        if left in straight and right in other:
            return Operand(names[0], transposed=straight[left]), Operand(names[1], transposed=other[right]), 1.0
    return refused


def _exchanged(operand: Operand) -> Operand:
    return Operand(operand.tensor, operand.factor, not operand.transposed)


def _plain_origin(view: GraphView, operand: Operand) -> Operand | None:
    """The farthest origin of an operand that is not transposed."""
    return next((origin for origin in reversed(_origins(view, operand)) if not origin.transposed), None)


def _origins(view: GraphView, operand: Operand) -> list[Operand]:
    """The operand, and what it is before each scalar factor and each exchange of its last two dimensions."""
    found = [operand]
    while True:
        node = view.maker(operand.tensor)
        if is_pass_through(view, node):
            operand = Operand(node.input[0], operand.factor, operand.transposed)
        elif is_standard(node, "Transpose") and exchanges_last_two(node):
            operand = Operand(node.input[0], operand.factor, not operand.transposed)
        elif (exchanged := _exchanged_in_rank_3(view, node)) is not None:
            operand = Operand(exchanged, operand.factor, not operand.transposed)
        else:
            factor = scale_factor(view, node)
            if factor is None or factor.value is None:
                return found
            operand = Operand(factor.tensor, operand.factor * factor.value, operand.transposed)
        found.append(operand)


def _exchanged_in_rank_3(view: GraphView, node: NodeProto | None) -> str | None:
    """The tensor [..., S, D] that a Reshape to [N, S, D], a Transpose and a Reshape back make into [..., D, S]; None if
    that is not what ends in `node`. The dynamo exporter transposes the key of scaled_dot_product_attention so."""
    if not is_standard(node, "Reshape"):
        return None
    transpose = view.maker(node.input[0])
    if not is_standard(transpose, "Transpose") or list(attribute(transpose, "perm", ())) != [0, 2, 1]:
        return None
    merge = view.maker(transpose.input[0])
    if not is_standard(merge, "Reshape"):
        return None
    before, merged, after = (read_dims(view, name) for name in (merge.input[0], merge.output[0], node.output[0]))
    if before is None or merged is None or before[-2:] != merged[-2:]:
        return None
    return merge.input[0] if after == (*before[:-2], before[-1], before[-2]) else None

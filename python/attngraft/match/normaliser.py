"""What turns scores into probabilities: a Softmax node, or the same arithmetic written out in several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import NodeProto

from attngraft.match.operators import attribute, axis_is_last, is_cast, is_standard
from attngraft.onnx_graph import GraphView

__all__ = ["Normaliser", "before_shift", "find_normaliser"]


@dataclass(frozen=True)
class Normaliser:
    """Scores to probabilities.

    node           the node that identifies it: Softmax, LogSoftmax, or the division by the sum.
    scores         what is normalised, before a maximum is subtracted.
    probabilities  the result.
    axis           the axis as the model states it.
    stable         whether the maximum is subtracted first: without it, a row whose scores are all far below 0 gives
                   NaN.
    obstacle       why it is no plain softmax; None if it is one.
    """

    node: NodeProto
    scores: str
    probabilities: str
    axis: int
    stable: bool = True
    obstacle: str | None = None

    @property
    def operator(self) -> str:
        """What Site.operator says of it."""
        return "by hand" if is_standard(self.node, "Div", "Mul") else self.node.op_type


def find_normaliser(view: GraphView, node: NodeProto, opset: int) -> Normaliser | None:
    """The normaliser that `node` ends or identifies; None if it is none. A LogSoftmax that nothing takes the
    exponential of gives logarithms, which is no normaliser here."""
    if is_standard(node, "Softmax"):
        return Normaliser(node, node.input[0], node.output[0], _softmax_axis(node, opset))
    if is_standard(node, "LogSoftmax"):
        return _exponential_of_logarithm(view, node, opset)
    if is_standard(node, "Div", "Mul"):
        return _written_out(view, node)
    return None


def _softmax_axis(node: NodeProto, opset: int) -> int:
    # Before opset 13 the default axis was 1 and everything from the axis on was flattened.
    return int(attribute(node, "axis", -1 if opset >= 13 else 1))


def _exponential_of_logarithm(view: GraphView, node: NodeProto, opset: int) -> Normaliser | None:
    readers = view.readers(node.output[0])
    if len(readers) != 1 or not is_standard(readers[0], "Exp") or node.output[0] in view.outputs:
        return None
    return Normaliser(node, node.input[0], readers[0].output[0], _softmax_axis(node, opset))


def _written_out(view: GraphView, node: NodeProto) -> Normaliser | None:
    """exp(x) / sum(exp(x)), as a division or as a product with the reciprocal; x may be scores - max(scores)."""
    for numerator, total in _quotients(view, node):
        exponential = view.maker(numerator)
        if not is_standard(exponential, "Exp"):
            continue
        summed, obstacle = _plain_sum(view, total, numerator), None
        if summed is None:
            summed = _sum_and_more(view, total, numerator)
            obstacle = "the exponentials are divided by their sum and something more (softmax1), which is no softmax"
        axis = None if summed is None else _reduced_axis(view, summed)
        if axis is None:
            continue
        shifted = before_shift(view, view.maker(exponential.input[0]), axis)
        scores = exponential.input[0] if shifted is None else shifted
        return Normaliser(node, scores, node.output[0], axis, shifted is not None, obstacle)
    return None


def _quotients(view: GraphView, node: NodeProto) -> Iterator[tuple[str, str]]:
    """(dividend, divisor) of a node that divides."""
    if node.op_type == "Div":
        yield node.input[0], node.input[1]
        return
    for index, other in ((0, 1), (1, 0)):
        reciprocal = view.maker(node.input[index])
        if is_standard(reciprocal, "Reciprocal"):
            yield node.input[other], reciprocal.input[0]


def _plain_sum(view: GraphView, name: str, numerator: str) -> NodeProto | None:
    """The sum of `numerator` that a tensor is; half types may be summed in fp32 behind casts."""
    node = view.maker(_before_casts(view, name))
    return node if is_standard(node, "ReduceSum") and _before_casts(view, node.input[0]) == numerator else None


def _before_casts(view: GraphView, name: str) -> str:
    node = view.maker(name)
    return node.input[0] if is_cast(node) else name


def _sum_and_more(view: GraphView, name: str, numerator: str) -> NodeProto | None:
    node = view.maker(_before_casts(view, name))
    if not is_standard(node, "Add"):
        return None
    return next((found for read in node.input if (found := _plain_sum(view, read, numerator)) is not None), None)


def before_shift(view: GraphView, node: NodeProto | None, axis: int) -> str | None:
    """The scores from which their maximum over `axis` is subtracted, which a softmax does not see; None if `node` does
    something else."""
    if not is_standard(node, "Sub"):
        return None
    highest = view.maker(_before_casts(view, node.input[1]))
    if not is_standard(highest, "ReduceMax") or _before_casts(view, highest.input[0]) != node.input[0]:
        return None
    reduced, shape = _reduced_axis(view, highest), view.shape(node.input[0])
    if reduced is None:
        return None
    is_same = reduced == axis or (axis_is_last(reduced, shape) and axis_is_last(axis, shape))
    return node.input[0] if is_same else None


def _reduced_axis(view: GraphView, node: NodeProto) -> int | None:
    """The only axis of a reduction that keeps its dimension."""
    axes = attribute(node, "axes")
    if axes is None and len(node.input) > 1:
        value = view.value(node.input[1])
        axes = None if value is None else value.reshape(-1).tolist()
    if axes is None or len(axes) != 1 or not attribute(node, "keepdims", 1):
        return None
    return int(axes[0])

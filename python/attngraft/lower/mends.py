"""The repairs, one function each: a node and what is known of its surroundings in, new nodes and a record out.

A repair may change the node's inputs; nodes that make the node's outputs take its place, others come before it. Nothing
that is computed changes.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from attngraft.lower.fourier import fourier_products
from attngraft.lower.graph_facts import FLOATS, GraphFacts
from attngraft.lower.runtime_operators import PARTS, take_apart
from attngraft.onnx_graph import dtype_name, node_label

__all__ = ["FOR_ANY_RUNTIME", "FOR_TENSORRT", "Mend", "Mended", "Repair"]


LEAST = int(np.iinfo(np.int64).min)
"""As the end of a Slice with negative steps: everything down to the first element."""

COMPLEX_PARTS = 2
"""The last dimension of complex numbers in ONNX."""


@dataclass(frozen=True)
class Repair:
    """One repair. node: its name in the model. what: what was done. reason: what does not take the node as it was."""

    node: str
    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.node}: {self.what}, since {self.reason}"


Mended = tuple[list[NodeProto], Repair]
Mend = Callable[[NodeProto, GraphFacts], "Mended | None"]


def _mend_normalization(node: NodeProto, facts: GraphFacts) -> Mended | None:
    """Scale and bias of another type than the input, as in TorchScript's exports of half models, are cast to the
    input's: the result has that type already."""
    dtype = facts.dtype(node.input[0])
    others = [i for i in range(1, len(node.input)) if node.input[i] and facts.dtype(node.input[i]) != dtype]
    others = [i for i in others if facts.dtype(node.input[i]) in FLOATS]
    if dtype not in FLOATS or not others:
        return None
    before = dtype_name(facts.dtype(node.input[others[0]]))
    casts = []
    for index in others:
        name = f"{node.output[0]}_input_{index}_cast"
        casts.append(onnx.helper.make_node("Cast", [node.input[index]], [name], name=name, to=dtype))
        node.input[index] = name
    reason = f"{before} parameters do not go with a {dtype_name(dtype)} input (ONNX and TensorRT)"
    return casts, Repair(node_label(node), "parameters cast to the input's type", reason)


def _mend_rotary(node: NodeProto, facts: GraphFacts) -> Mended | None:
    """Cosine and sine caches that all sequences share are repeated for each, without a copy in TensorRT's kernels."""
    if len(node.input) > 3 and node.input[3]:  # position ids: the caches are tables of positions
        return None
    batch = facts.first_dimension(node.input[0])
    if all(facts.first_dimension(name) == batch is not None for name in node.input[1:3]):
        return None
    prefix = f"{node.output[0]}_caches"
    nodes = [
        onnx.helper.make_node("Shape", [node.input[0]], [f"{prefix}_batch"], f"{prefix}_batch", start=0, end=1),
        _integers(f"{prefix}_ones", [1, 1]),
        onnx.helper.make_node(
            "Concat", [f"{prefix}_batch", f"{prefix}_ones"], [f"{prefix}_shape"], f"{prefix}_shape", axis=0
        ),
    ]
    for index in (1, 2):
        name = f"{prefix}_{index}"
        nodes.append(onnx.helper.make_node("Expand", [node.input[index], f"{prefix}_shape"], [name], name))
        node.input[index] = name
    reason = "TensorRT wants caches of the input's batch size"
    return nodes, Repair(node_label(node), "cosine and sine caches expanded over the batch", reason)


def _mend_eye(node: NodeProto, facts: GraphFacts) -> Mended | None:
    """A diagonal whose size is not fixed, by comparing indices: EyeLike is taken in fixed sizes only."""
    if facts.is_fixed(node.input[0]):
        return None
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    prefix, output = f"{node.output[0]}_diagonal", node.output[0]
    values = {"zero": 0, "one": 1, "shift": attributes.get("k", 0), "upright_shape": [-1, 1]}
    made = [_integers(f"{prefix}_{name}", value) for name, value in values.items()]

    def add(op_type: str, *inputs: str, result: str, **options: object) -> str:
        name = result if result == output else f"{prefix}_{result}"
        made.append(onnx.helper.make_node(op_type, list(inputs), [name], name, **options))
        return name

    zero, one = f"{prefix}_zero", f"{prefix}_one"
    shape = add("Shape", node.input[0], result="shape")
    rows = add("Range", zero, add("Gather", shape, zero, result="height"), one, result="rows")
    columns = add("Range", zero, add("Gather", shape, one, result="width"), one, result="columns")
    shifted = add(
        "Add", add("Reshape", rows, f"{prefix}_upright_shape", result="upright"), f"{prefix}_shift", result="place"
    )
    on = add("Equal", columns, shifted, result="on")
    dtype = attributes.get("dtype") or facts.dtype(node.input[0]) or TensorProto.FLOAT
    add("Cast", on, result=output, to=dtype)
    repair = Repair(
        node_label(node), "diagonal made by comparing indices", "TensorRT takes EyeLike in fixed sizes only"
    )
    return made, repair


def _mend_axes(node: NodeProto, facts: GraphFacts) -> Mended | None:
    """Axes that the graph computes from constants, computed."""
    name = node.input[1] if len(node.input) > 1 else ""
    if node.domain or not name or facts.is_constant_node(name):
        return None
    axes = facts.computed_constant(name)
    if axes is None:
        return None
    constant = _integers(f"{node.output[0]}_axes", axes.tolist())
    node.input[1] = constant.output[0]
    return [constant], Repair(node_label(node), "axes computed", "TensorRT wants axes to be constants")


def _mend_einsum(node: NodeProto, facts: GraphFacts) -> Mended | None:
    """An equation in capital letters, as ONNX has it, in small ones."""
    equation = onnx.helper.get_node_attr_value(node, "equation").decode()
    letters = dict.fromkeys(letter for letter in equation if letter.isalpha())
    if not any(letter.isupper() for letter in letters) or len(letters) > len(string.ascii_lowercase):
        return None
    free = (letter for letter in string.ascii_lowercase if letter not in letters and letter.upper() not in letters)
    small = {letter: letter for letter in letters if letter.islower()}
    for letter in letters:
        if letter.isupper():
            small[letter] = letter.lower() if letter.lower() not in small.values() else next(free)
    made = NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    made.attribute.append(onnx.helper.make_attribute("equation", "".join(small.get(sign, sign) for sign in equation)))
    return [made], Repair(node_label(node), "equation in small letters", "TensorRT takes no capital ones")


def _mend_slice(node: NodeProto, facts: GraphFacts) -> Mended | None:
    """The end of a reversing Slice (PyTorch's flip): the least integer, which has no negative, becomes the next one,
    which means the same."""
    ends = facts.computed_constant(node.input[2]) if len(node.input) > 2 else None
    if ends is None or not (ends == LEAST).any():
        return None
    constant = _integers(f"{node.output[0]}_ends", np.maximum(ends, LEAST + 1).tolist())
    node.input[2] = constant.output[0]
    reason = "TensorRT-RTX 1.7 takes some computed sizes for 0 there"
    return [constant], Repair(node_label(node), "the least integer as an end raised by one", reason)


def _mend_boolean_fill(node: NodeProto, facts: GraphFacts) -> Mended | None:
    """`tensor[mask] = number`, which PyTorch exports by way of the places where the mask is true, as a choice: their
    number depends on data, so that TensorRT takes it late, slowly, or (TensorRT-RTX) not at all."""
    fill = facts.boolean_fill(node)
    if fill is None:
        return None
    mask, number = fill
    made = onnx.helper.make_node("Where", [mask, number, node.input[0]], [node.output[0]], node.name)
    reason = "TensorRT-RTX does not take NonZero, and no TensorRT plans ahead for it"
    return [made], Repair(node_label(node), "one number written at a mask's true places is chosen by the mask", reason)


def _mend_fourier(node: NodeProto, facts: GraphFacts) -> Mended | None:
    """A Fourier transform of complex numbers, as torch.fft is exported (FNet), as matrix products."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    rank, dtype = facts.rank(node.input[0]), facts.dtype(node.input[0])
    axis = facts.transformed_axis(node)
    is_whole = not attributes.get("onesided") and not any(node.input[1:2])  # nor cut or filled up to another length
    is_complex = facts.last_dimension(node.input[0]) == COMPLEX_PARTS
    if rank is None or axis is None or dtype not in FLOATS or not (is_whole and is_complex):
        return None
    is_inverse = bool(attributes.get("inverse"))
    made = fourier_products(node, rank=rank, axis=axis % rank, is_inverse=is_inverse, dtype=dtype)
    return made, Repair(node_label(node), "transformed by matrix products", "TensorRT does not take DFT")


def _integers(name: str, value: int | list[int]) -> NodeProto:
    """A Constant node: int64, rank 0 for a number, else rank 1."""
    tensor = onnx.numpy_helper.from_array(np.asarray(value, np.int64), name)
    return onnx.helper.make_node("Constant", [], [name], name, value=tensor)


def _mend_runtime_operator(node: NodeProto, facts: GraphFacts) -> Mended | None:
    """What ONNX Runtime's optimizer wrote, in standard operators again."""
    parts = take_apart(node, facts.node_facts(node))
    if parts is None:
        return None
    reason = f"TensorRT does not know {node.domain}"
    return parts, Repair(node_label(node), f"{node.op_type} taken apart into standard operators", reason)


FOR_ANY_RUNTIME: dict[Mend, frozenset[str]] = {_mend_normalization: frozenset({"LayerNormalization"})}
"""What breaks ONNX's own rules: each repair with the operators that it looks at."""

FOR_TENSORRT: dict[Mend, frozenset[str]] = {
    _mend_runtime_operator: frozenset(PARTS),
    **FOR_ANY_RUNTIME,
    _mend_rotary: frozenset({"RotaryEmbedding"}),
    _mend_eye: frozenset({"EyeLike"}),
    _mend_boolean_fill: frozenset({"ScatterND"}),
    _mend_slice: frozenset({"Slice"}),
    _mend_einsum: frozenset({"Einsum"}),
    _mend_fourier: frozenset({"DFT"}),
    _mend_axes: frozenset({"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "Squeeze", "Unsqueeze"}),
}
"""That, and what TensorRT does not take, in the order in which they are tried."""

"""Attention written by hand, in every form that exporters use: small models for matching and rewriting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

LOWEST = float(np.finfo(np.float32).min)
MINUS_INFINITY = -math.inf

INPUT_TYPES = {
    "added": "float[B,1,1,T]",
    "full_added": "float[B,2,S,T]",
    "condition": "bool[B,1,1,T]",
    "padded": "bool[B,1,1,T]",
    "attention_mask": "int64[B,1,1,T]",
    "token_mask": "int64[B,T]",
}
"""Extra inputs that a chain may name. By the tests' convention `padding` in a name means true where masked."""


def attention(
    chain: str,
    *,
    inputs: tuple[str, ...] = (),
    constants: Mapping[str, object] | None = None,
    outputs: str = "float[B,2,S,4] out",
    dtype: str = "float",
    opset: int = 17,
    values: str = "out = MatMul(p, v)",
    ir_version: int = 8,
) -> ModelProto:
    """q k v -> out, with `chain` (ONNX text) between `kt`, the transposed keys, and `p`, the probabilities.

    `constants` become initializers: Python floats of the model's type, arrays as they are.
    """
    extra = "".join(f", {INPUT_TYPES[name].replace('float', dtype)} {name}" for name in inputs)
    text = f"""
    <ir_version: {ir_version}, opset_import: ["" : {opset}]>
    attention ({dtype}[B,2,S,4] q, {dtype}[B,2,T,4] k, {dtype}[B,2,T,4] v{extra}) => ({outputs.replace("float", dtype)})
    {{
        kt = Transpose<perm = [0, 1, 3, 2]>(k)
        {chain}
        {values}
    }}
    """
    model = onnx.parser.parse_model(text)
    numpy_type = {"float": np.float32, "float16": np.float16, "double": np.float64}.get(dtype, np.float32)
    for name, value in (constants or {}).items():
        array = np.asarray(value, dtype=numpy_type) if isinstance(value, (int, float)) else np.asarray(value)
        if dtype == "bfloat16" and array.dtype == np.float32:
            tensor = onnx.helper.make_tensor(name, TensorProto.BFLOAT16, array.shape, array.reshape(-1).tolist())
        else:
            tensor = onnx.numpy_helper.from_array(array, name)
        model.graph.initializer.append(tensor)
    return model


@dataclass(frozen=True)
class Form:
    """A way to write attention, and what is to be recognised in it."""

    chain: str
    inputs: tuple[str, ...] = ()
    constants: Mapping[str, object] = field(default_factory=dict)
    operands: tuple[str, ...] = ()
    scale: float = 1.0
    empty_rows: str = "zeros"
    guard: bool = False
    opset: int = 17
    softcap: float = 0.0
    native: str | None = None
    """Why the site has no form from Q, K and V to the context; None if it has one."""

    def model(self) -> ModelProto:
        return attention(self.chain, inputs=self.inputs, constants=self.constants, opset=self.opset)


GUARDED = "w = Softmax<axis = -1>(m) n = IsNaN(w) p = Where(n, zero, w)"

FORMS: dict[str, Form] = {
    "bare": Form("s = MatMul(q, kt) p = Softmax<axis = -1>(s)"),
    "positive axis": Form("s = MatMul(q, kt) p = Softmax<axis = 3>(s)"),
    "opset 11": Form("s = MatMul(q, kt) p = Softmax<axis = 3>(s)", opset=11),
    "mul": Form("s = MatMul(q, kt) t = Mul(s, c) p = Softmax<axis = -1>(t)", constants={"c": 0.5}, scale=0.5),
    "mul, scalar first": Form(
        "s = MatMul(q, kt) t = Mul(c, s) p = Softmax<axis = -1>(t)", constants={"c": 0.5}, scale=0.5
    ),
    "div": Form("s = MatMul(q, kt) t = Div(s, c) p = Softmax<axis = -1>(t)", constants={"c": 2.0}, scale=0.5),
    "scale of shape [1]": Form(
        "s = MatMul(q, kt) t = Mul(s, c) p = Softmax<axis = -1>(t)",
        constants={"c": np.array([0.5], np.float32)},
        scale=0.5,
    ),
    "scale as a Constant node": Form(
        "s = MatMul(q, kt) c = Constant<value = float {0.5}>() t = Mul(s, c) p = Softmax<axis = -1>(t)", scale=0.5
    ),
    "two scales": Form(
        "s = MatMul(q, kt) t = Mul(s, c) u = Div(t, d) p = Softmax<axis = -1>(u)",
        constants={"c": 0.5, "d": 4.0},
        scale=0.125,
    ),
    "additive mask": Form(
        "s = MatMul(q, kt) t = Mul(s, c) m = Add(t, added) p = Softmax<axis = -1>(m)",
        inputs=("added",),
        constants={"c": 0.5},
        operands=("bias",),
        scale=0.5,
    ),
    "additive mask first": Form(
        "s = MatMul(q, kt) t = Mul(s, c) m = Add(added, t) p = Softmax<axis = -1>(m)",
        inputs=("added",),
        constants={"c": 0.5},
        operands=("bias",),
        scale=0.5,
    ),
    "two additive masks, one within the other": Form(
        "s = MatMul(q, kt) t = Add(s, added) m = Add(t, full_added) p = Softmax<axis = -1>(m)",
        inputs=("added", "full_added"),
        operands=("bias",),
    ),
    "where -inf": Form(
        "s = MatMul(q, kt) m = Where(condition, s, f) p = Softmax<axis = -1>(m)",
        inputs=("condition",),
        constants={"f": MINUS_INFINITY},
        operands=("keep",),
    ),
    "where -inf, inverted": Form(
        "s = MatMul(q, kt) m = Where(padded, f, s) p = Softmax<axis = -1>(m)",
        inputs=("padded",),
        constants={"f": MINUS_INFINITY},
        operands=("keep",),
    ),
    "where -1e9": Form(
        "s = MatMul(q, kt) t = Mul(s, c) m = Where(condition, t, f) p = Softmax<axis = -1>(m)",
        inputs=("condition",),
        constants={"c": 0.5, "f": -1e9},
        operands=("keep",),
        scale=0.5,
        empty_rows="uniform",
    ),
    "where before the scale": Form(
        "s = MatMul(q, kt) m = Where(condition, s, f) t = Mul(m, c) p = Softmax<axis = -1>(t)",
        inputs=("condition",),
        constants={"c": 0.5, "f": LOWEST},
        operands=("keep",),
        scale=0.5,
        empty_rows="uniform",
    ),
    "mask added before the scale": Form(
        "s = MatMul(q, kt) m = Add(s, added) t = Mul(m, c) p = Softmax<axis = -1>(t)",
        inputs=("added",),
        constants={"c": 0.5},
        scale=0.5,
    ),
    "mask added before the scale, guard": Form(
        f"s = MatMul(q, kt) a = Where(condition, zero, f) b = Add(s, a) m = Div(b, c) {GUARDED}",
        inputs=("condition",),
        constants={"zero": 0.0, "f": MINUS_INFINITY, "c": 8.0},
        scale=0.125,
        guard=True,
    ),
    "mask from an input, then where": Form(
        "s = MatMul(q, kt) b = Add(s, full_added) m = Where(condition, b, f) p = Softmax<axis = -1>(m)",
        inputs=("full_added", "condition"),
        constants={"f": -1e9},
    ),
    "position bias, then where": Form(
        """
        s = MatMul(q, kt) shape = Shape(s) b = Expand(position, shape) t = Add(s, b) m = Where(condition, t, f)
        p = Softmax<axis = -1>(m)
        """,
        inputs=("condition",),
        constants={"position": np.array([[0.5], [-0.5]], np.float32).reshape(1, 2, 1, 1), "f": -1e9},
        operands=("bias", "keep"),
        empty_rows="uniform",
    ),
    "added where, -inf": Form(
        f"s = MatMul(q, kt) a = Where(condition, zero, f) m = Add(s, a) {GUARDED}",
        inputs=("condition",),
        constants={"zero": 0.0, "f": MINUS_INFINITY},
        operands=("keep",),
        guard=True,
    ),
    "added where, lowest": Form(
        "s = MatMul(q, kt) a = Where(padded, f, zero) m = Add(s, a) p = Softmax<axis = -1>(m)",
        inputs=("padded",),
        constants={"zero": 0.0, "f": LOWEST},
        operands=("keep",),
        empty_rows="uniform",
    ),
    "added where, -1e4": Form(
        "s = MatMul(q, kt) a = Where(condition, zero, f) m = Add(s, a) p = Softmax<axis = -1>(m)",
        inputs=("condition",),
        constants={"zero": 0.0, "f": -1e4},
        operands=("bias",),
    ),
    "added where, expanded fill": Form(
        """
        s = MatMul(q, kt) shape = Shape(condition) z = Expand(zero, shape) a = Where(condition, z, f) m = Add(s, a)
        p = Softmax<axis = -1>(m)
        """,
        inputs=("condition",),
        constants={"zero": 0.0, "f": LOWEST},
        operands=("keep",),
        empty_rows="uniform",
    ),
    "added complement of an integer mask": Form(
        """
        s = MatMul(q, kt) x = Cast<to = 1>(attention_mask) y = Sub(one, x) a = Mul(y, f) m = Add(s, a)
        p = Softmax<axis = -1>(m)
        """,
        inputs=("attention_mask",),
        constants={"one": 1.0, "f": LOWEST},
        operands=("keep",),
        empty_rows="uniform",
    ),
    "added complement of an integer mask, -1e4": Form(
        """
        s = MatMul(q, kt) x = Cast<to = 1>(attention_mask) y = Sub(one, x) a = Mul(y, f) m = Add(s, a)
        p = Softmax<axis = -1>(m)
        """,
        inputs=("attention_mask",),
        constants={"one": 1.0, "f": -1e4},
        operands=("bias",),
    ),
    "position bias and added where": Form(
        """
        s = MatMul(q, kt) b = Add(s, position) a = Where(condition, zero, f) m = Add(b, a)
        p = Softmax<axis = -1>(m)
        """,
        inputs=("condition",),
        constants={"position": np.array([[0.5], [-0.5]], np.float32).reshape(1, 2, 1, 1), "zero": 0.0, "f": LOWEST},
        operands=("bias", "keep"),
        empty_rows="uniform",
    ),
    "mask from an input and added where": Form(
        """
        s = MatMul(q, kt) b = Add(s, added) a = Where(condition, zero, f) m = Add(b, a)
        p = Softmax<axis = -1>(m)
        """,
        inputs=("added", "condition"),
        constants={"zero": 0.0, "f": LOWEST},
        operands=("bias",),
    ),
    "two added wheres": Form(
        """
        s = MatMul(q, kt) a = Where(condition, zero, f) b = Where(padded, f, zero) t = Add(s, a) m = Add(t, b)
        p = Softmax<axis = -1>(m)
        """,
        inputs=("condition", "padded"),
        constants={"zero": 0.0, "f": LOWEST},
        operands=("bias",),
    ),
    "a finite fill on top of another": Form(
        """
        s = MatMul(q, kt) t = Where(padded, f, s) a = Where(condition, zero, f) m = Add(t, a)
        p = Softmax<axis = -1>(m)
        """,
        inputs=("padded", "condition"),
        constants={"zero": 0.0, "f": LOWEST},
        operands=("bias",),
    ),
    "sqrt(scale) on query and key, guard": Form(
        f"qs = Mul(q, r) ks = Mul(kt, r) s = MatMul(qs, ks) m = Add(s, added) {GUARDED}",
        inputs=("added",),
        constants={"r": 0.5, "zero": 0.0},
        operands=("bias",),
        scale=0.25,
        guard=True,
    ),
    "sqrt(scale) on query and key before the transpose": Form(
        """
        qs = Mul(q, r) ks = Mul(k, r) kst = Transpose<perm = [0, 1, 3, 2]>(ks) s = MatMul(qs, kst)
        p = Softmax<axis = -1>(s)
        """,
        constants={"r": 0.5},
        scale=0.25,
    ),
    "scale on the query alone": Form(
        "qs = Mul(q, r) s = MatMul(qs, kt) p = Softmax<axis = -1>(s)", constants={"r": 0.5}, scale=0.5
    ),
    "scale computed from the shape": Form(
        """
        shape = Shape(q) axis = Constant<value = int64 {3}>() dim = Gather(shape, axis) wide = Cast<to = 1>(dim)
        root = Sqrt(wide) one = Constant<value = float {1.0}>() c = Div(one, root)
        r = Sqrt(c) qs = Mul(q, r) ks = Mul(kt, r) s = MatMul(qs, ks) p = Softmax<axis = -1>(s)
        """,
        scale=0.5,
    ),
    "identities and dropouts": Form(
        """
        s = MatMul(q, kt) t = Identity(s) m = Add(t, added) u = Cast<to = 1>(m) w = Softmax<axis = -1>(u)
        x = Dropout(w) y = Cast<to = 1>(x) p = Identity(y)
        """,
        inputs=("added",),
        operands=("bias",),
    ),
    "masked before a reshape": Form(
        """
        s = MatMul(q, kt) same = Shape(s) t = Reshape(s, same) m = Where(condition, t, f) w = Softmax<axis = -1>(m)
        p = Reshape(w, same)
        """,
        inputs=("condition",),
        constants={"f": -1e9},
        operands=("keep",),
        empty_rows="uniform",
        native="a Reshape of the scores lies between the product and the softmax",
    ),
}

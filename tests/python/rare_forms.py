"""Forms of attention that few exporters write, or that only people do; chain_models.py has the common ones."""

from __future__ import annotations

import numpy as np
from chain_models import LOWEST, MINUS_INFINITY, Form

RARE_FORMS: dict[str, Form] = {
    "scale computed from an unknown dimension": Form(
        """
        shape = Shape(q) axis = Constant<value = int64 {2}>() dim = Gather(shape, axis) wide = Cast<to = 1>(dim)
        c = Sqrt(wide) s = MatMul(q, kt) t = Div(s, c) p = Softmax<axis = -1>(t)
        """,
        native="the scale of the scores is computed from an unknown dimension",
    ),
    "softcap": Form(
        """
        s = MatMul(q, kt) t = Mul(s, c) d = Div(t, cap) h = Tanh(d) u = Mul(h, cap) m = Add(u, added)
        p = Softmax<axis = -1>(m)
        """,
        inputs=("added",),
        constants={"c": 0.5, "cap": 2.0},
        operands=("bias",),
        scale=0.5,
        softcap=2.0,
    ),
    "softcap of 1": Form("s = MatMul(q, kt) t = Tanh(s) p = Softmax<axis = -1>(t)", softcap=1.0),
    "maximum subtracted before the softmax": Form(
        """
        s = MatMul(q, kt) m = Add(s, added) x = ReduceMax<axes = [-1], keepdims = 1>(m) y = Sub(m, x)
        p = Softmax<axis = -1>(y)
        """,
        inputs=("added",),
        operands=("bias",),
    ),
    "softmax written out": Form(
        """
        s = MatMul(q, kt) m = Where(condition, s, f) x = ReduceMax<axes = [3], keepdims = 1>(m) y = Sub(m, x)
        e = Exp(y) total = ReduceSum(e, last) p = Div(e, total)
        """,
        inputs=("condition",),
        constants={"f": -1e9, "last": np.array([-1], np.int64)},
        operands=("keep",),
        empty_rows="uniform",
    ),
    "softmax written out with a reciprocal": Form(
        "s = MatMul(q, kt) e = Exp(s) total = ReduceSum(e, last) r = Reciprocal(total) p = Mul(r, e)",
        constants={"last": np.array([-1], np.int64)},
    ),
    "exponential of a logarithm": Form("s = MatMul(q, kt) l = LogSoftmax<axis = -1>(s) p = Exp(l)"),
    "Max after Add": Form(
        "s = MatMul(q, kt) a = Add(s, added) m = Max(a, low) p = Softmax<axis = -1>(m)",
        inputs=("added",),
        constants={"low": LOWEST},
        operands=("bias",),
        empty_rows="uniform",
        native="Max lies between the product and the softmax",
    ),
    "mask blended in": Form(
        """
        s = MatMul(q, kt) x = Cast<to = 1>(attention_mask) kept = Mul(s, x) y = Sub(one, x) a = Mul(y, f)
        m = Add(kept, a) p = Softmax<axis = -1>(m)
        """,
        inputs=("attention_mask",),
        constants={"one": 1.0, "f": -1e4},
        operands=("keep",),
        empty_rows="uniform",
    ),
    "stored mask blended in": Form(
        """
        s = MatMul(q, kt) to = Shape<start = 2>(s) b = Slice(table, from, to, axes) kept = Mul(s, b) y = Sub(one, b)
        a = Mul(y, f) m = Add(kept, a) p = Softmax<axis = -1>(m)
        """,
        constants={
            "table": (np.arange(32 * 32).reshape(1, 1, 32, 32) % 3 != 1).astype(np.float32),
            "from": np.array([0, 0], np.int64),
            "axes": np.array([2, 3], np.int64),
            "one": 1.0,
            "f": -1e4,
        },
        operands=("keep",),
        empty_rows="uniform",
    ),
    "nan_to_num": Form(
        """
        s = MatMul(q, kt) m = Where(padded, f, s) w = Softmax<axis = -1>(m) n = IsNaN(w) g = Where(n, zero, w)
        infinite = IsInf(w) high = Greater(w, zero) above = And(infinite, high) h = Where(above, one, g)
        low = Less(w, zero) below = And(infinite, low) p = Where(below, zero, h)
        """,
        inputs=("padded",),
        constants={"f": MINUS_INFINITY, "zero": 0.0, "one": 1.0},
        operands=("keep",),
        guard=True,
    ),
    "probabilities masked after the softmax": Form(
        """
        s = MatMul(q, kt) w = Softmax<axis = -1>(s) x = Cast<to = 1>(attention_mask) p = Mul(w, x)
        """,
        inputs=("attention_mask",),
        native="Mul lies between the softmax and the values",
    ),
    "Where before and after the softmax": Form(
        """
        s = MatMul(q, kt) m = Where(condition, s, f) w = Softmax<axis = -1>(m) p = Where(condition, w, zero)
        """,
        inputs=("condition",),
        constants={"f": LOWEST, "zero": 0.0},
        operands=("keep",),
        empty_rows="uniform",
        native="Where lies between the softmax and the values",
    ),
    "clipped scores": Form(
        "s = MatMul(q, kt) t = Clip(s, low, high) p = Softmax<axis = -1>(t)",
        constants={"low": -1.0, "high": 1.0},
        native="Clip lies between the product and the softmax",
    ),
    "Einsum": Form('s = Einsum<equation = "bhid,bhjd->bhij">(q, k) p = Softmax<axis = -1>(s)'),
    "Einsum, keys first": Form('s = Einsum<equation = "bhjd,bhid->bhij">(k, q) p = Softmax<axis = -1>(s)'),
    "Einsum of transposed keys": Form('s = Einsum<equation = "bhid,bhdj->bhij">(q, kt) p = Softmax<axis = -1>(s)'),
    "scale of each head": Form(
        "s = MatMul(q, kt) t = Mul(s, c) p = Softmax<axis = -1>(t)",
        constants={"c": np.array([0.5, 0.25], np.float32).reshape(2, 1, 1)},
        native="the scale is a tensor, as where each head has its own",
    ),
    "MPNet: Div, position bias, mask": Form(
        """
        s = MatMul(q, kt) t = Div(s, d) b = Add(t, position) m = Add(b, added) p = Softmax<axis = -1>(m)
        """,
        inputs=("added",),
        constants={"d": 2.0, "position": np.array([[0.5], [-0.5]], np.float32).reshape(1, 2, 1, 1)},
        operands=("bias",),
    ),
    "bias without a scale, then a mask": Form(
        """
        s = MatMul(q, kt) b = Add(s, position) m = Add(b, added) p = Softmax<axis = -1>(m)
        """,
        inputs=("added",),
        constants={"position": np.array([[0.5], [-0.5]], np.float32).reshape(1, 2, 1, 1)},
        operands=("bias",),
    ),
}

"""One attention block from its projections on, in the forms in which exporters write it, for lowering `native`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

from attngraft.engine.fusion import FusionReport, find_fusion
from attngraft.lower import choose_lowerings, lower_model, parse_target, repair_model
from attngraft.match import match_model
from attngraft.onnx_graph import onnx_dtype

RTX = parse_target("rtx")
HEADS, HEAD_SIZE = 2, 64
HIDDEN = HEADS * HEAD_SIZE

PROJECTIONS = """
    mq = MatMul(x, wq) rq = Reshape(mq, split) q = Transpose<perm = [0, 2, 1, 3]>(rq)
    mk = MatMul(x, wk) rk = Reshape(mk, split_kv) k = Transpose<perm = [0, 2, 1, 3]>(rk)
    kt = Transpose<perm = [0, 2, 3, 1]>(rk)
    mv = MatMul(x, wv) rv = Reshape(mv, split_kv) v = Transpose<perm = [0, 2, 1, 3]>(rv)
"""
REST = "ct = Transpose<perm = [0, 2, 1, 3]>(c) cr = Reshape(ct, joined) y = MatMul(cr, wo)"

SCALED = "s = MatMul(q, kt) t = Mul(s, scale)"
ROOTS = "qs = Mul(q, root) ks = Mul(kt, root) t = MatMul(qs, ks)"
SOFTMAX = "p = Softmax<axis = -1>(m) c = MatMul(p, v)"
GUARDED = "r = Softmax<axis = -1>(m) nan = IsNaN(r) p = Where(nan, zero, r) c = MatMul(p, v)"
TRIANGLE = """
    length = Shape<start = 1, end = 2>(rq) lengths = Concat<axis = 0>(length, length) ones = Expand(one, lengths)
    lower = Trilu<upper = 0>(ones) above = Equal(lower, zero)
"""


LOWEST = {"float16": -65504.0, "bfloat16": -3.38e38, "float": float(np.finfo(np.float32).min)}


@dataclass(frozen=True)
class Block:
    """chain: from q, k, kt, v to the context c. extra: further inputs, as ONNX text. fused: whether TensorRT-RTX 1.7
    fuses it as it is (None: it does not build), and after native. sequence: a symbol, or a fixed length."""

    chain: str
    extra: str = ""
    fused: bool | None = True
    fused_native: bool = True
    sites: int = 1
    kv_heads: int = HEADS
    head_size: int = HEAD_SIZE
    dtype: str = "float16"
    opset: int = 17
    sequence: str = "S"
    constants: dict[str, object] = field(default_factory=dict)

    def model(self) -> ModelProto:
        """x [B, S, HIDDEN] -> y."""
        hidden, kv = HEADS * self.head_size, self.kv_heads * self.head_size
        text = f"""
        <ir_version: 10, opset_import: ["" : {self.opset}]>
        block ({self.dtype}[B,{self.sequence},{hidden}] x{self.extra}) => ({self.dtype}[B,{self.sequence},{hidden}] y)
        {{ {PROJECTIONS} {self.chain} {REST} }}
        """
        model = onnx.parser.parse_model(text)
        rng = np.random.default_rng(0)
        kind = {"float16": np.float16, "float": np.float32, "bfloat16": np.float32}[self.dtype]
        scale = self.head_size**-0.5
        values: dict[str, object] = {
            "wq": rng.standard_normal((hidden, hidden)) / math.sqrt(hidden),
            "wk": rng.standard_normal((hidden, kv)) / math.sqrt(hidden),
            "wv": rng.standard_normal((hidden, kv)) / math.sqrt(hidden),
            "wo": rng.standard_normal((hidden, hidden)) / math.sqrt(hidden),
            "scale": scale,
            "root": math.sqrt(scale),
            "zero": 0.0,
            "one": 1.0,
            "lowest": LOWEST[self.dtype],
            "infinite": -math.inf,
            **self.constants,
        }
        arrays = {name: np.asarray(value, kind) if not hasattr(value, "dtype") or value.dtype == np.float64 else value
                  for name, value in values.items()}  # fmt: skip
        arrays |= {
            "split": np.array([0, 0, HEADS, self.head_size]),
            "split_kv": np.array([0, 0, self.kv_heads, self.head_size]),
            "joined": np.array([0, 0, hidden]),
            "middle": np.array([1, 2]),
        }
        used = {name for node in model.graph.node for name in node.input}
        for name, array in arrays.items():
            if name in used:
                model.graph.initializer.append(_tensor(name, array, self.dtype))
        return onnx.shape_inference.infer_shapes(model)


def _tensor(name: str, array: np.ndarray, dtype: str) -> onnx.TensorProto:
    if dtype == "bfloat16" and array.dtype == np.float32:
        return onnx.helper.make_tensor(name, onnx_dtype("bfloat16"), array.shape, array.reshape(-1).tolist())
    return onnx.numpy_helper.from_array(array, name)


SPREAD = """
    told = Cast<to = 9>(padding) upright = Unsqueeze(told, middle) scores = Shape(t) spread = Expand(upright, scores)
    f = Where(spread, zero, infinite) m = Add(t, f)
"""
"""As exporters write a mask [B, S] of keys."""

PADDING = ", bool[B,1,1,S] keep"
FULL = ", bool[B,1,S,S] keep"
WIDE_SOFTMAX = "wide = Cast<to = 1>(t) {mask} r = Softmax<axis = -1>(m) p = Cast<to = 10>(r) c = MatMul(p, v)"
F32 = {"zero32": np.float32(0), "infinite32": np.float32(-np.inf), "lowest32": np.float32(np.finfo(np.float32).min)}
WIDE_WEIGHTS = {
    name: (np.eye(HEAD_SIZE) + shift).astype(np.float32) for name, shift in (("w32", 0.1), ("u32", 0.2), ("v_w32", 0.3))
}

BLOCKS = {
    "no mask": Block(f"{SCALED} m = Identity(t) {SOFTMAX}"),
    "no mask, opset 23": Block(f"{SCALED} m = Identity(t) {SOFTMAX}", opset=23),
    "roots, added -inf, guard": Block(f"{ROOTS} f = Where(keep, zero, infinite) m = Add(t, f) {GUARDED}", FULL),
    "padding spread over queries, guard": Block(f"{ROOTS} {SPREAD} {GUARDED}", ", int64[B,S] padding"),
    "roots, added lowest, guard": Block(f"{ROOTS} f = Where(keep, zero, lowest) m = Add(t, f) {GUARDED}", FULL),
    "filled -inf": Block(f"{SCALED} m = Where(keep, t, infinite) {SOFTMAX}", PADDING),
    "added input": Block(f"{SCALED} m = Add(t, bias) {SOFTMAX}", ", float16[B,1,S,S] bias"),
    "maximum subtracted": Block(f"{SCALED} h = ReduceMax<axes = [-1]>(t) m = Sub(t, h) {SOFTMAX}", fused=False),
    "axis of the queries": Block(
        """qt = Transpose<perm = [0, 1, 3, 2]>(q) s = MatMul(k, qt) t = Mul(s, scale) r = Softmax<axis = -2>(t)
        p = Transpose<perm = [0, 1, 3, 2]>(r) c = MatMul(p, v)""",
        fused=False,
    ),
    "stored bias, moved about": Block(
        f"""{SCALED} rows = Reshape(table, square) upright = Transpose<perm = [2, 0, 1]>(rows)
        bias = Unsqueeze(upright, first) m = Add(t, bias) {SOFTMAX}""",
        fused=False,
        sequence="65",
        constants={
            "table": np.random.default_rng(1).standard_normal((65 * 65, HEADS)),
            "square": np.array([65, 65, HEADS]),
            "first": np.array([0]),
        },
    ),
    "causal": Block(f"{ROOTS} {TRIANGLE} f = Where(above, infinite, zero) m = Add(t, f) {GUARDED}"),
    "causal, scale after": Block(f"{SCALED} {TRIANGLE} f = Where(above, infinite, zero) m = Add(t, f) {SOFTMAX}"),
    "added before the scale, in fp32 products": Block(
        """q32 = Cast<to = 1>(q) k32 = Cast<to = 1>(kt) s = MatMul(q32, k32) f = Where(keep, zero, lowest)
        f32 = Cast<to = 1>(f) t = Add(s, f32) m = Mul(t, scale32) r = Softmax<axis = -1>(m) p = Cast<to = 10>(r)
        c = MatMul(p, v)""",
        FULL,
        fused=False,
        constants={"scale32": np.float32(0.125)},
    ),
    "softmax in fp32": Block(
        f"{SCALED} {WIDE_SOFTMAX.format(mask='m = Add(wide, bias)')}", ", float[B,1,1,S] bias", constants=F32
    ),
    "torchscript": Block(
        f"""{ROOTS} f = Where(keep, zero32, infinite32) wide = Cast<to = 1>(t) m = Add(wide, f)
        r = Softmax<axis = -1>(m) nan = IsNaN(r) p = Where(nan, zero32, r) v32 = Cast<to = 1>(v)
        c32 = MatMul(p, v32) c = Cast<to = 10>(c32)""",
        FULL,
        fused=False,
        constants=F32,
    ),
    "torchscript, two layers": Block(
        f"""{ROOTS} f = Where(keep, zero32, infinite32) wide = Cast<to = 1>(t) m = Add(wide, f)
        p = Softmax<axis = -1>(m) v32 = Cast<to = 1>(v) c32 = MatMul(p, v32)
        q2 = MatMul(c32, w32) k2 = MatMul(c32, u32) v2 = MatMul(c32, v_w32) kt2 = Transpose<perm = [0, 1, 3, 2]>(k2)
        s2 = MatMul(q2, kt2) t2 = Mul(s2, scale32) m2 = Add(t2, f) p2 = Softmax<axis = -1>(m2) c2 = MatMul(p2, v2)
        c = Cast<to = 10>(c2)""",
        FULL,
        fused=False,
        constants={**F32, **WIDE_WEIGHTS, "scale32": np.float32(0.125)},
        sites=2,
    ),
    "guard between casts": Block(
        f"""{ROOTS} wide = Cast<to = 1>(t) m = Where(keep, wide, infinite32) r = Softmax<axis = -1>(m)
        nan = IsNaN(r) g = Where(nan, zero32, r) p = Cast<to = 10>(g) c = MatMul(p, v)""",
        FULL,
        fused=None,
        constants=F32,
    ),
    "one head of keys": Block(
        f"""kb = Transpose<perm = [0, 1, 3, 2]>(kt) kc = Add(kb, zero) kd = Transpose<perm = [0, 1, 3, 2]>(kc)
        s = MatMul(q, kd) t = Mul(s, scale) m = Identity(t) {SOFTMAX}""",
        fused=False,
        kv_heads=1,
    ),
    "softcap": Block(
        f"{SCALED} d = Div(t, cap) h = Tanh(d) m = Mul(h, cap) {SOFTMAX}",
        fused=False,
        fused_native=False,
        constants={"cap": 30.0},
    ),
    "head size 8": Block(f"{SCALED} m = Identity(t) {SOFTMAX}", fused=False, fused_native=False, head_size=8),
    "head size 320": Block(f"{SCALED} m = Identity(t) {SOFTMAX}", fused=False, fused_native=False, head_size=320),
    "fp32": Block(f"{SCALED} m = Where(keep, t, lowest) {SOFTMAX}", FULL, False, False, dtype="float"),
    "bf16": Block(f"{SCALED} m = Where(keep, t, lowest) {SOFTMAX}", FULL, dtype="bfloat16"),
    "Attention, boolean mask": Block("c = Attention(q, k, v, keep)", FULL, opset=23),
    "Attention, added mask": Block("c = Attention(q, k, v, bias)", ", float16[B,1,S,S] bias", opset=23),
    "Attention, causal": Block("c = Attention<is_causal = 1>(q, k, v)", opset=23),
    "Attention, grouped": Block("c = Attention<is_causal = 1>(q, k, v)", opset=23, kv_heads=1),
    "Attention, fp32": Block("c = Attention(q, k, v, keep)", FULL, None, False, dtype="float", opset=23),
    "Attention, softcap": Block("c = Attention<softcap = 30.0>(q, k, v)", "", None, False, opset=23),
    "Attention, causal with mask": Block("c = Attention<is_causal = 1>(q, k, v, keep)", FULL, None, opset=23),
    "Attention, rank 3": Block(
        f"c3 = Attention<q_num_heads = {HEADS}, kv_num_heads = {HEADS}>(mq, mk, mv, keep)"
        " c4 = Reshape(c3, split) c = Transpose<perm = [0, 2, 1, 3]>(c4)",
        FULL,
        None,
        False,
        dtype="float",
        opset=23,
    ),
}
"""By what is special about the form; the fused figures are answers of TensorRT-RTX 1.7."""


def lowered(model: ModelProto, lower: str = "native", target=RTX) -> ModelProto:
    """The model with every site that can take it in the form of `lower`, repaired."""
    sites = match_model(model)
    choices, _ = choose_lowerings(sites, lower, target)
    return repair_model(lower_model(model, sites, choices, target), target)[0]


def fused_kernels(model: ModelProto) -> int | None:
    """The fused attention kernels of the engine that TensorRT-RTX builds; None when it refuses the model."""
    report = fusion(model)
    return None if report.failure else report.kernels


def fusion(model: ModelProto) -> FusionReport:
    """What TensorRT-RTX makes of the model."""
    return find_fusion(model, Path("model.onnx"), match_model(model), backend="rtx")

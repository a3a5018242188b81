"""Attention from its projections on, in the forms in which exporters move its data, for lowering `attention`.

Four heads of size 8 on one, two or four key heads; q is [B, S, 32] and k and v [B, T, ...] unless a form says
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import ModelProto

FUSED = "FusedAttention"

SEPARATE = "float[B,S,32] q, float[B,T,32] k, float[B,T,32] v"
BY_HEADS = "float[B,4,S,8] q, float[B,4,T,8] k, float[B,4,T,8] v"
JOINED = "float[B,S,32] out"
CONTEXT = "float[B,4,S,8] out"

SPLIT_Q = "qr = Reshape(q, split) qh = Transpose<perm = [0, 2, 1, 3]>(qr)"
SPLIT_K = "kr = Reshape(k, split) kt = Transpose<perm = [0, 2, 3, 1]>(kr)"
SPLIT_V = "vr = Reshape(v, split) vh = Transpose<perm = [0, 2, 1, 3]>(vr)"
SPLIT = f"{SPLIT_Q} {SPLIT_K} {SPLIT_V}"
TRANSPOSED = "kt = Transpose<perm = [0, 1, 3, 2]>(kh)"
ATTEND = "s = MatMul(qh, kt) t = Mul(s, scale) p = Softmax<axis = -1>(t) c = MatMul(p, vh)"
JOIN = "ct = Transpose<perm = [0, 2, 1, 3]>(c) out = Reshape(ct, joined)"

SPLIT_KV = """
    kr = Reshape(k, split_kv) kp = Transpose<perm = [0, 2, 1, 3]>(kr)
    vr = Reshape(v, split_kv) vp = Transpose<perm = [0, 2, 1, 3]>(vr)
"""
GROUPED = "float[B,S,32] q, float[B,T,16] k, float[B,T,16] v"

PACKED = "float[B,S,96] x"
HEADS_OF_THREE = f"""
    qh = Transpose<perm = [0, 2, 1, 3]>(q4) kh = Transpose<perm = [0, 2, 1, 3]>(k4) {TRANSPOSED}
    vh = Transpose<perm = [0, 2, 1, 3]>(v4) {ATTEND} {JOIN}
"""

CONSTANTS: dict[str, object] = {
    "scale": np.float32(0.3),
    "split": [0, 0, 4, 8],
    "split_kv": [0, 0, 2, 8],
    "joined": [0, 0, 32],
    "zero": 0,
    "one": 1,
    "two": 2,
    "axis2": [2],
    "axis3": [3],
    "last": [-1],
    "n0": [0],
    "n1": [1],
    "n2": [2],
    "n3": [3],
    "n4": [4],
    "n32": [32],
    "n64": [64],
    "end": [2**62],
}


@dataclass(frozen=True)
class Moved:
    """A model, the layout and heads that its site is to have, the operators left after lowering, and what of them is
    said to stay outside."""

    inputs: str
    body: str
    layout: str
    heads: tuple[int, int] = (4, 4)
    left: tuple[str, ...] = (FUSED,)
    outside: tuple[str, ...] = ()
    output: str = JOINED
    constants: dict[str, object] = field(default_factory=dict)
    opset: int = 17

    def model(self) -> ModelProto:
        model = onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["" : {self.opset}, "com.microsoft" : 1]>
            g ({self.inputs}) => ({self.output}) {{ {self.body} }}
        """)
        for name, value in {**CONSTANTS, **self.constants}.items():
            if any(name in node.input for node in model.graph.node):
                model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return model


def _packed(cut: str, layout: str, heads: tuple[int, int] = (4, 4), **changes: object) -> Moved:
    return Moved(PACKED, f"{cut} {HEADS_OF_THREE}", layout, heads, **changes)


QUERY_AND_KEY_TURNED = Moved(
    SEPARATE,
    f"""
    qr = Reshape(q, split) q0 = Transpose<perm = [0, 2, 1, 3]>(qr) qh = Tanh(q0)
    kr = Reshape(k, split) k0 = Transpose<perm = [0, 2, 1, 3]>(kr) kh = Sin(k0) {TRANSPOSED} {SPLIT_V} {ATTEND} {JOIN}
    """,
    "bhsd,bhsd,bsd,bsd",
    left=("Reshape", "Transpose", "Tanh", "Reshape", "Transpose", "Sin", FUSED),
    outside=("query by heads, as Tanh makes it", "key by heads, as Sin makes it"),
)

MOVED: dict[str, Moved] = {
    "projections": Moved(SEPARATE, f"{SPLIT} {ATTEND} {JOIN}", "bsd"),
    "heads split already": Moved(
        "float[B,S,4,8] q, float[B,T,4,8] k, float[B,T,4,8] v",
        f"""
        qh = Transpose<perm = [0, 2, 1, 3]>(q) kt = Transpose<perm = [0, 2, 3, 1]>(k)
        vh = Transpose<perm = [0, 2, 1, 3]>(v) {ATTEND} out = Transpose<perm = [0, 2, 1, 3]>(c)
        """,
        "bshd",
        output="float[B,S,4,8] out",
    ),
    "by heads": Moved(
        BY_HEADS,
        "kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) p = Softmax<axis = -1>(s) out = MatMul(p, v)",
        "bhsd",
        output=CONTEXT,
    ),
    "key given transposed": Moved(
        "float[B,4,S,8] q, float[B,4,8,T] k, float[B,4,T,8] v",
        "s = MatMul(q, k) p = Softmax<axis = -1>(s) out = MatMul(p, v)",
        "bhsd",
        left=("Transpose", FUSED),
        outside=("a transpose of the key",),
        output=CONTEXT,
    ),
    "key transposed in rank 3": Moved(
        "float[2,5,32] q, float[2,6,32] k, float[2,6,32] v",
        f"""
        {SPLIT_Q} {SPLIT_V} kr = Reshape(k, split) kh = Transpose<perm = [0, 2, 1, 3]>(kr) k3 = Reshape(kh, merged)
        k3t = Transpose<perm = [0, 2, 1]>(k3) kt = Reshape(k3t, apart) {ATTEND} {JOIN}
        """,
        "bsd",
        constants={"merged": [8, 6, 8], "apart": [2, 4, 8, 6]},
        output="float[2,5,32] out",
    ),
    "query and key turned": QUERY_AND_KEY_TURNED,
    "heads repeated by Expand": Moved(
        GROUPED,
        f"""
        {SPLIT_Q} {SPLIT_KV}
        ku = Unsqueeze(kp, axis2) ke = Expand(ku, repeated) kh = Reshape(ke, all_heads) {TRANSPOSED}
        vu = Unsqueeze(vp, axis2) ve = Expand(vu, repeated) vh = Reshape(ve, all_heads) {ATTEND} {JOIN}
        """,
        "bsd",
        (4, 2),
        constants={"repeated": [1, 1, 2, 1, 1], "all_heads": [0, 4, -1, 8]},
    ),
    "heads repeated by Gather": Moved(
        GROUPED,
        f"""
        {SPLIT_Q} {SPLIT_KV} kh = Gather<axis = 1>(kp, twice) {TRANSPOSED} vh = Gather<axis = 1>(vp, twice)
        {ATTEND} {JOIN}
        """,
        "bsd",
        (4, 2),
        constants={"twice": [0, 0, 1, 1]},
    ),
    "one head repeated by Tile": Moved(
        "float[B,S,32] q, float[B,T,8] k, float[B,T,8] v",
        f"""
        {SPLIT_Q} ku = Unsqueeze(k, n1) kh = Tile(ku, times) {TRANSPOSED} vu = Unsqueeze(v, n1) vh = Tile(vu, times)
        {ATTEND} {JOIN}
        """,
        "bsd",
        (4, 1),
        constants={"times": [1, 4, 1, 1]},
    ),
    "one head that the product repeats": Moved(
        "float[B,S,32] q, float[B,1,T,8] k, float[B,1,T,8] v",
        f"{SPLIT_Q} kt = Transpose<perm = [0, 1, 3, 2]>(k) vh = Identity(v) {ATTEND} {JOIN}",
        "bsd,bhsd,bhsd,bsd",
        (4, 1),
    ),
    "heads repeated in turn, not in succession": Moved(
        GROUPED,
        f"{SPLIT_Q} {SPLIT_KV} kh = Tile(kp, times) {TRANSPOSED} vh = Tile(vp, times) {ATTEND} {JOIN}",
        "bsd,bhsd,bhsd,bsd",
        left=("Reshape", "Transpose", "Reshape", "Transpose", "Tile", "Tile", FUSED),
        outside=("key by heads, as Tile makes it", "values by heads, as Tile makes it"),
        constants={"times": [1, 2, 1, 1]},
    ),
    "only the key's heads repeated in succession": Moved(
        GROUPED,
        f"{SPLIT_Q} {SPLIT_KV} kh = Gather<axis = 1>(kp, twice) {TRANSPOSED} vh = Tile(vp, times) {ATTEND} {JOIN}",
        "bsd,bhsd,bhsd,bsd",
        left=("Reshape", "Transpose", "Reshape", "Transpose", "Gather", "Tile", FUSED),
        outside=("key by heads, as Gather makes it", "values by heads, as Tile makes it"),
        constants={"times": [1, 2, 1, 1], "twice": [0, 0, 1, 1]},
    ),
    "packed, Split": _packed(
        "q, k, v = Split<axis = -1>(x, thirds) q4 = Reshape(q, split) k4 = Reshape(k, split) v4 = Reshape(v, split)",
        "qkv",
        constants={"thirds": [32, 32, 32]},
    ),
    "packed, Split in equal parts": _packed(
        """
        q, k, v = Split<axis = 2, num_outputs = 3>(x)
        q4 = Reshape(q, split) k4 = Reshape(k, split) v4 = Reshape(v, split)
        """,
        "qkv",
        opset=18,
    ),
    "packed, Slice": _packed(
        """
        q = Slice(x, n0, n32, axis2) k = Slice(x, n32, n64, axis2) v = Slice(x, n64, end, last)
        q4 = Reshape(q, split) k4 = Reshape(k, split) v4 = Reshape(v, split)
        """,
        "qkv",
    ),
    "packed, five dimensions": Moved(
        PACKED,
        f"""
        x5 = Reshape(x, parts) xt = Transpose<perm = [2, 0, 3, 1, 4]>(x5) qh = Gather<axis = 0>(xt, zero)
        kh = Gather<axis = 0>(xt, one) {TRANSPOSED} vh = Gather<axis = 0>(xt, two) {ATTEND} {JOIN}
        """,
        "qkv",
        constants={"parts": [0, 0, 3, 4, 8]},
    ),
    "packed, five dimensions, Split": Moved(
        PACKED,
        f"""
        x5 = Reshape(x, parts) xt = Transpose<perm = [2, 0, 3, 1, 4]>(x5) q5, k5, v5 = Split<axis = 0>(xt, ones)
        qh = Squeeze(q5, n0) kh = Squeeze(k5, n0) {TRANSPOSED} vh = Squeeze(v5, n0) {ATTEND} {JOIN}
        """,
        "qkv",
        constants={"parts": [0, 0, 3, 4, 8], "ones": [1, 1, 1]},
    ),
    "packed, heads grouped": Moved(
        "float[B,S,64] x",
        f"""
        q, k, v = Split<axis = -1>(x, parts) {SPLIT_Q} {SPLIT_KV} kh = Gather<axis = 1>(kp, twice) {TRANSPOSED}
        vh = Gather<axis = 1>(vp, twice) {ATTEND} {JOIN}
        """,
        "qkv",
        (4, 2),
        constants={"parts": [32, 16, 16], "twice": [0, 0, 1, 1]},
    ),
    "packed, context for a Gemm": Moved(
        PACKED,
        f"""
        q, k, v = Split<axis = -1>(x, thirds) {SPLIT} {ATTEND} ct = Transpose<perm = [0, 2, 1, 3]>(c)
        out = Reshape(ct, rows)
        """,
        "qkv",
        left=(FUSED, "Reshape", "Reshape"),
        output="float[N,32] out",
        constants={"thirds": [32, 32, 32], "rows": [-1, 32]},
    ),
    "packed by head": _packed(
        """
        x5 = Reshape(x, parts) q4 = Gather<axis = 3>(x5, zero) k4 = Gather<axis = 3>(x5, one)
        v4 = Gather<axis = 3>(x5, two)
        """,
        "qkv_by_head",
        constants={"parts": [0, 0, 4, 3, 8]},
    ),
    "packed by head, Split": Moved(
        PACKED,
        f"""
        x4 = Reshape(x, parts) xt = Transpose<perm = [0, 2, 1, 3]>(x4) qh, kh, vh = Split<axis = -1>(xt, eights)
        {TRANSPOSED} {ATTEND} {JOIN}
        """,
        "qkv_by_head",
        constants={"parts": [0, 0, 4, 24], "eights": [8, 8, 8]},
    ),
    "packed by key head": Moved(
        "float[B,S,64] x",
        f"""
        x5 = Reshape(x, parts) q5 = Slice(x5, n0, n2, axis3) k5 = Slice(x5, n2, n3, axis3) v5 = Gather<axis = 3>(x5, n3)
        q4 = Reshape(q5, split) qh = Transpose<perm = [0, 2, 1, 3]>(q4)
        ke = Expand(k5, five) k4 = Reshape(ke, split) kh = Transpose<perm = [0, 2, 1, 3]>(k4) {TRANSPOSED}
        ve = Expand(v5, five) v4 = Reshape(ve, split) vh = Transpose<perm = [0, 2, 1, 3]>(v4) {ATTEND} {JOIN}
        """,
        "qkv_by_head",
        (4, 2),
        constants={"parts": [0, 0, 2, 4, 8], "five": [1, 1, 1, 2, 1]},
    ),
    "packed by key head, indexed": Moved(
        "float[B,S,48] x",
        f"""
        x4 = Reshape(x, parts) xt = Transpose<perm = [2, 0, 1, 3]>(x4) q4 = Slice(x4, n0, n4, axis2)
        k4 = GatherND(xt, fifth) v4 = GatherND(xt, sixth) qh = Transpose<perm = [0, 2, 1, 3]>(q4)
        kt = Transpose<perm = [1, 0, 3, 2]>(k4) vh = Transpose<perm = [1, 0, 2, 3]>(v4) {ATTEND} {JOIN}
        """,
        "qkv",
        (4, 1),
        constants={"parts": [0, 0, 6, 8], "fifth": [[-2]], "sixth": [[-1]]},
    ),
    "packed in another order": Moved(
        PACKED,
        f"v, k, q = Split<axis = -1>(x, thirds) {SPLIT} {ATTEND} {JOIN}",
        "bsd",
        left=("Split", FUSED),
        constants={"thirds": [32, 32, 32]},
    ),
    "heads merged with the batch": Moved(
        "float[6,S,32] q, float[6,T,32] k, float[6,T,32] v",
        f"""
        {SPLIT_Q} kr = Reshape(k, split) kh = Transpose<perm = [0, 2, 1, 3]>(kr) {SPLIT_V}
        q3 = Reshape(qh, merged) k3 = Reshape(kh, merged) k3t = Transpose<perm = [0, 2, 1]>(k3)
        v3 = Reshape(vh, merged) s = MatMul(q3, k3t) p = Softmax<axis = -1>(s) c3 = MatMul(p, v3)
        c = Reshape(c3, apart) {JOIN}
        """,
        "bsd",
        output="float[6,S,32] out",
        constants={"merged": [6 * 4, -1, 8], "apart": [6, 4, -1, 8]},
    ),
    "a batch of heads": Moved(
        "float[N,S,8] q, float[N,T,8] k, float[N,T,8] v, float[N,S,T] added",
        """
        kt = Transpose<perm = [0, 2, 1]>(k) s = MatMul(q, kt) m = Add(s, added) p = Softmax<axis = -1>(m)
        out = MatMul(p, v)
        """,
        "bsd",
        (1, 1),
        left=("Unsqueeze", FUSED),
        output="float[N,S,8] out",
    ),
    "merged heads under a mask of their own": Moved(
        "float[2,4,5,8] q, float[2,4,6,8] k, float[2,4,6,8] v, float[8,5,6] added",
        """
        q3 = Reshape(q, merged) k3 = Reshape(k, merged) kt = Transpose<perm = [0, 2, 1]>(k3) v3 = Reshape(v, merged)
        s = MatMul(q3, kt) m = Add(s, added) p = Softmax<axis = -1>(m) c = MatMul(p, v3) out = Reshape(c, apart)
        """,
        "bhsd",
        left=("Shape", "Slice", "Concat", "Reshape", FUSED),
        output="float[2,4,5,8] out",
        constants={"merged": [8, -1, 8], "apart": [2, 4, 5, 8]},
    ),
    "heads merged for the softmax alone": Moved(
        "float[2,4,5,8] q, float[2,4,6,8] k, float[2,4,6,8] v, float[8,5,6] added",
        """
        kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) s3 = Reshape(s, merged) m = Add(s3, added)
        p = Softmax<axis = -1>(m) v3 = Reshape(v, v_merged) c = MatMul(p, v3) out = Reshape(c, apart)
        """,
        "bhsd",
        left=("Shape", "Slice", "Concat", "Reshape", FUSED),
        output="float[2,4,5,8] out",
        constants={"merged": [8, 5, 6], "v_merged": [8, 6, 8], "apart": [2, 4, 5, 8]},
    ),
    "the context's shape read for its own Reshape": Moved(
        SEPARATE,
        f"""
        {SPLIT} {ATTEND} ct = Transpose<perm = [0, 2, 1, 3]>(c) shape = Shape(ct) front = Slice(shape, n0, n2)
        target = Concat<axis = 0>(front, last) out = Reshape(ct, target)
        """,
        "bsd",
    ),
    "the context's shape read elsewhere": Moved(
        SEPARATE,
        f"""
        {SPLIT} {ATTEND} ct = Transpose<perm = [0, 2, 1, 3]>(c) out = Reshape(ct, joined) sizes = Shape(ct)
        """,
        "bsd,bsd,bsd,bshd",
        left=(FUSED, "Reshape", "Shape"),
        output=f"{JOINED}, int64[4] sizes",
    ),
    "the context read twice": Moved(
        SEPARATE,
        f"{SPLIT} {ATTEND} {JOIN} twin = Tanh(c)",
        "bsd,bsd,bsd,bhsd",
        left=(FUSED, "Transpose", "Reshape", "Tanh"),
        outside=("the context's way from [B, H, S, D]",),
        output=f"{JOINED}, float[B,4,S,8] twin",
    ),
    "projections read elsewhere": Moved(
        SEPARATE,
        f"{SPLIT} {ATTEND} {JOIN} present = Identity(kt)",
        "bsd",
        left=("Reshape", "Transpose", FUSED, "Identity"),
        output=f"{JOINED}, float[B,4,8,T] present",
    ),
    "Attention of opset 23": Moved(
        PACKED,
        f"""
        q, k, v = Split<axis = -1>(x, thirds) {SPLIT_Q} kr = Reshape(k, split) kh = Transpose<perm = [0, 2, 1, 3]>(kr)
        {SPLIT_V} c = Attention<scale = 0.3>(qh, kh, vh) {JOIN}
        """,
        "qkv",
        constants={"thirds": [32, 32, 32]},
        opset=23,
    ),
    "Attention of rank 3, grouped": Moved(
        GROUPED,
        "out = Attention<q_num_heads = 4, kv_num_heads = 2, is_causal = 1>(q, k, v)",
        "bsd",
        (4, 2),
        opset=23,
    ),
    "MultiHeadAttention of ONNX Runtime": Moved(
        PACKED,
        "q, k, v = Split<axis = -1>(x, thirds) out = com.microsoft.MultiHeadAttention<num_heads = 4>(q, k, v)",
        "qkv",
        constants={"thirds": [32, 32, 32]},
    ),
}

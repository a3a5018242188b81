"""Models whose query, key and values are products of one tensor, and what becomes of them as FusedAttention nodes."""

from __future__ import annotations

import numpy as np
from attention_models import ATTEND, FUSED, JOIN, SPLIT, SPLIT_KV, SPLIT_Q, TRANSPOSED, Moved

__all__ = ["PROJECTED_FORMS"]

PROJECTED = "float[B,S,16] x"
PRODUCTS = "qm = MatMul(x, wq) km = MatMul(x, wk) vm = MatMul(x, wv)"
SUMS = "q = Add(qm, bq) k = Add(bk, km) v = Add(vm, bv)"
WEIGHTS: dict[str, object] = {
    **{f"w{name}": np.random.default_rng(number).standard_normal((16, 32), np.float32) / 4
       for number, name in enumerate("qkv")},
    **{f"b{name}": np.random.default_rng(number + 3).standard_normal(32, np.float32)
       for number, name in enumerate("qkv")},
}  # fmt: skip
NARROW = {name: WEIGHTS[name][..., :16] for name in ("wk", "wv", "bk", "bv")}

PROJECTED_FORMS: dict[str, Moved] = {
    "products of one tensor": Moved(
        PROJECTED,
        f"{PRODUCTS} {SUMS} {SPLIT} {ATTEND} {JOIN}",
        "qkv",
        left=("Concat", "MatMul", "Concat", "Add", FUSED),
        constants=WEIGHTS,
    ),
    "products of one tensor, nothing added, its shape read": Moved(
        PROJECTED,
        f"""q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) size = Shape(q) {SPLIT} {ATTEND}
        ct = Transpose<perm = [0, 2, 1, 3]>(c) out = Reshape(ct, size)""",
        "qkv",
        left=("Concat", "MatMul", FUSED),
        constants=WEIGHTS,
    ),
    "products of one tensor, two key heads": Moved(
        PROJECTED,
        f"""{PRODUCTS} {SUMS} {SPLIT_Q} {SPLIT_KV} k5 = Unsqueeze(kp, axis2) kx = Expand(k5, repeats)
        kh = Reshape(kx, by_heads) {TRANSPOSED} v5 = Unsqueeze(vp, axis2) vx = Expand(v5, repeats)
        vh = Reshape(vx, by_heads) {ATTEND} {JOIN}""",
        "qkv",
        (4, 2),
        left=("Concat", "MatMul", "Concat", "Add", FUSED),
        constants={**WEIGHTS, **NARROW, "repeats": [1, 1, 2, 1, 1], "by_heads": [0, 4, -1, 8]},
    ),
    "products of one tensor, one of them without a bias": Moved(
        PROJECTED,
        f"""qm = MatMul(x, wq) k = MatMul(x, wk) vm = MatMul(x, wv) q = Add(qm, bq) v = Add(vm, bv)
        {SPLIT} {ATTEND} {JOIN}""",
        "qkv",
        left=("Concat", "MatMul", "Expand", "Concat", "Add", FUSED),
        constants=WEIGHTS,
    ),
    "products of two tensors": Moved(
        f"{PROJECTED}, float[B,S,16] y",
        f"{PRODUCTS.replace('km = MatMul(x', 'km = MatMul(y')} {SUMS} {SPLIT} {ATTEND} {JOIN}",
        "bsd",
        left=("MatMul", "MatMul", "MatMul", "Add", "Add", "Add", FUSED),
        constants=WEIGHTS,
    ),
    "products of one tensor, a key that others read": Moved(
        PROJECTED,
        f"""{PRODUCTS} {SUMS} {SPLIT} {ATTEND} ct = Transpose<perm = [0, 2, 1, 3]>(c) j = Reshape(ct, joined)
        out = Add(j, k)""",
        "bsd",
        left=("MatMul", "MatMul", "MatMul", "Add", "Add", "Add", FUSED, "Add"),
        constants=WEIGHTS,
    ),
}

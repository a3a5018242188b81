"""Random cases of FusedAttention for the kernels: sizes, layouts, masks and values that hurt, and what is right."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from mask_abi import DTYPES

from attngraft.contract import KEEP_DTYPES, CausalMode, EmptyRows, FusedAttention, Role
from attngraft.verify import oracle

TOLERANCES = {
    "float32": 3e-3,  # TF32: factors of 11 bits
    "float32 exact": 4e-6,
    "float16": 4e-3,  # weights and context are rounded to 11 bits
    "bfloat16": 3e-2,  # to 8
}
"""Absolute and relative, for values of a standard normal distribution."""

LOGARITHM_TOLERANCE = {"float32": 4e-3, "float32 exact": 2e-5, "float16": 2e-3, "bfloat16": 2e-3}

HEAD_SIZES = (8, 16, 40, 64, 64, 64, 72, 96, 128, 160, 256, 320, 512, 7, 20, 33)
"""Around every tile, multiples of 8 and others."""


@dataclass(frozen=True)
class CaseRange:
    """What random cases are drawn from."""

    dtypes: tuple[str, ...] = tuple(DTYPES)
    head_sizes: tuple[int, ...] = HEAD_SIZES
    query_counts: tuple[int, ...] = (1, 2, 3, 16, 17, 63, 64, 65, 70, 129)
    key_counts: tuple[int, ...] = (1, 7, 31, 32, 33, 64, 65, 130, 200, 300)
    gaps: tuple[int, ...] = (0, 0, 0, 8, 3)
    few_queries: float = 0.15
    """Share of cases with one to three queries over many keys."""


EVERYTHING = CaseRange()
FOR_WARPGROUPS = CaseRange(
    dtypes=("float16", "bfloat16"),
    head_sizes=(8, 40, 64, 64, 64, 64, 72, 128, 128, 160, 256, 320),
    query_counts=(17, 33, 63, 64, 65, 129, 193, 260),
    key_counts=(1, 31, 64, 65, 127, 130, 200, 300, 400),
    gaps=(0, 0, 0, 8),
    few_queries=0.0,
)
"""Whole vectors of 16-bit types, more rows than are split, up to the largest head of a tile for warp groups."""

TF32_FOR_WARPGROUPS = replace(
    FOR_WARPGROUPS,
    dtypes=("float32",),
    head_sizes=(4, 12, 40, 64, 64, 64, 64, 72, 100, 128, 128),
    gaps=(0, 0, 0, 4, 8),
)
"""The same of fp32, whose vectors are of 4 elements."""

SCORE_ROUNDING = 2.5e-7
"""fp32 rounds s by 2^-24 at each of up to four steps, relative to the bias in it; exp makes that an error of the
weights."""

ABSORBING = 1e30
"""A bias this large leaves nothing of the score, in float64 either."""

WORK_LIMIT = 4_000_000
"""Multiplications of a case: the emulated device takes a second for so many."""


@dataclass(frozen=True)
class AttentionCase:
    """q [B,H,Sq,D], k [B,Hk,Sk,D], v [B,Hk,Sk,Dv] as views of any layout, in memory with NaN between their rows."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    config: FusedAttention
    operands: dict[str, np.ndarray] = field(default_factory=dict)
    layout: str = "bhsd"
    gap: int = 0

    @property
    def dtype(self) -> str:
        return self.q.dtype.name

    @property
    def tolerance_key(self) -> str:
        return f"{self.dtype} exact" if self.config.exact else self.dtype

    def empty_context(self) -> np.ndarray:
        """A view [B, H, Sq, Dv] of NaN, in the case's layout."""
        return place(np.full((*self.q.shape[:3], self.v.shape[3]), np.nan, self.q.dtype), self.layout, self.gap)

    def assert_nothing_else_written(self, context: np.ndarray) -> None:
        memory = context
        while memory.base is not None:
            memory = memory.base
        written = np.count_nonzero(~np.isnan(memory.astype(np.float32)))
        assert written <= context.size, f"{written} elements written of {context.size}: {self.describe()}"

    def scores_shape(self) -> tuple[int, int, int, int]:
        return (*self.q.shape[:3], self.k.shape[2])

    def describe(self) -> str:
        shapes = {role: (array.shape, str(array.dtype)) for role, array in self.operands.items()}
        sizes = f"q {self.q.shape} k {self.k.shape} v {self.v.shape} {self.dtype} {self.layout}+{self.gap}"
        return f"{sizes} {self.config} {shapes}"


def place(values: np.ndarray, layout: str, gap: int) -> np.ndarray:
    """The same values [B,H,S,D] as a view of memory in `layout`, with `gap` NaNs behind each row."""
    batch, heads, length, size = values.shape
    if layout == "bhsd":
        memory = np.full((batch, heads, length, size + gap), np.nan, values.dtype)
        view = memory[..., :size]
    else:
        memory = np.full((batch, length, heads * size + gap), np.nan, values.dtype)
        view = memory[..., : heads * size].reshape(batch, length, heads, size).transpose(0, 2, 1, 3)
        if gap:  # a reshape of a slice copies
            strides = memory.strides
            view = np.lib.stride_tricks.as_strided(
                memory, values.shape, (strides[0], size * values.itemsize, strides[1], values.itemsize)
            )
    view[...] = values
    return view


def expected_attention(case: AttentionCase) -> tuple[np.ndarray, np.ndarray]:
    """Context and log-sum-exp in float64."""
    q, k, v = (array.astype(np.float64) for array in (case.q, case.k, case.v))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(array, group, axis=1) for array in (k, v))
    with np.errstate(invalid="ignore", over="ignore"):
        scores = q @ k.transpose(0, 1, 3, 2)
        weights = oracle.probabilities(scores, case.config, case.operands)
        context = weights @ v
        logarithms = oracle.log_sum_exp(scores, case.config, case.operands)
    return context, logarithms


def assert_attention_matches(actual: tuple[np.ndarray, np.ndarray], case: AttentionCase) -> None:
    expected, logarithms = expected_attention(case)
    bias = np.abs(case.operands.get(Role.BIAS, np.zeros(1)).astype(np.float64))
    rounding = SCORE_ROUNDING * bias[bias < ABSORBING].max(initial=0.0)
    tolerance = TOLERANCES[case.tolerance_key] + rounding
    np.testing.assert_allclose(
        actual[0].astype(np.float64), expected, atol=tolerance, rtol=tolerance, err_msg=case.describe()
    )
    tolerance = LOGARITHM_TOLERANCE[case.tolerance_key] + rounding
    np.testing.assert_allclose(actual[1], logarithms, atol=tolerance, rtol=tolerance, err_msg=case.describe())


def normal_case(
    dtype: str = "float16",
    *,
    batch: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    queries: int = 130,
    keys: int = 200,
    size: int = 64,
    value_size: int | None = None,
    factor: float = 1.0,
    config: FusedAttention | None = None,
    operands: dict[str, np.ndarray] | None = None,
    seed: int = 0,
) -> AttentionCase:
    """q and k are `factor` times what is normal, so that scores are factor^2 times that."""
    rng = np.random.default_rng(seed)
    q, k, v = (
        (rng.standard_normal((batch, count, length, width)) * times).astype(DTYPES[dtype])
        for count, length, width, times in (
            (heads, queries, size, factor),
            (kv_heads, keys, size, factor),
            (kv_heads, keys, value_size or size, 1.0),
        )
    )
    return AttentionCase(q, k, v, config or FusedAttention(scale=size**-0.5), operands or {})


def mask_mixes(case: AttentionCase) -> dict[str, tuple[FusedAttention, dict]]:
    """A configuration and its operands for each kind of mask that a kernel is compiled for, of the case's sizes."""
    batch, heads, queries, keys = case.scores_shape()
    size = case.q.shape[-1]
    rng = np.random.default_rng(5)
    keep = rng.random((batch, 1, 1, keys)) < 0.6
    lengths = rng.integers(1, keys + 1, batch).astype(np.int32)
    bias = rng.standard_normal((1, heads, queries, keys)).astype(np.float32)
    each = rng.random((batch, heads, queries, keys)) < 0.6
    scale = size**-0.5
    return {
        "none": (FusedAttention(scale=scale), {}),
        "softcap": (FusedAttention(scale=scale, softcap=2.0), {}),
        "causal": (FusedAttention(scale=scale, causal=CausalMode.BOTTOM_RIGHT), {}),
        "window": (FusedAttention(scale=scale, window_left=40, window_right=3, softcap=2.0), {}),
        "lengths": (FusedAttention((Role.KV_LENGTHS,), scale), {Role.KV_LENGTHS: lengths}),
        "keep": (FusedAttention((Role.KEEP,), scale, empty_rows=EmptyRows.UNIFORM), {Role.KEEP: keep}),
        "keep, softcap": (FusedAttention((Role.KEEP,), scale, softcap=2.0), {Role.KEEP: keep}),
        "bias": (
            FusedAttention((Role.BIAS, Role.KV_LENGTHS), scale, empty_rows=EmptyRows.UNMASKED),
            {Role.BIAS: bias.astype(case.q.dtype), Role.KV_LENGTHS: lengths},
        ),
        "bias and keep": (
            FusedAttention((Role.BIAS, Role.KEEP), scale, empty_rows=EmptyRows.UNMASKED),
            {Role.BIAS: bias, Role.KEEP: each},
        ),
    }


def random_attention(seed: int, work_limit: int = WORK_LIMIT, among: CaseRange = EVERYTHING) -> AttentionCase:
    rng = np.random.default_rng(seed)
    dtype = DTYPES[str(rng.choice(among.dtypes))]
    head_size = int(rng.choice(among.head_sizes))
    value_size = head_size if rng.random() < 0.7 else int(rng.choice(among.head_sizes))
    queries, keys = int(rng.choice(among.query_counts)), int(rng.choice(among.key_counts))
    if rng.random() < among.few_queries:
        queries, keys = int(rng.integers(1, 4)), int(rng.choice([300, 700, 1100]))  # keys split over blocks
    left = max(1, work_limit // (queries * keys * (head_size + value_size)))
    batch = int(rng.integers(1, min(left, 2) + 1))
    kv_heads = int(rng.integers(1, min(left // batch, 2) + 1))
    heads = kv_heads * int(rng.integers(1, max(1, min(left // batch // kv_heads, 4)) + 1))
    layout, gap = str(rng.choice(["bhsd", "bshd"])), int(rng.choice(among.gaps))
    shapes = (
        (batch, heads, queries, head_size),
        (batch, kv_heads, keys, head_size),
        (batch, kv_heads, keys, value_size),
    )
    q, k, v = (place(rng.standard_normal(shape).astype(dtype), layout, gap) for shape in shapes)
    roles = tuple(role for role in Role.ALL if rng.random() < 0.3)
    scores = (batch, heads, queries, keys)
    config = FusedAttention(
        operands=roles,
        scale=float(rng.choice([head_size**-0.5, head_size**-0.5, 0.1, -0.2, 0.0])),
        causal=str(rng.choice(CausalMode.ALL)),
        window_left=int(rng.choice([-1, -1, -1, 0, 5, 40])),
        window_right=int(rng.choice([-1, -1, -1, 0, 30])),
        softcap=float(rng.choice([0.0, 0.0, 0.0, 2.0])),
        empty_rows=str(rng.choice(EmptyRows.ALL)),
        exact=int(dtype == np.float32 and rng.random() < 0.5),
    )
    return AttentionCase(
        q, k, v, config, {role: random_operand(rng, role, scores, dtype) for role in roles}, layout, gap
    )


def random_operand(rng: np.random.Generator, role: str, scores: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """One operand: a random shape that broadcasts, half of the masks the same for all queries as a padding mask is."""
    if role in (Role.KV_LENGTHS, Role.KV_STARTS):
        return rng.integers(-1, scores[-1] + 2 if role == Role.KV_LENGTHS else scores[-1] // 2 + 1, scores[0]).astype(
            "i4"
        )
    shape = [size if rng.random() < 0.6 else 1 for size in scores]
    if role == Role.KEEP:
        if rng.random() < 0.5:
            shape[1:] = [1, 1, scores[-1]]
        kept = rng.random(shape) < rng.choice([0.0, 0.05, 0.5, 0.9])
        return (kept * int(rng.choice([1, 2, 100]))).astype(rng.choice(KEEP_DTYPES))
    bias = rng.standard_normal(shape)
    bias[rng.random(shape) < 0.2] = rng.choice([-np.inf, -1e4, 0.0])
    if rng.random() < 0.5:
        bias[rng.random(shape) < 0.2] = np.finfo(np.float32).min
        return bias.astype(np.float32)
    return bias.astype(dtype)

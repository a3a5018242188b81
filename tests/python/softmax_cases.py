"""Random cases for the kernels: shapes, masks and values that hurt."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from mask_abi import DTYPES

from attngraft.contract import KEEP_DTYPES, CausalMode, EmptyRows, MaskedSoftmax, Role

MAX_ELEMENTS = 150_000  # of a random case: the float64 oracle takes some milliseconds for it

# Around every change of kernel, and odd.
KEY_COUNTS = (
    1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 63, 64, 65, 100, 127, 128, 129, 130, 197, 255, 256, 257, 384,
    511, 512, 513, 577, 1000, 1023, 1024, 1025, 1500, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 8193, 16383, 16384,
    16385, 32760, 32768, 32769, 40001, 70000,
)  # fmt: skip

# Relative error, and absolute error below which a probability counts as 0.
TOLERANCES = {
    "float32": (1e-5, 1e-30),  # exp2 is good to 2 units in the last place, sums to a few more
    "float16": (1.1e-3, 6.1e-8),  # one unit in the last place; the smallest subnormal
    "bfloat16": (8e-3, 1e-30),  # one unit in the last place
}
SCORE_ROUNDING = 2.5e-7  # fp32 rounds s by 2^-24 at each of up to four steps; exp turns that into a relative error


@dataclass(frozen=True)
class Case:
    scores: np.ndarray
    config: MaskedSoftmax
    operands: dict[str, np.ndarray] = field(default_factory=dict)

    def describe(self) -> str:
        shapes = {role: (array.shape, str(array.dtype)) for role, array in self.operands.items()}
        return f"{self.scores.shape} {self.scores.dtype} {self.config} {shapes}"


def not_finite_case(scores: np.ndarray, empty_rows: str) -> Case:
    """Of scores [rows, keys]: rows 0 to 2 become NaN, through one score or all; rows 3 and 4 hold a NaN that is not
    allowed, and -inf alone."""
    scores[0, 1] = np.nan
    scores[1, 2] = np.inf
    scores[2, :] = np.nan
    scores[3, 3] = np.nan
    scores[4, :] = -np.inf
    keep = np.ones(scores.shape, bool)
    keep[3, 3] = False
    return Case(scores, MaskedSoftmax(operands=(Role.KEEP,), empty_rows=empty_rows), {Role.KEEP: keep})


def broadcastable(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A random shape that broadcasts to `shape`."""
    aligned = tuple(size if rng.random() < 0.6 else 1 for size in shape)
    return aligned[int(rng.integers(0, len(shape))) :] if rng.random() < 0.3 else aligned


def random_shape(rng: np.random.Generator) -> tuple[int, ...]:
    keys = int(rng.choice(KEY_COUNTS))
    budget = max(1, MAX_ELEMENTS // keys)
    shape = [keys]
    for _ in range(int(rng.integers(1, 6))):
        size = int(rng.integers(1, min(budget, 14) + 1))
        budget //= size
        shape.insert(0, size)
    return tuple(shape)


def random_operand(rng: np.random.Generator, role: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if role in (Role.KV_LENGTHS, Role.KV_STARTS):
        batch = shape[0] if len(shape) > 2 else 1
        return rng.integers(-1, shape[-1] + 2, batch).astype(np.int32)
    operand_shape = broadcastable(rng, shape)
    if role == Role.KEEP:
        kept = rng.random(operand_shape) < rng.choice([0.05, 0.5, 0.9])
        return (kept * int(rng.choice([1, 2, 100]))).astype(rng.choice(KEEP_DTYPES))
    bias = rng.standard_normal(operand_shape) * 2
    bias[rng.random(operand_shape) < 0.2] = rng.choice([-np.inf, -1e4, 0.0])
    return bias.astype(np.float32 if rng.random() < 0.4 else dtype)


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    dtype = DTYPES[str(rng.choice(list(DTYPES)))]
    shape = random_shape(rng)
    roles = tuple(role for role in Role.ALL if rng.random() < 0.35)
    config = MaskedSoftmax(
        operands=roles,
        scale=float(rng.choice([1.0, 0.125, 0.3, -0.5, 0.0, 2.0])),
        causal=str(rng.choice(CausalMode.ALL)),
        window_left=int(rng.choice([-1, -1, 0, 3, 100])),
        window_right=int(rng.choice([-1, -1, 0, 2, 100])),
        softcap=float(rng.choice([0.0, 0.0, 5.0, 30.0])),
        empty_rows=str(rng.choice(EmptyRows.ALL)),
    )
    scores = (rng.standard_normal(shape) * rng.choice([1.0, 4.0, 30.0])).astype(dtype)
    operands = {role: random_operand(rng, role, shape, dtype) for role in roles}
    return Case(scores, config, operands)


def largest_score(case: Case) -> float:
    """The largest finite |s| that the kernel may round."""
    largest = float(np.abs(case.scores.astype(np.float64)).max(initial=0.0, where=np.isfinite(case.scores)))
    largest *= abs(case.config.scale)
    if Role.BIAS in case.operands:
        bias = case.operands[Role.BIAS].astype(np.float64)
        largest += float(np.abs(bias).max(initial=0.0, where=np.isfinite(bias)))
    return largest


def assert_matches(actual: np.ndarray, expected: np.ndarray, case: Case) -> None:
    """Equal within the type's tolerance; NaN exactly where expected; exact zeros where expected."""
    relative, absolute = TOLERANCES[str(case.scores.dtype)]
    relative += SCORE_ROUNDING * largest_score(case)
    actual = actual.astype(np.float64)
    assert (np.isnan(actual) == np.isnan(expected)).all(), f"NaN in other places: {case.describe()}"
    assert (actual[expected == 0] <= absolute).all(), f"a key that is not allowed has a probability: {case.describe()}"
    bound = absolute + relative * np.abs(expected)
    excess = np.abs(actual - expected) - bound
    finite = ~np.isnan(expected)
    assert (excess[finite] <= 0).all(), f"error exceeds the bound by {excess[finite].max():.3g}: {case.describe()}"

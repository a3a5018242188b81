"""Cases for the backward kernels of MaskedSoftmax, and what is right in float64. Run on the CPU by
test_kernel_softmax_backward.py, and on a device by the file of that name in tests/gpu."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import numpy as np
from mask_abi import DTYPES
from softmax_cases import random_case

from attngraft.contract import CausalMode, EmptyRows, MaskedSoftmax, Role
from attngraft.verify import oracle

__all__ = ["CASES", "BackwardCase", "make_case", "random_backward"]

# Half a unit in the last place, and half the smallest subnormal, with a little more for the way there.
ROUNDING = {"float32": (2.0**-23, 1e-37), "float16": (2.0**-10.9, 3.1e-8), "bfloat16": (2.0**-7.9, 1e-37)}
STEPS = 16 * 2.0**-24
"""Of fp32 roundings on the way: of the sum over a row relative to the sum of its terms' magnitudes, of products and of
the tangent."""


@dataclass(frozen=True)
class BackwardCase:
    """Tensors of one call. `bias_shape`: of the bias whose gradient is wanted, or None. `bias_dtype` is that of the
    operand where there is one.

    offsets          elements by which probabilities, gradient, scores and result miss an alignment of 16 bytes
    multiprocessors  of the emulated device, if it has clusters
    """

    scores: np.ndarray
    config: MaskedSoftmax
    operands: dict[str, np.ndarray]
    gradient: np.ndarray
    bias_shape: tuple[int, ...] | None = None
    bias_dtype: str = "float32"
    offsets: tuple[int, int, int, int] = (0, 0, 0, 0)
    multiprocessors: int = 0
    probabilities: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        found = oracle.masked_softmax(self.scores, self.config, **self.operands)
        object.__setattr__(self, "probabilities", found.astype(self.scores.dtype))
        if Role.BIAS in self.operands:
            object.__setattr__(self, "bias_dtype", str(self.operands[Role.BIAS].dtype))

    def describe(self) -> str:
        shapes = {role: (array.shape, str(array.dtype)) for role, array in self.operands.items()}
        return (
            f"{self.scores.shape} {self.scores.dtype} {self.config} {shapes} bias {self.bias_shape} {self.bias_dtype} "
            f"offsets {self.offsets} multiprocessors {self.multiprocessors}"
        )

    def rows_without_keys(self) -> np.ndarray:
        """[..., Sq, 1]"""
        allowed = oracle.masked_softmax(self.scores, replace(self.config, empty_rows=EmptyRows.ZEROS), **self.operands)
        return (allowed == 0).all(axis=-1, keepdims=True)

    def score_gradients(self) -> tuple[np.ndarray, np.ndarray]:
        """ds in float64, and how far fp32 may be from it."""
        p, g = self.probabilities.astype(np.float64), self.gradient.astype(np.float64)
        g = np.where(p != 0, g, 0.0)
        with np.errstate(invalid="ignore"):
            ds = np.where(p != 0, p * (g - (p * g).sum(axis=-1, keepdims=True)), 0.0)
            error = STEPS * np.abs(p) * (np.abs(g) + np.abs(p * g).sum(axis=-1, keepdims=True))
            error = np.where(p != 0, error, 0.0)
        if self.config.empty_rows == EmptyRows.UNIFORM:
            without = self.rows_without_keys()
            ds, error = np.where(without, 0.0, ds), np.where(without, 0.0, error)
        return ds, error

    def assert_matches(self, grad_scores: np.ndarray, grad_bias: np.ndarray | None) -> None:
        """Every element within its own bound; NaN exactly where it is expected."""
        ds, error = self.score_gradients()
        slope = np.full(ds.shape, self.config.scale)
        if cap := self.config.softcap:
            with np.errstate(invalid="ignore", over="ignore"):
                t = self.scores.astype(np.float64) * (self.config.scale / cap)
                slope = slope / np.cosh(t) ** 2  # 1 - tanh(t) ** 2, of which nothing cancels out
                error = error + STEPS * (1 + 2 * np.abs(t)) * np.abs(ds)
            slope = np.where(self.probabilities != 0, slope, 0.0)
            error = np.where(self.probabilities != 0, error, 0.0)
        self._check("scores", grad_scores, ds * slope, error * np.abs(slope), str(self.scores.dtype))
        assert (grad_bias is None) == (self.bias_shape is None)
        if grad_bias is not None:
            terms = self._summed(np.abs(ds))
            self._check("bias", grad_bias, self._summed(ds), self._summed(error) + STEPS * terms, self.bias_dtype)

    def _summed(self, array: np.ndarray) -> np.ndarray:
        """Over the dimensions that the bias is broadcast along."""
        assert self.bias_shape is not None
        aligned = (1,) * (array.ndim - len(self.bias_shape)) + self.bias_shape
        axes = tuple(axis for axis, size in enumerate(aligned) if size == 1)
        return array.sum(axis=axes, keepdims=True).reshape(self.bias_shape)

    def _check(self, name: str, actual: np.ndarray, expected: np.ndarray, error: np.ndarray, dtype: str) -> None:
        relative, absolute = ROUNDING[dtype]
        assert actual.shape == expected.shape
        actual, finite = actual.astype(np.float64), np.isfinite(expected)
        np.testing.assert_array_equal(actual[~finite], expected[~finite], err_msg=self.describe())
        excess = np.abs(actual[finite] - expected[finite]) - (relative * np.abs(expected) + error + absolute)[finite]
        assert (excess <= 0).all(), f"{name}: beyond the bound by {excess.max():.3g}: {self.describe()}"


def make_case(
    shape: tuple[int, ...],
    dtype: str = "float16",
    *,
    config: MaskedSoftmax | None = None,
    operands: dict[str, np.ndarray] | None = None,
    seed: int = 0,
    **others: object,
) -> BackwardCase:
    """Standard normal scores, three times as wide, and gradients. `config` names no operands: those given are meant."""
    rng = np.random.default_rng(seed)
    scores, gradient = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    config = replace(config or MaskedSoftmax(scale=0.3), operands=tuple(operands or ()))
    return BackwardCase(
        (scores * 3).astype(DTYPES[dtype]), config, operands or {}, gradient.astype(DTYPES[dtype]), **others
    )


def random_backward(seed: int) -> BackwardCase:
    """A random case of the forward kernels, with a gradient, often of a bias, and sometimes off alignment."""
    rng = np.random.default_rng(seed + 10**6)
    case = random_case(seed)
    gradient = rng.standard_normal(case.scores.shape).astype(case.scores.dtype)
    aligned = tuple(size if rng.random() < 0.6 else 1 for size in case.scores.shape)
    shape = aligned[int(rng.integers(0, len(aligned))) :] if rng.random() < 0.3 else aligned
    return BackwardCase(
        case.scores,
        case.config,
        case.operands,
        gradient,
        bias_shape=shape if rng.random() < 0.6 else None,
        bias_dtype="float32" if rng.random() < 0.4 else str(case.scores.dtype),
        offsets=tuple(int(v) for v in rng.integers(0, 8, 4)) if rng.random() < 0.3 else (0, 0, 0, 0),
        multiprocessors=int(rng.choice([0, 4])),
    )


KEY_COUNTS = (
    1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 31, 32, 33, 63, 64, 65, 100, 127, 128, 130, 197, 256, 257, 384, 512, 577,
    1000, 1024, 1025, 1500, 2048, 2049, 4096, 4097, 8192, 8193, 16384, 16381, 32761, 32768,
)  # fmt: skip
"""Around every rung of the table, in whole vectors and not."""

FEW, MANY = 132, 2
"""Multiprocessors beside which two rows are few, and not."""


def _row_lengths() -> Iterator[tuple[str, Callable[[], BackwardCase]]]:
    for dtype, keys in product(DTYPES, KEY_COUNTS):
        shape = (2, 5, keys) if keys < 4096 else (2, keys)
        yield f"{dtype} rows of {keys}", partial(make_case, shape, dtype, seed=keys, bias_shape=(1, keys))
    for keys in (1, 3, 8, 20, 100):
        yield f"many rows of {keys}", partial(make_case, (3, 111, keys), seed=keys)
    for dtype, keys in product(DTYPES, (5000, 20001, 40000)):
        for name, multiprocessors in (("few", FEW), ("long", MANY), ("no cluster, long", 0)):
            yield (
                f"{dtype} {name} rows of {keys}",
                partial(make_case, (2, keys), dtype, seed=keys, multiprocessors=multiprocessors, bias_shape=(2, 1)),
            )
    yield "as long as the largest cluster", partial(make_case, (1, 70_001), "float32", multiprocessors=MANY)
    yield "longer than a cluster", partial(make_case, (1, 270_001), multiprocessors=MANY)


CAPPED = MaskedSoftmax(scale=0.7, softcap=2.0)


def _softcaps() -> Iterator[tuple[str, Callable[[], BackwardCase]]]:
    for dtype, keys in product(DTYPES, (1, 8, 33, 197, 512, 1500, 4096)):
        yield f"{dtype} softcap {keys}", partial(make_case, (3, 4, keys), dtype, config=CAPPED, seed=keys)
    for multiprocessors in (0, FEW, MANY):
        yield (
            f"softcap of long rows, {multiprocessors} multiprocessors",
            partial(make_case, (2, 20_000), "float32", config=CAPPED, multiprocessors=multiprocessors),
        )
    large = replace(CAPPED, scale=-100.0)
    yield "scores far beyond the cap", partial(make_case, (3, 4, 100), "float32", config=large)


def _empty(empty_rows: str, dtype: str, keys: int, multiprocessors: int = 0, cap: float = 0.0) -> BackwardCase:
    """Of three sequences one has no key, and rows of the others have none by `keep`, by causality and by a bias."""
    rng = np.random.default_rng(keys)
    config = MaskedSoftmax(scale=0.5, softcap=cap, empty_rows=empty_rows, causal=CausalMode.TOP_LEFT)
    keep = rng.random((3, 1, 6, keys)) < 0.7
    keep[1, 0, 2] = False
    bias = rng.standard_normal((2, 6, keys)).astype(DTYPES[dtype])
    bias[1, 4] = -np.inf
    starts = np.array([0, 0, 2], np.int32)
    operands = {Role.BIAS: bias, Role.KEEP: keep.astype(np.int32), Role.KV_STARTS: starts}
    lengths = np.array([max(keys - 1, 1), keys, 1 if keys == 1 else 0], np.int32)
    operands[Role.KV_LENGTHS] = lengths
    return make_case(
        (3, 2, 6, keys),
        dtype,
        config=config,
        operands=operands,
        multiprocessors=multiprocessors,
        bias_shape=(2, 6, keys),
    )


def _even(keys: int) -> BackwardCase:
    """Uniform rows that have keys: their scores are all alike."""
    case = make_case((2, 3, keys), config=MaskedSoftmax(empty_rows=EmptyRows.UNIFORM))
    return replace(case, scores=np.zeros_like(case.scores), bias_shape=(2, 1, keys))


def _empty_rows() -> Iterator[tuple[str, Callable[[], BackwardCase]]]:
    for empty_rows, dtype, keys in product(EmptyRows.ALL, DTYPES, (1, 7, 40, 200)):
        yield f"{dtype} empty rows of {keys}: {empty_rows}", partial(_empty, empty_rows, dtype, keys)
    for multiprocessors in (0, FEW, MANY):
        yield (
            f"uniform long rows, {multiprocessors} multiprocessors",
            partial(_empty, EmptyRows.UNIFORM, "float32", 5000, multiprocessors),
        )
    yield "uniform with a softcap", partial(_empty, EmptyRows.UNIFORM, "float16", 40, 0, 3.0)
    for keys in (1, 10, 2048):
        yield f"even rows of {keys} with keys", partial(_even, keys)
    lowest = {Role.BIAS: np.full((1, 40), -np.inf, np.float32)}
    uniform = MaskedSoftmax(empty_rows=EmptyRows.UNIFORM)
    yield "a bias that masks all", partial(make_case, (2, 3, 40), config=uniform, operands=lowest, bias_shape=(1, 40))


def _biases() -> Iterator[tuple[str, Callable[[], BackwardCase]]]:
    full = (3, 4, 5, 48)
    for kept in product((False, True), repeat=4):
        shape = tuple(size if keeps else 1 for size, keeps in zip(full, kept, strict=True))
        yield f"bias {shape}", partial(make_case, full, bias_shape=shape, bias_dtype="float16")
    for dtype, keys in product(DTYPES, (33, 130, 264)):
        odd = partial(make_case, (5, 3, 4, keys), dtype, seed=keys)
        yield f"{dtype} bias over {keys} keys", partial(odd, bias_shape=(3, 4, keys), bias_dtype=dtype)
        yield f"{dtype} bias over {keys} keys alone", partial(odd, bias_shape=(keys,), bias_dtype="float32")
    for shape in ((1, 2, 1, 3, 1, 40), (2, 1, 3, 1, 4, 40), (2, 2, 1, 1, 4, 1), (1,), (4, 1)):
        yield f"bias {shape} of six dimensions", partial(make_case, (2, 2, 3, 3, 4, 40), bias_shape=shape)
    many = partial(make_case, (40, 3, 70, 40), "float32")
    for shape in ((40,), (3, 1, 40), (40, 1, 1, 1), (1, 1)):
        yield f"bias {shape} that blocks share", partial(many, bias_shape=shape)
    yield "bias over two dimensions", partial(make_case, (9, 40), bias_shape=(40,))
    masked = MaskedSoftmax(scale=0.5, softcap=4.0)
    lengths = {Role.KV_LENGTHS: np.array([0, 9, 40], np.int32)}
    yield (
        "bias, softcap, lengths",
        partial(make_case, (3, 2, 6, 40), config=masked, operands=lengths, bias_shape=(2, 6, 40)),
    )


def _offsets() -> Iterator[tuple[str, Callable[[], BackwardCase]]]:
    for dtype, keys in product(DTYPES, (3, 64, 197, 1000)):
        for offsets in ((1, 1, 1, 1), (0, 3, 0, 0), (0, 0, 0, 2), (2, 0, 1, 3), (3, 3, 2, 3)):
            for config in (None, CAPPED):
                yield (
                    f"{dtype} {keys} {'capped ' if config else ''}at {offsets}",
                    partial(make_case, (2, 3, keys), dtype, config=config, offsets=offsets, bias_shape=(1, 3, keys)),
                )


def _spoilt(value: float, config: MaskedSoftmax, where: str) -> BackwardCase:
    """NaN or an infinity: beyond the lengths, in gradient and scores, or in the gradient of an allowed key."""
    lengths = {Role.KV_LENGTHS: np.array([13, 0], np.int32)}
    case = make_case((2, 3, 40), "float32", config=config, operands=lengths, bias_shape=(3, 40))
    case.gradient[:, :, 13:] = value if where == "masked" else 0.0
    case.scores[:, :, 13:] = value if where == "masked" else 0.0
    if where == "allowed":
        case.gradient[0, 1, 5] = value
    return case


def _values() -> Iterator[tuple[str, Callable[[], BackwardCase]]]:
    for value, config in product((np.nan, np.inf, -np.inf), (MaskedSoftmax(), CAPPED)):
        for where in ("masked", "allowed"):
            yield f"{value} in a {where} key, softcap {config.softcap}", partial(_spoilt, value, config, where)
    uniform = MaskedSoftmax(empty_rows=EmptyRows.UNIFORM)
    yield "NaN masked beside uniform rows", partial(_spoilt, np.nan, uniform, "masked")


CASES: dict[str, Callable[[], BackwardCase]] = dict(
    (*_row_lengths(), *_softcaps(), *_empty_rows(), *_biases(), *_offsets(), *_values())
)
"""By what they are."""

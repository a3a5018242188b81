"""Properties of the contract's oracle, over random shapes, masks and values."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attngraft.contract import CausalMode, EmptyRows, MaskedSoftmax, Role
from attngraft.errors import ContractError
from attngraft.verify.oracle import masked_softmax


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, MaskedSoftmax, dict[str, np.ndarray]]:
    """Scores, a configuration, and the operands that it names."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=2, max_size=6)))
    operands = tuple(draw(st.permutations(Role.ALL))[: draw(st.integers(0, 4))])
    config = MaskedSoftmax(
        operands=operands,
        scale=draw(st.sampled_from((1.0, 0.125, -2.0))),
        causal=draw(st.sampled_from(CausalMode.ALL)),
        window_left=draw(st.integers(-1, 3)),
        window_right=draw(st.integers(-1, 3)),
        softcap=draw(st.sampled_from((0.0, 5.0))),
        empty_rows=draw(st.sampled_from(EmptyRows.ALL)),
    )
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = (generator.standard_normal(shape) * 3).astype(draw(st.sampled_from((np.float32, np.float16))))
    return scores, config, {role: draw_operand(role, shape, scores.dtype, generator) for role in operands}


def draw_operand(role: str, shape: tuple[int, ...], dtype: np.dtype, generator: np.random.Generator) -> np.ndarray:
    broadcast = tuple(size if generator.random() < 0.6 else 1 for size in shape)[generator.integers(0, len(shape)) :]
    if role == Role.BIAS:
        bias = generator.standard_normal(broadcast).astype(generator.choice([dtype, np.dtype(np.float32)]))
        bias[generator.random(broadcast) < 0.2] = -np.inf
        return bias
    if role == Role.KEEP:
        return (generator.random(broadcast) < 0.6).astype(generator.choice(["bool", "int8", "uint8", "int32", "int64"]))
    batch = 1 if len(shape) == 2 else shape[0]
    return generator.integers(-1, shape[-1] + 2, batch).astype(np.int32)


def reference(scores: np.ndarray, config: MaskedSoftmax, operands: dict[str, np.ndarray]) -> np.ndarray:
    """The formulas of contract.py, one key at a time."""
    result = np.zeros(scores.shape)
    full = {r: np.broadcast_to(o, scores.shape) for r, o in operands.items() if r in (Role.BIAS, Role.KEEP)}
    queries, keys = scores.shape[-2:]
    offset = 0 if config.causal == CausalMode.TOP_LEFT else keys - queries
    for row in np.ndindex(scores.shape[:-1]):
        batch, i = (0 if scores.ndim == 2 else row[0]), row[-1]
        s, allowed = [], []
        for j in range(keys):
            x = config.scale * float(scores[(*row, j)])
            x = config.softcap * math.tanh(x / config.softcap) if config.softcap else x
            x += float(full[Role.BIAS][(*row, j)]) if Role.BIAS in full else 0.0
            inside = x > -math.inf
            inside &= bool(full[Role.KEEP][(*row, j)]) if Role.KEEP in full else True
            inside &= j < operands[Role.KV_LENGTHS][batch] if Role.KV_LENGTHS in operands else True
            inside &= j >= operands[Role.KV_STARTS][batch] if Role.KV_STARTS in operands else True
            inside &= config.causal == CausalMode.NONE or j <= i + offset
            inside &= config.window_left < 0 or j >= i + offset - config.window_left
            inside &= config.window_right < 0 or j <= i + offset + config.window_right
            s.append(x)
            allowed.append(bool(inside))
        result[row] = reference_row(s, allowed, config.empty_rows)
    return result


def reference_row(s: list[float], allowed: list[bool], empty_rows: str) -> list[float]:
    if not any(allowed):
        if empty_rows == EmptyRows.UNIFORM:
            return [1 / len(s)] * len(s)
        allowed = [empty_rows == EmptyRows.UNMASKED and x > -math.inf for x in s]
    top = max((x for x, inside in zip(s, allowed, strict=True) if inside), default=0.0)
    powers = [math.exp(x - top) if inside else 0.0 for x, inside in zip(s, allowed, strict=True)]
    return [power / (sum(powers) or 1.0) for power in powers]


@given(problems())
def test_equals_the_formulas(problem: tuple) -> None:
    scores, config, operands = problem
    np.testing.assert_allclose(
        masked_softmax(scores, config, **operands), reference(scores, config, operands), atol=1e-12
    )


@given(problems())
def test_rows_sum_to_one_or_are_zero(problem: tuple) -> None:
    scores, config, operands = problem
    probabilities = masked_softmax(scores, config, **operands)
    assert probabilities.dtype == np.float64
    assert (probabilities >= 0).all()
    sums = probabilities.sum(axis=-1)
    assert (np.isclose(sums, 1, atol=1e-12) | (sums == 0)).all()
    if config.empty_rows == EmptyRows.UNIFORM:
        assert np.allclose(sums, 1, atol=1e-12)


@given(problems(), st.integers(0, 2**32 - 1))
def test_what_is_not_kept_is_exactly_zero(problem: tuple, seed: int) -> None:
    scores, config, operands = problem
    config = MaskedSoftmax(**{**config.__dict__, "empty_rows": EmptyRows.ZEROS})
    if Role.KEEP not in operands:
        operands = {**operands, Role.KEEP: np.random.default_rng(seed).random(scores.shape) < 0.5}
        config = MaskedSoftmax(**{**config.__dict__, "operands": tuple(operands)})
    probabilities = masked_softmax(scores, config, **operands)
    assert (probabilities[~np.broadcast_to(operands[Role.KEEP].astype(bool), scores.shape)] == 0).all()


@given(problems(), st.sampled_from((-8.0, 4.0)))
def test_a_constant_added_to_a_row_changes_nothing(problem: tuple, shift: float) -> None:
    scores, config, operands = problem
    without_cap = MaskedSoftmax(**{**config.__dict__, "softcap": 0.0, "scale": 1.0})
    shifted = scores.astype(np.float32) + np.float32(shift)
    np.testing.assert_allclose(
        masked_softmax(scores.astype(np.float32), without_cap, **only_float32(operands)),
        masked_softmax(shifted, without_cap, **only_float32(operands)),
        atol=1e-5,
    )


def only_float32(operands: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {r: o.astype(np.float32) if r == Role.BIAS else o for r, o in operands.items()}


@given(problems(), st.integers(0, 2**32 - 1))
def test_values_in_disallowed_places_change_nothing(problem: tuple, seed: int) -> None:
    scores, config, _ = problem
    config = MaskedSoftmax(**{**config.__dict__, "operands": (Role.KEEP,), "empty_rows": EmptyRows.ZEROS})
    keep = np.random.default_rng(seed).random(scores.shape) < 0.5
    spoiled = np.where(keep, scores, scores.dtype.type(np.nan))
    np.testing.assert_array_equal(masked_softmax(scores, config, keep=keep), masked_softmax(spoiled, config, keep=keep))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_among_the_allowed_make_the_row_nan(bad: float) -> None:
    scores = np.zeros((3, 4), np.float32)
    scores[1, 2] = bad
    keep = np.array([True, True, True, False])
    probabilities = masked_softmax(scores, MaskedSoftmax(operands=("keep",)), keep=keep)
    assert np.isnan(probabilities[1]).all()
    assert np.isfinite(probabilities[[0, 2]]).all()


def test_empty_rows() -> None:
    scores = np.array([[1.0, 2.0, 3.0]], np.float32)
    nothing = np.zeros(3, bool)
    rows = {
        mode: masked_softmax(scores, MaskedSoftmax(operands=("keep",), empty_rows=mode), keep=nothing)[0]
        for mode in EmptyRows.ALL
    }
    np.testing.assert_array_equal(rows["zeros"], [0, 0, 0])
    np.testing.assert_allclose(rows["uniform"], [1 / 3] * 3)
    np.testing.assert_allclose(rows["unmasked"], np.exp(scores[0]) / np.exp(scores[0]).sum(), rtol=1e-6)


def test_unmasked_row_of_minus_infinity_is_zeros() -> None:
    scores = np.full((1, 3), -np.inf, np.float32)
    np.testing.assert_array_equal(masked_softmax(scores, MaskedSoftmax(empty_rows="unmasked")), np.zeros((1, 3)))


def test_large_negative_biases_are_numbers() -> None:
    scores = np.array([[0.0, 1.0]], np.float32)
    masked = masked_softmax(scores, MaskedSoftmax(operands=("bias",)), bias=np.full(2, -1e4, np.float32))
    np.testing.assert_allclose(masked, masked_softmax(scores, MaskedSoftmax()), atol=1e-9)


def test_causal_corners() -> None:
    scores = np.zeros((2, 4), np.float32)
    top_left = masked_softmax(scores, MaskedSoftmax(causal="top_left"))
    bottom_right = masked_softmax(scores, MaskedSoftmax(causal="bottom_right"))
    np.testing.assert_allclose(top_left, [[1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0]])
    np.testing.assert_allclose(bottom_right, [[1 / 3, 1 / 3, 1 / 3, 0], [1 / 4] * 4])


def test_bfloat16_scores() -> None:
    scores = np.array([[0.5, 1.5]], ml_dtypes.bfloat16)
    np.testing.assert_allclose(
        masked_softmax(scores, MaskedSoftmax()), masked_softmax(scores.astype(np.float32), MaskedSoftmax())
    )


@pytest.mark.parametrize(
    ("shape", "dtype", "config", "operands", "message"),
    [
        ((2, 3), np.float64, MaskedSoftmax(), {}, "float64"),
        ((3,), np.float32, MaskedSoftmax(), {}, "rank 1"),
        ((1,) * 7, np.float32, MaskedSoftmax(), {}, "rank 7"),
        ((2, 3), np.float32, MaskedSoftmax(operands=("keep",)), {}, "keep: is missing"),
        ((2, 3), np.float32, MaskedSoftmax(), {"keep": np.ones(3, bool)}, "keep: was given"),
        ((2, 3), np.float32, MaskedSoftmax(operands=("keep",)), {"keep": np.ones(2, bool)}, "does not broadcast"),
        (
            (2, 3),
            np.float32,
            MaskedSoftmax(operands=("keep",)),
            {"keep": np.ones((5, 2, 3), bool)},
            "does not broadcast",
        ),
        ((2, 3), np.float32, MaskedSoftmax(operands=("keep",)), {"keep": np.ones(3, np.float32)}, "keep: float32"),
        ((2, 3), np.float32, MaskedSoftmax(operands=("bias",)), {"bias": np.ones(3, np.float16)}, "bias: float16"),
        (
            (2, 2, 3),
            np.float32,
            MaskedSoftmax(operands=("kv_lengths",)),
            {"kv_lengths": np.ones(1, np.int32)},
            "not \\(2,\\)",
        ),
        (
            (2, 3),
            np.float32,
            MaskedSoftmax(operands=("kv_starts",)),
            {"kv_starts": np.ones(1, np.int64)},
            "kv_starts: int64",
        ),
    ],
)
def test_misuse_is_refused(shape: tuple, dtype: type, config: MaskedSoftmax, operands: dict, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        masked_softmax(np.zeros(shape, dtype), config, **operands)

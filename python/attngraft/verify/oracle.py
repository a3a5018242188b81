"""The contract in NumPy, in float64: what every kernel, function and engine is measured against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from attngraft.contract import (
    KEEP_DTYPES,
    MAX_RANK,
    MIN_RANK,
    SCORE_DTYPES,
    CausalMode,
    EmptyRows,
    MaskConfig,
    MaskedSoftmax,
    Role,
)
from attngraft.errors import ContractError

__all__ = ["Array", "check_operands", "log_sum_exp", "masked_softmax", "probabilities"]

Array = npt.NDArray[Any]


def masked_softmax(
    scores: Array,
    config: MaskedSoftmax,
    *,
    bias: Array | None = None,
    keep: Array | None = None,
    kv_lengths: Array | None = None,
    kv_starts: Array | None = None,
) -> npt.NDArray[np.float64]:
    """Probabilities of `scores` [..., Sq, Sk], rank 2 to 6, as float64 of the same shape.

    The operands are those that `config.operands` names, of the types that the contract gives. Raises ContractError when
    one is missing, not expected, of another type, or does not broadcast.
    """
    operands = {Role.BIAS: bias, Role.KEEP: keep, Role.KV_LENGTHS: kv_lengths, Role.KV_STARTS: kv_starts}
    if scores.dtype.name not in SCORE_DTYPES:
        raise ContractError(f"scores: {scores.dtype.name} is not one of {', '.join(SCORE_DTYPES)}")
    if not MIN_RANK <= scores.ndim <= MAX_RANK:
        raise ContractError(f"scores: rank {scores.ndim} is outside {MIN_RANK} to {MAX_RANK}")
    check_operands(scores.shape, scores.dtype.name, config, operands)
    return probabilities(scores, config, operands)


def probabilities(scores: Array, config: MaskConfig, operands: Mapping[str, Array | None]) -> npt.NDArray[np.float64]:
    """The same for scores of any float type and operands that were checked."""
    s = _biased_scores(scores, config, operands.get(Role.BIAS))
    allowed = _allowed(scores.shape, config, operands) & (s != -np.inf)
    nonempty = allowed.any(axis=-1, keepdims=True)
    return np.where(nonempty, _softmax_over(s, allowed), _empty_row(s, config.empty_rows))


def log_sum_exp(scores: Array, config: MaskConfig, operands: Mapping[str, Array | None]) -> npt.NDArray[np.float64]:
    """[..., Sq]: the natural logarithm of the sum of exp(s) over the allowed keys; -inf for a row without any, NaN
    where the probabilities are."""
    s = _biased_scores(scores, config, operands.get(Role.BIAS))
    masked = np.where(_allowed(scores.shape, config, operands), s, -np.inf)
    top = masked.max(axis=-1, initial=-np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        powers = np.exp(masked - np.where(top == -np.inf, 0.0, top)[..., None])
        return top + np.log(powers.sum(axis=-1))


def _biased_scores(scores: Array, config: MaskConfig, bias: Array | None) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # inf * 0 and inf - inf are NaN, as the contract has it
        s = scores.astype(np.float64) * config.scale
        if config.softcap:
            s = config.softcap * np.tanh(s / config.softcap)
        return s if bias is None else s + bias.astype(np.float64)


def _allowed(shape: tuple[int, ...], config: MaskConfig, operands: Mapping[str, Array | None]) -> npt.NDArray[np.bool_]:
    keep, kv_lengths, kv_starts = (operands.get(role) for role in (Role.KEEP, Role.KV_LENGTHS, Role.KV_STARTS))
    queries, keys = shape[-2:]
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    offset = 0 if config.causal == CausalMode.TOP_LEFT else keys - queries
    allowed = np.ones(shape, dtype=bool)
    if config.causal != CausalMode.NONE:
        allowed &= j <= i + offset
    if config.window_left >= 0:
        allowed &= j >= i + offset - config.window_left
    if config.window_right >= 0:
        allowed &= j <= i + offset + config.window_right
    if keep is not None:
        allowed &= keep.astype(bool)
    batch = (-1,) + (1,) * (len(shape) - 1)
    if kv_lengths is not None:
        allowed &= j < kv_lengths.reshape(batch)
    if kv_starts is not None:
        allowed &= j >= kv_starts.reshape(batch)
    return allowed


def _softmax_over(s: npt.NDArray[np.float64], allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Softmax over the allowed keys, 0 elsewhere; a row with NaN or +inf among the allowed is NaN throughout."""
    masked = np.where(allowed, s, -np.inf)
    top = masked.max(axis=-1, keepdims=True, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        powers = np.where(allowed, np.exp(masked - np.where(top == -np.inf, 0.0, top)), 0.0)
        total = powers.sum(axis=-1, keepdims=True)
        return powers / np.where(total == 0, 1.0, total)


def _empty_row(s: npt.NDArray[np.float64], empty_rows: str) -> npt.NDArray[np.float64]:
    if empty_rows == EmptyRows.UNIFORM:
        return np.full(s.shape, 1.0 / max(s.shape[-1], 1))
    if empty_rows == EmptyRows.UNMASKED:
        return _softmax_over(s, s != -np.inf)
    return np.zeros(s.shape)


def check_operands(
    shape: tuple[int, ...], dtype: str, config: MaskConfig, operands: Mapping[str, Array | None]
) -> None:
    """Raises ContractError unless `operands` are what the configuration says, for scores of this shape and type."""
    for role, operand in operands.items():
        if (role in config.operands) != (operand is not None):
            state = "is missing" if operand is None else "was given"
            raise ContractError(f"{role}: {state}, but operands is {','.join(config.operands)!r}; make the two agree")
        if operand is not None:
            _check_operand(shape, dtype, role, operand)


def _check_operand(shape: tuple[int, ...], dtype: str, role: str, operand: Array) -> None:
    legal = {
        Role.BIAS: (dtype, "float32"),
        Role.KEEP: KEEP_DTYPES,
        Role.KV_LENGTHS: ("int32",),
        Role.KV_STARTS: ("int32",),
    }[role]
    if operand.dtype.name not in legal:
        raise ContractError(f"{role}: {operand.dtype.name} is not one of {', '.join(dict.fromkeys(legal))}")
    if role in (Role.BIAS, Role.KEEP):
        try:
            np.broadcast_to(operand, shape)
        except ValueError:
            raise ContractError(f"{role}: shape {operand.shape} does not broadcast to the scores {shape}") from None
        return
    batch = 1 if len(shape) == MIN_RANK else shape[0]
    if operand.shape != (batch,):
        raise ContractError(f"{role}: shape {operand.shape} is not ({batch},), one value a batch entry of {shape}")

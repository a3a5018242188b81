"""FusedAttention in NumPy, in float64: from q, k and v in any layout to the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from attngraft.contract import SCORE_DTYPES, FusedAttention, Layout, Role
from attngraft.errors import ContractError
from attngraft.verify.oracle import Array, check_operands, probabilities

__all__ = ["fused_attention"]


def fused_attention(
    tensors: Sequence[Array], config: FusedAttention, operands: Mapping[str, Array] | None = None
) -> npt.NDArray[np.float64]:
    """The context, float64, in its layout.

    tensors   q, k and v, or the packed tensor alone, in config.layout, of one type that the contract gives.
    operands  by role, those that config.operands names.
    Raises ContractError for tensors or operands that are not what the configuration says.
    """
    _check(tensors, config)
    heads, kv_heads = config.heads, config.kv_heads
    query, key, values = (
        _unpacked(tensors[0], config)
        if config.is_packed
        else map(_by_heads, tensors, config.words, (heads, kv_heads, kv_heads))
    )
    if query.shape[1] % key.shape[1] or key.shape[:3] != values.shape[:3] or key.shape[-1] != query.shape[-1]:
        raise ContractError(f"q {query.shape}, k {key.shape} and v {values.shape} ([B, heads, S, size]) do not agree")
    key, values = (np.repeat(tensor, query.shape[1] // key.shape[1], axis=1) for tensor in (key, values))
    scores = query.astype(np.float64) @ key.astype(np.float64).swapaxes(-1, -2)
    given = {role: (operands or {}).get(role) for role in Role.ALL}
    check_operands(scores.shape, tensors[0].dtype.name, config, given)
    context = probabilities(scores, config, given) @ values.astype(np.float64)
    return _in_layout(context, config.words[-1])


def _check(tensors: Sequence[Array], config: FusedAttention) -> None:
    if len(tensors) != len(config.tensor_names):
        raise ContractError(f"{len(tensors)} tensors; layout {config.layout!r} takes {', '.join(config.tensor_names)}")
    dtypes = {tensor.dtype.name for tensor in tensors}
    if len(dtypes) != 1 or not dtypes <= set(SCORE_DTYPES):
        raise ContractError(f"{', '.join(sorted(dtypes))}: one type of {', '.join(SCORE_DTYPES)} is needed")
    for name, tensor, word in zip(config.tensor_names, tensors, config.words, strict=False):
        rank = 4 if word in (Layout.BHSD, Layout.BSHD) else 3
        if tensor.ndim != rank:
            raise ContractError(f"{name}: shape {tensor.shape} is not of rank {rank}, as layout {word!r} has it")


def _by_heads(tensor: Array, word: str, heads: int) -> Array:
    """[B, heads, S, size]"""
    if word == Layout.BHSD:
        return tensor
    if word == Layout.BSD:
        tensor = tensor.reshape(*tensor.shape[:2], heads, -1)
    return tensor.swapaxes(1, 2)


def _unpacked(packed: Array, config: FusedAttention) -> tuple[Array, Array, Array]:
    heads, kv_heads, group = config.heads, config.kv_heads, config.heads // config.kv_heads
    if config.layout == Layout.QKV:
        by_heads = _by_heads(packed, Layout.BSD, heads + 2 * kv_heads)
        query, key, values = np.split(by_heads, (heads, heads + kv_heads), axis=1)
        return query, key, values
    parted = packed.reshape(*packed.shape[:2], kv_heads, group + 2, -1)
    query = parted[:, :, :, :group].reshape(*packed.shape[:2], heads, -1)
    return tuple(part.swapaxes(1, 2) for part in (query, parted[:, :, :, -2], parted[:, :, :, -1]))


def _in_layout(context: Array, word: str) -> Array:
    if word == Layout.BHSD:
        return context
    swapped = context.swapaxes(1, 2)
    return swapped if word == Layout.BSHD else swapped.reshape(*swapped.shape[:2], -1)

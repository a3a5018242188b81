"""From scores to probabilities in standard operators: the part that the functions of both operators share.

It follows the contract to the letter, in fp32.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from attngraft.contract import CausalMode, EmptyRows, MaskConfig, Role
from attngraft.errors import ContractError
from attngraft.lower.function_body import FunctionBody

__all__ = ["emit_probabilities"]


def emit_probabilities(body: FunctionBody, scores: str, config: MaskConfig, rank: int | None) -> str:
    """The fp32 probabilities of fp32 `scores`; the operands are inputs of the function, named as their roles.

    `rank` is the scores' rank, which only kv_lengths and kv_starts need to be known. Raises ContractError without it.
    """
    s = _biased_scores(body, scores, config)
    present = body.add("Not", body.add("Equal", s, body.constant(-np.inf)))
    allowed = present
    for mask in [*_operand_masks(body, scores, config, rank), *_index_masks(body, scores, config)]:
        allowed = body.add("And", allowed, mask)
    probabilities = _softmax_over(body, s, allowed)
    empty_row = _empty_row(body, scores, config, s, present)
    return body.add("Where", body.any_in_row(allowed), probabilities, empty_row)


def _biased_scores(body: FunctionBody, scores: str, config: MaskConfig) -> str:
    s = scores
    if config.scale != 1.0:
        s = body.add("Mul", s, body.constant(float(config.scale)))
    if config.softcap:
        cap = body.constant(float(config.softcap))
        s = body.add("Mul", body.add("Tanh", body.add("Div", s, cap)), cap)
    if Role.BIAS in config.operands:
        s = body.add("Add", s, body.add("Cast", Role.BIAS, to=TensorProto.FLOAT))
    return s


def _operand_masks(body: FunctionBody, scores: str, config: MaskConfig, rank: int | None) -> list[str]:
    masks = []
    if Role.KEEP in config.operands:
        masks.append(body.add("Cast", Role.KEEP, to=TensorProto.BOOL))
    lengths = [role for role in (Role.KV_LENGTHS, Role.KV_STARTS) if role in config.operands]
    if lengths and rank is None:
        raise ContractError(f"{lengths[0]}: the scores' rank must be known; run onnx.shape_inference on the model")
    for role in lengths:
        wide = body.add("Cast", role, to=TensorProto.INT64)
        bound = body.add("Reshape", wide, body.constant([-1, *[1] * (rank - 1)]))
        before = body.add("Less", body.indices(scores, -1), bound)
        masks.append(before if role == Role.KV_LENGTHS else body.add("Not", before))
    return masks


def _index_masks(body: FunctionBody, scores: str, config: MaskConfig) -> list[str]:
    """Causality and the window, as comparisons of key indices [Sk] with bounds [Sq, 1]."""
    sides = (config.window_left, config.window_right)
    if config.causal == CausalMode.NONE and max(sides) < 0:
        return []
    keys = body.indices(scores, -1)
    diagonal = body.add("Reshape", body.indices(scores, -2), body.constant([-1, 1]))
    if config.causal != CausalMode.TOP_LEFT:
        diagonal = body.add("Add", diagonal, body.add("Sub", body.dimension(scores, -1), body.dimension(scores, -2)))
    masks = []
    if config.causal != CausalMode.NONE:
        masks.append(body.add("Not", body.add("Greater", keys, diagonal)))
    if config.window_left >= 0:
        first = body.add("Sub", diagonal, body.constant(config.window_left))
        masks.append(body.add("Not", body.add("Less", keys, first)))
    if config.window_right >= 0:
        last = body.add("Add", diagonal, body.constant(config.window_right))
        masks.append(body.add("Not", body.add("Greater", keys, last)))
    return masks


def _softmax_over(body: FunctionBody, s: str, allowed: str) -> str:
    """exp(-inf) is exactly 0; a NaN or +inf among the allowed makes the standard Softmax NaN in the whole row."""
    return body.add("Softmax", body.add("Where", allowed, s, body.constant(-np.inf)), axis=-1)


def _empty_row(body: FunctionBody, scores: str, config: MaskConfig, s: str, present: str) -> str:
    if config.empty_rows == EmptyRows.UNIFORM:
        return body.add("Div", body.constant(1.0), body.add("Cast", body.dimension(scores, -1), to=TensorProto.FLOAT))
    zero = body.constant(0.0)
    if config.empty_rows == EmptyRows.UNMASKED:
        return body.add("Where", body.any_in_row(present), _softmax_over(body, s, present), zero)
    return zero

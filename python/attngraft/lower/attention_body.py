"""From q, k and v to the context in standard operators: the body of attngraft::FusedAttention, in fp32.

Inside, all tensors are [B, heads, S, size]. Grouped queries are multiplied as [B, Hk, G, Sq, size], so that keys and
values are never repeated.
"""

from __future__ import annotations

from onnx import TensorProto

from attngraft.contract import FusedAttention, Layout
from attngraft.lower.function_body import FunctionBody
from attngraft.lower.probabilities_body import emit_probabilities

__all__ = ["emit_context"]

SCORES_RANK = 4
SWAP_HEADS_AND_SEQUENCE = [0, 2, 1, 3]
GROUP_AXIS = 2
"""Of the query heads of one key head, in tensors of rank 5."""


def emit_context(body: FunctionBody, config: FusedAttention) -> str:
    """The fp32 context in its layout. The function's inputs are config.tensor_names and config.operands."""
    if config.is_packed:
        query, key, values = _unpacked(body, config)
    else:
        heads = (config.heads, config.kv_heads, config.kv_heads)
        words = config.words[:3]
        query, key, values = map(_by_heads, (body,) * 3, config.tensor_names, words, heads)
    is_plain = config.heads == config.kv_heads > 0
    context = (_plain_context if is_plain else _grouped_context)(body, config, query, key, values)
    return _in_layout(body, context, config.words[-1])


def _plain_context(body: FunctionBody, config: FusedAttention, query: str, key: str, values: str) -> str:
    """[B, H, Sq, Dv] where keys and values have as many heads as the query."""
    scores = body.add("MatMul", query, body.add("Transpose", key, perm=[0, 1, 3, 2]))
    return body.add("MatMul", emit_probabilities(body, scores, config, SCORES_RANK), values)


def _grouped_context(body: FunctionBody, config: FusedAttention, query: str, key: str, values: str) -> str:
    """[B, H, Sq, Dv] where they have fewer, or where nothing but the shapes says how many."""
    groups = body.add("Concat", body.dimensions(query, 0, 1), body.dimensions(key, 1, 2), body.constant([-1]), axis=0)
    query = _reshaped(body, query, groups, body.dimensions(query, 2, 4))
    key, values = (_with_group_axis(body, tensor) for tensor in (key, values))
    grouped = body.add("MatMul", query, body.add("Transpose", key, perm=[0, 1, 2, 4, 3]))
    scores = _without_group_axis(body, grouped)
    probabilities = emit_probabilities(body, scores, config, SCORES_RANK)
    context = body.add("MatMul", body.add("Reshape", probabilities, body.add("Shape", grouped)), values)
    return _without_group_axis(body, context)


def _by_heads(body: FunctionBody, tensor: str, word: str, heads: int) -> str:
    """A tensor of one of the separate layouts as fp32 [B, heads, S, size]."""
    wide = body.add("Cast", tensor, to=TensorProto.FLOAT)
    if word == Layout.BSD:
        wide = body.add("Reshape", wide, body.constant([0, 0, heads, -1]))
    return wide if word == Layout.BHSD else body.add("Transpose", wide, perm=SWAP_HEADS_AND_SEQUENCE)


def _unpacked(body: FunctionBody, config: FusedAttention) -> tuple[str, str, str]:
    """q, k and v of the packed tensor as fp32 [B, heads, S, D]."""
    heads, kv_heads = config.heads, config.kv_heads
    packed = body.add("Cast", config.tensor_names[0], to=TensorProto.FLOAT)
    if config.layout == Layout.QKV:
        all_heads = heads + 2 * kv_heads
        by_heads = _by_heads(body, packed, Layout.BSD, all_heads)
        bounds = ((0, heads), (heads, heads + kv_heads), (heads + kv_heads, all_heads))
        query, key, values = (body.part(by_heads, first, last, axis=1) for first, last in bounds)
        return query, key, values
    group = heads // kv_heads
    parted = body.add("Reshape", packed, body.constant([0, 0, kv_heads, group + 2, -1]))
    by_groups = body.add("Transpose", parted, perm=[0, 2, 3, 1, 4])
    bounds = ((0, group), (group, group + 1), (group + 1, group + 2))
    parts = (body.part(by_groups, first, last, axis=GROUP_AXIS) for first, last in bounds)
    query, key, values = (
        _reshaped(body, part, body.dimensions(part, 0, 1), body.constant([-1]), body.dimensions(part, 3, 5))
        for part in parts
    )
    return query, key, values


def _in_layout(body: FunctionBody, context: str, word: str) -> str:
    """[B, H, Sq, Dv] in the layout of that word."""
    if word == Layout.BHSD:
        return context
    transposed = body.add("Transpose", context, perm=SWAP_HEADS_AND_SEQUENCE)
    return transposed if word == Layout.BSHD else body.add("Reshape", transposed, body.constant([0, 0, -1]))


def _reshaped(body: FunctionBody, tensor: str, *parts: str) -> str:
    """The tensor in the shape that the parts are together."""
    return body.add("Reshape", tensor, body.add("Concat", *parts, axis=0))


def _with_group_axis(body: FunctionBody, tensor: str) -> str:
    """[B, Hk, S, size] as [B, Hk, 1, S, size]."""
    return _reshaped(body, tensor, body.constant([0, 0, 1]), body.dimensions(tensor, 2, 4))


def _without_group_axis(body: FunctionBody, tensor: str) -> str:
    """[B, Hk, G, S, size] as [B, Hk * G, S, size]."""
    return _reshaped(body, tensor, body.constant([0, -1]), body.dimensions(tensor, 3, 5))

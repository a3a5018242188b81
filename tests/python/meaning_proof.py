"""Proofs by running: a mask's tensor as ONNX Runtime computes it against what its MaskMeaning says, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto

from attngraft.contract import CausalMode
from attngraft.match.meaning import MaskMeaning
from attngraft.onnx_graph import GraphView
from attngraft.onnx_graph.view import infer_types


def view_of(model: ModelProto) -> GraphView:
    return GraphView(model.graph, infer_types(model).graph)


def run(model: ModelProto, names: list[str], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The values of tensors of a model, inputs included."""
    wanted = [name for name in dict.fromkeys(names) if name not in feeds]
    copy = ModelProto()
    copy.CopyFrom(model)
    view = view_of(model)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.helper.make_tensor_value_info(name, view.dtype(name), None) for name in wanted)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    taken = {value.name for value in session.get_inputs()}
    values = session.run(wanted, {name: array for name, array in feeds.items() if name in taken})
    return {**feeds, **dict(zip(wanted, values, strict=True))}


def allowed(meaning: MaskMeaning, shape: tuple[int, ...], tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Where a meaning lets a query attend, over scores of a shape [..., Sq, Sk]."""
    queries, keys = shape[-2:]
    offset = 0 if meaning.causal == CausalMode.TOP_LEFT else keys - queries
    distance = np.arange(keys)[None, :] - np.arange(queries)[:, None] - offset
    keep = np.ones(shape, bool)
    if meaning.causal != CausalMode.NONE:
        keep &= distance <= 0
    if meaning.window_left >= 0:
        keep &= distance >= -meaning.window_left
    if meaning.window_right >= 0:
        keep &= distance <= meaning.window_right
    for padding in meaning.paddings:
        keep = keep & ((np.expand_dims(tensors[padding.tensor], padding.unsqueeze) != 0) ^ padding.invert)
    return keep


def assert_mask_equals(
    model: ModelProto, mask: str, meaning: MaskMeaning, feeds: Mapping[str, np.ndarray], scores: tuple[int, ...]
) -> None:
    """The additive mask, in every element, is what its meaning says."""
    rest = [] if meaning.rest is None else [meaning.rest]
    tensors = run(model, [mask, *rest, *(padding.tensor for padding in meaning.paddings)], feeds)
    added = tensors[rest[0]] if rest else np.zeros(1, tensors[mask].dtype)
    fill = np.asarray(meaning.fill, tensors[mask].dtype)
    masked = added + fill if meaning.rest_under_fill else fill
    expected = np.where(allowed(meaning, scores, tensors), added, masked)
    np.testing.assert_array_equal(np.broadcast_to(tensors[mask], scores), np.broadcast_to(expected, scores))


def assert_condition_equals(
    model: ModelProto,
    condition: str,
    meaning: MaskMeaning,
    feeds: Mapping[str, np.ndarray],
    scores: tuple[int, ...],
    invert: bool = False,
) -> None:
    """The condition, in every element, is what its meaning says."""
    tensors = run(model, [condition, *(padding.tensor for padding in meaning.paddings)], feeds)
    keep = (tensors[condition] != 0) ^ invert
    np.testing.assert_array_equal(np.broadcast_to(keep, scores), allowed(meaning, scores, tensors))


def padding_masks(batch: int, length: int) -> list[np.ndarray]:
    """int64 [B, S]: full, right and left padding, holes, and rows masked as a whole."""
    position = np.arange(length)
    rows = [
        np.ones(length),
        position < max(length - 2, 1),
        position >= min(2, length - 1),
        position % 3 != 1,
        np.zeros(length),
    ]
    return [
        np.stack([rows[(start + row) % len(rows)] for row in range(batch)]).astype(np.int64)
        for start in range(len(rows))
    ]

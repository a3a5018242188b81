"""One softmax node: attention or not, and if so the record of its site."""

from __future__ import annotations

import math

from onnx import NodeProto, TensorProto

from attngraft.contract import MAX_RANK, MIN_RANK, SCORE_DTYPES, EmptyRows, MaskedSoftmax, Role
from attngraft.match.chain import Chain, climb
from attngraft.match.layout import HeadLayout, head_layout
from attngraft.match.operators import attribute, is_product
from attngraft.match.paths import find_product, find_values_product
from attngraft.match.probabilities import Probabilities, probabilities_behind
from attngraft.match.records import Bypass, OtherSoftmax, Scale, Site
from attngraft.match.scale import combine_scales, operand_scales
from attngraft.onnx_graph import GraphView, dtype_name, node_label

__all__ = ["NOT_IN_THIS_VERSION", "match_softmax"]

NOT_IN_THIS_VERSION = "not available in this version"


def match_softmax(view: GraphView, node: NodeProto, path: str, opset: int) -> Site | OtherSoftmax:
    """Reads the surroundings of a Softmax node. `path` is its graph's, `opset` the model's."""
    name = node_label(node)
    product = find_product(view, node.input[0])
    if product is None:
        return OtherSoftmax(name, path, "its input is made from no product of two activations, so it is no attention")
    if find_values_product(view, node.output[0]) is None:
        return OtherSoftmax(name, path, "its result weighs no values: no product with another activation follows")
    return _site(view, node, path, opset, head_layout(view, product))


def _site(view: GraphView, node: NodeProto, path: str, opset: int, layout: HeadLayout) -> Site:
    behind, chain = _extent(view, node)
    dtype = view.dtype(chain.scores) or behind.dtype
    scale, bypasses = _whole_scale(view, chain, dtype)
    reason = _axis_reason(view, node, opset) or _type_reason(view, chain, dtype)
    operands = tuple(mask.role for mask in chain.masks)
    config = MaskedSoftmax(operands=operands, scale=scale.value, empty_rows=_empty_rows(chain))
    shape = view.shape(node.input[0])
    return Site(
        name=node_label(node),
        graph=path,
        node=node.output[0],
        scores=chain.scores,
        probabilities=behind.tensor,
        config=config if reason is None else None,
        masks=chain.masks,
        scale=scale,
        bypasses=bypasses,
        guard=behind.guard,
        dtype=dtype_name(dtype) if dtype else None,
        rank=None if shape is None else len(shape),
        heads=layout.heads,
        head_size=layout.head_size,
        layout=layout.layout,
        consumers=tuple(node_label(reader) for reader in view.readers(behind.tensor)),
        is_output=behind.tensor in view.outputs,
        lowerings={"keep": None, "softmax": reason, "native": NOT_IN_THIS_VERSION, "attention": NOT_IN_THIS_VERSION},
    )


def _extent(view: GraphView, node: NodeProto) -> tuple[Probabilities, Chain]:
    """How far down and up the site reaches. A cast to fp32 above is absorbed only with the cast back below."""
    candidates = probabilities_behind(view, node)
    softmax_type = candidates[0].dtype
    narrow_types = {c.dtype for c in candidates} & {TensorProto.FLOAT16, TensorProto.BFLOAT16}
    for narrow in sorted(narrow_types) if softmax_type == TensorProto.FLOAT else ():
        chain = climb(view, node.input[0], narrow)
        if chain.widened:
            return [c for c in candidates if c.dtype == narrow][-1], chain
    return [c for c in candidates if c.dtype == softmax_type][-1], climb(view, node.input[0], None)


def _whole_scale(view: GraphView, chain: Chain, dtype: int) -> tuple[Scale, tuple[Bypass, ...]]:
    """The scale on the scores together with that on Q and K, if nothing is left between the product and the scores."""
    maker = view.maker(chain.scores)
    shared = chain.shared or chain.scores in view.outputs or len(view.readers(chain.scores)) > 1
    if shared or not is_product(view, maker):
        return chain.scale, ()
    on_operands, bypasses = operand_scales(view, maker, dtype)
    return combine_scales(chain.scale, on_operands), bypasses


def _empty_rows(chain: Chain) -> str:
    """-inf leaves nothing to divide by (NaN, or zeros behind a guard); one finite value at every key is uniform."""
    keep = chain.part(Role.KEEP)
    return EmptyRows.UNIFORM if keep is not None and keep.fill != -math.inf else EmptyRows.ZEROS


def _axis_reason(view: GraphView, node: NodeProto, opset: int) -> str | None:
    # Before opset 13 the default axis was 1 and everything from the axis on was flattened.
    axis = attribute(node, "axis", -1 if opset >= 13 else 1)
    if axis == -1:
        return None
    shape = view.shape(node.input[0]) or view.shape(node.output[0])
    if shape is None:
        return f"softmax over axis {axis} of a tensor of unknown rank; run shape inference or export with axis=-1"
    return None if axis == len(shape) - 1 else f"softmax over axis {axis}, which is not the last of {len(shape)}"


def _type_reason(view: GraphView, chain: Chain, dtype: int) -> str | None:
    if not dtype:
        return "the scores' type is not known; run onnx.shape_inference on the model"
    if dtype_name(dtype) not in SCORE_DTYPES:
        return f"scores are {dtype_name(dtype)}; MaskedSoftmax takes {', '.join(SCORE_DTYPES)}"
    shape = view.shape(chain.scores)
    if shape is not None and not MIN_RANK <= len(shape) <= MAX_RANK:
        return f"scores have rank {len(shape)}; MaskedSoftmax takes rank {MIN_RANK} to {MAX_RANK}"
    for mask in chain.masks:
        for tensor in mask.tensors:
            if mask.role == Role.BIAS and view.dtype(tensor) not in (dtype, TensorProto.FLOAT):
                return f"mask {tensor!r} is {dtype_name(view.dtype(tensor))}, the scores are {dtype_name(dtype)}"
            if not _broadcasts(view.shape(tensor), shape):
                return f"mask {tensor!r} of shape {view.shape(tensor)} does not broadcast to the scores {shape}"
    return None


def _broadcasts(mask: tuple | None, scores: tuple | None) -> bool:
    """False where the shapes are known to disagree, or where a symbol might make the mask larger than the scores."""
    if mask is None or scores is None:
        return True
    if len(mask) > len(scores):
        return False
    pairs = zip(reversed(mask), reversed(scores), strict=False)
    return not any((isinstance(m, int) or s == 1) and isinstance(s, int) and m not in (1, s, None) for m, s in pairs)

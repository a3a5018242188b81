"""Mask operands that are no tensors of the model: inverted, cast, axes inserted, heads split from the batch."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest
from onnx import ModelProto

from attngraft.contract import MaskedSoftmax
from attngraft.lower import lower_model
from attngraft.match import MaskPart, ModelSites, Site, match_model
from attngraft.verify import verify_models


def padded(opset: int, integer: bool, masked: bool) -> ModelProto:
    """Keys masked by a [B, T] input: an integer or bool, true where masked or where not."""
    axes = "<axes = [1, 2]>(ids)" if opset < 13 else "(ids, axes)"
    constant = "" if opset < 13 else "axes = Constant<value = int64[2] {1, 2}>()"
    cast = "keep = Cast<to = 9>(long)" if integer else "keep = Identity(long)"
    where = "Where(keep, low, s)" if masked else "Where(keep, s, low)"
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        g (float[B,2,S,4] q, float[B,2,T,4] k, float[B,2,T,4] v, {"int64" if integer else "bool"}[B,T] ids)
            => (float[B,2,S,4] out)
        {{
            {constant} long = Unsqueeze {axes} {cast} low = Constant<value = float {{-1e30}}>()
            kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) m = {where} p = Softmax<axis = 3>(m)
            out = MatMul(p, v)
        }}
    """)


def with_operand(model: ModelProto, mask: MaskPart) -> ModelSites:
    """The model's sites, with this as the mask of the only one."""
    (site,) = match_model(model).sites
    config = MaskedSoftmax(operands=("keep",), empty_rows="uniform")
    return ModelSites((replace(site, masks=(mask,), source_masks=(mask,), config=config),), ())


@pytest.mark.parametrize("lower", ["softmax", "native"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("opset", [11, 17])
def test_a_small_padding_mask(opset: int, integer: bool, masked: bool, lower: str) -> None:
    model = padded(opset, integer, masked)
    mask = MaskPart("where", "keep", ("ids",), invert=masked, fill=-1e30, unsqueeze=(1, 2))
    sites = with_operand(model, mask)
    lowered = lower_model(model, sites, {sites.sites[0].name: lower})
    onnx.checker.check_model(lowered, full_check=True)
    assert "Where" not in [node.op_type for node in lowered.graph.node] or lower == "native"
    report = verify_models(model, lowered)
    assert report.passed, report.failure


def site_of(model: ModelProto) -> Site:
    (site,) = match_model(model).sites
    return site


@pytest.mark.parametrize("lower", ["softmax", "native"])
def test_heads_split_from_the_batch(lower: str) -> None:
    """A bias [B * H, S, T], as BLOOM and DeBERTa make it."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[B,2,S,4] q, float[B,2,T,4] k, float[B,2,T,4] v, float[B,2,S,T] bias) => (float[B,2,S,4] out)
        {
            end = Shape<start = 2>(bias) first = Constant<value = int64[1] {-1}>() shape = Concat<axis = 0>(first, end)
            merged = Reshape(bias, shape)
            kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) m = Add(s, bias) p = Softmax<axis = -1>(m)
            out = MatMul(p, v)
        }
    """)
    mask = MaskPart("add", "bias", ("merged",), split_heads=2)
    site = replace(site_of(model), masks=(mask,), source_masks=(mask,), config=MaskedSoftmax(operands=("bias",)))
    lowered = lower_model(model, ModelSites((site,), ()), {site.name: lower})
    assert "merged" in {name for node in lowered.graph.node for name in node.input}
    report = verify_models(model, lowered)
    assert report.passed, report.failure

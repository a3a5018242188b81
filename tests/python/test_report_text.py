"""What `inspect` prints: every kind of record in words, equal sites together, every reason once."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from onnx import NodeProto
from report_models import SITE, encoder_model, inspection_of, layers_of

from attngraft.contract import CausalMode, MaskedSoftmax, Role
from attngraft.engine.fusion import FusionReport, SiteFusion
from attngraft.engine.layers import EngineLayer
from attngraft.lower import parse_target
from attngraft.match import match_model
from attngraft.match.records import LOWERINGS, MaskPart, OtherSoftmax, Scale, Site, WholeSite
from attngraft.report.grouping import name_pattern
from attngraft.report.inspection import inspection_lines, other_lines, summary_lines
from attngraft.report.kernels import kernel_lines, kernels_json
from attngraft.report.phrases import describe_site, heads_text, mask_text, scale_text
from attngraft.report.rewriting import rewrite_lines
from attngraft.report.source_layers import source_layers
from attngraft.rewrite import RewriteResult

WHOLE = WholeSite("q", "k", "v", "context", 0.125, heads=8, kv_heads=2)

MASKS = {
    "additive mask": MaskPart("add", Role.BIAS, ("m",)),
    "2 additive masks": MaskPart("add", Role.BIAS, ("m", "n")),
    "mask filling with -inf": MaskPart("where", Role.KEEP, ("c",), fill=-math.inf),
    "mask filling with -3.4e+38": MaskPart("add-where", Role.KEEP, ("c",), fill=-3.4028234663852886e38, added="m"),
    "mask filling with -1e+04": MaskPart("where", Role.KEEP, ("c",), invert=True, fill=-10000.0),
    "padding": MaskPart("where", Role.KEEP, ("c",), fill=-math.inf, unsqueeze=(1, 2)),
    "padding (taken as 0 and 1)": MaskPart(
        "add-where", Role.KEEP, ("c",), fill=-math.inf, unsqueeze=(1, 2), taken_as_zero_one=True
    ),
    "key lengths": MaskPart("where", Role.KV_LENGTHS, ("c",)),
    "key starts": MaskPart("where", Role.KV_STARTS, ("c",)),
}


@pytest.mark.parametrize("words", MASKS)
def test_every_kind_of_mask(words: str) -> None:
    assert mask_text(replace(SITE, masks=(MASKS[words],))) == words
    unread = replace(SITE, config=None, source_masks=(MASKS[words],))
    assert mask_text(unread) == words


def test_structure_that_was_read_out_of_masks() -> None:
    config = MaskedSoftmax(causal=CausalMode.BOTTOM_RIGHT, window_left=128, operands=(Role.KEEP,))
    site = replace(SITE, config=config, masks=(MASKS["padding"],), source_masks=(MASKS["additive mask"],))
    assert mask_text(site) == "causal from the last key and window of 128 before and padding"
    both = replace(SITE, config=MaskedSoftmax(window_left=2, window_right=3))
    assert mask_text(both) == "window of 2 before, 3 after"
    assert mask_text(replace(SITE, config=MaskedSoftmax(causal=CausalMode.TOP_LEFT))) == "causal"
    assert mask_text(replace(SITE, config=None, whole=replace(WHOLE, causal=CausalMode.TOP_LEFT))) == "causal"
    assert mask_text(SITE) == "no mask"


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (Scale(), "no scale"),
        (Scale(0.5, ("scores",)), "scale 0.5 on scores"),
        (Scale(0.25, ("query", "key")), "scale 0.25 on query and key"),
        (Scale(1.0, ("computed",), "computed from the shape"), "scale on computed (computed from the shape)"),
        (Scale(note="of one head each"), "scale: of one head each"),
    ],
)
def test_every_kind_of_scale(scale: Scale, words: str) -> None:
    assert scale_text(replace(SITE, scale=scale)) == words


def test_the_whole_site_tells_scale_and_type_where_the_softmax_does_not() -> None:
    site = replace(SITE, scale=Scale(), whole=replace(WHOLE, dtype="float16"), dtype="float32", widened=True)
    words = describe_site(site)
    assert words[0] == "float16" and "scale 0.125" in words and "softmax in float32" in words


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        ("Attention", ["Attention"]),
        ("com.microsoft::MultiHeadAttention", ["com.microsoft::MultiHeadAttention"]),
        ("LogSoftmax", ["LogSoftmax"]),
        ("by hand", ["softmax by hand"]),
        ("Softmax", []),
    ],
)
def test_the_operator_where_it_is_no_plain_softmax(operator: str, words: list[str]) -> None:
    plain = describe_site(SITE)
    assert describe_site(replace(SITE, operator=operator)) == [*words, *plain]


@pytest.mark.parametrize(
    ("heads", "size", "whole", "words"),
    [
        (12, 64, None, "12 heads of 64"),
        (12, None, None, "12 heads"),
        (None, 64, None, "head size 64"),
        (None, None, None, ""),
        (None, 64, WHOLE, "8 heads on 2 of 64"),
        (8, 64, replace(WHOLE, kv_heads=8), "8 heads of 64"),
    ],
)
def test_heads(heads: int | None, size: int | None, whole: WholeSite | None, words: str) -> None:
    assert heads_text(replace(SITE, heads=heads, head_size=size, whole=whole)) == words


def test_what_is_special_about_a_site() -> None:
    site = replace(
        SITE,
        config=MaskedSoftmax(softcap=50.0),
        widened=True,
        guard=True,
        is_output=True,
        consumers=("a", "b"),
        dtype=None,
        layout=None,
    )
    words = describe_site(site)
    assert words[:2] == ["type unknown", "12 heads of 64"]
    assert words[-5:] == [
        "softcap 50",
        "softmax in float32",
        "NaN guard",
        "probabilities are an output",
        "probabilities read by 2 nodes",
    ]
    assert "softcap 30" in describe_site(replace(SITE, config=None, whole=replace(WHOLE, softcap=30.0)))


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["a"], "a"),
        ([f"layer.{i}/Softmax" for i in range(12)], "layer.{0..11}/Softmax"),
        (["node_3", "node_7"], "node_{3,7}"),
        (["node_3", "node_7", "node_12"], "node_*"),
        (["a.0.b.5", "a.1.b.9", "a.2.b.13"], "a.{0..2}.b.*"),
        (["encoder", "decoder"], "encoder, ..."),
        (["", ""], ""),
    ],
)
def test_one_pattern_for_many_names(names: list[str], pattern: str) -> None:
    assert name_pattern(names) == pattern


def test_equal_sites_share_a_line_and_reasons_are_numbered() -> None:
    refused = replace(SITE, lowerings={**SITE.lowerings, "softmax": "scores are float64", "attention": "no plugin"})
    sites = [*layers_of(SITE, 12), replace(refused, name="/head/Softmax")]
    reasons = {site.name: "kept: as asked for" for site in sites}
    lines = inspection_lines(inspection_of(*sites, reasons=reasons, target=parse_target("10.6")))
    rows = [line for line in lines if "Softmax" in line]
    assert [row.split()[:3] for row in rows] == [["12", "x", "/layer.{0..11}/Softmax"], ["1", "x", "/head/Softmax"]]
    assert rows[0].split("  ")[-1].strip() == "-"
    assert rows[1].endswith("keep native                    softmax [2] attention [3]")
    assert [line for line in lines if line.startswith("[")] == [
        "[1] kept: as asked for",
        "[2] scores are float64",
        "[3] no plugin",
    ]
    assert lines[-2:] == ["13 attention sites (13 keep), 0 other softmaxes", "lowerings chosen for TensorRT 10.6"]
    assert len(lines) < 12


def test_verbose_shows_every_site() -> None:
    inspection = inspection_of(*layers_of(SITE, 12))
    names = [site.name for site in inspection.sites.sites]
    assert [line.split()[0] for line in inspection_lines(inspection, verbose=True) if "Softmax" in line] == names
    assert len({len(line) for line in inspection_lines(inspection, verbose=True)[2:14]}) == 1


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_every_refusal_of_every_lowering_is_printed(lowering: str) -> None:
    site = replace(SITE, lowerings={**SITE.lowerings, lowering: "a reason of its own"})
    lines = inspection_lines(inspection_of(site))
    assert "[1] a reason of its own" in lines
    assert any(line.endswith(f"{lowering} [1]") for line in lines)


def test_others_are_listed_with_their_reasons() -> None:
    others = (
        OtherSoftmax("/gate.0/Softmax", "", "no product"),
        OtherSoftmax("/gate.1/Softmax", "", "no product"),
        OtherSoftmax("inner", "If_0/then_branch", "no values"),
    )
    inspection = inspection_of(others=others)
    assert other_lines(inspection.sites) == [
        "2 x /gate.{0,1}/Softmax: left alone, no product",
        "inner in If_0/then_branch: left alone, no values",
    ]
    assert len(other_lines(inspection.sites, verbose=True)) == 3
    assert "0 attention sites, 3 other softmaxes" in inspection_lines(inspection)


def test_repairs_that_differ_in_the_node_only_share_a_line() -> None:
    repairs = ("node_3: made wider", "norm: cast", "node_7: made wider")
    lines = inspection_lines(inspection_of(SITE, repairs=repairs))
    assert [line for line in lines if line.startswith("to be repaired: ")] == [
        "to be repaired: 2 x node_{3,7}: made wider",
        "to be repaired: norm: cast",
    ]


def test_a_rewrite_names_what_was_taken_back_and_mended() -> None:
    sites = inspection_of(SITE).sites
    result = RewriteResult(
        Path("out.onnx"),
        sites,
        {SITE.name: "keep"},
        {SITE.name: "taken back: output 'y' differs by 0.5"},
        0,
        None,
        {SITE.name: "output 'y' differs by 0.5"},
        ("norm: cast",),
    )
    assert list(rewrite_lines(result)) == [
        "1 attention site (1 keep), 0 other softmaxes",
        f"taken back: {SITE.name}: output 'y' differs by 0.5",
        "repaired: norm: cast",
    ]
    nothing = replace(result, taken_back={}, repairs=(), reasons={SITE.name: "kept: fused as it is"})
    assert list(rewrite_lines(nothing))[1:] == [
        "1 x kept: fused as it is",
        "nothing to gain: the model is written as it was",
    ]


def test_summary_counts_reasons() -> None:
    sites = inspection_of(SITE).sites
    lines = summary_lines(sites, {SITE.name: "softmax"}, {"a": "why", "b": "why", "c": "else"})
    assert lines == ["1 attention site (1 softmax), 0 other softmaxes", "2 x why", "1 x else"]


def test_fused_sites() -> None:
    sites = layers_of(SITE, 3)
    found = (
        SiteFusion(sites[0].name, True, "_gemm_mha_v2_myl0_7"),
        SiteFusion(sites[1].name, False),
        SiteFusion(sites[2].name, None, note="2 nodes are called 'x'"),
    )
    lines = inspection_lines(inspection_of(*sites, fusion=FusionReport("TensorRT 10.6", found, 2, 1)))
    assert [line.split("  ")[-1] for line in lines if "Softmax" in line] == [
        "yes",
        "no",
        "not known: 2 nodes are called 'x'",
    ]
    assert lines[-1] == (
        "TensorRT 10.6 fuses 1 of 3 sites, and has 1 fused attention kernel that names lead to none of them"
    )


def test_kernels_without_a_model() -> None:
    kernels = [
        EngineLayer(f"_gemm_mha_v2_myl0_{7 * i}", nodes=(f"/layer.{i}/MatMul", f"/layer.{i}/Softmax")) for i in range(3)
    ]
    lines = kernel_lines("TensorRT 10.6", kernels)
    assert lines[2] == ("3 x      _gemm_mha_v2_myl0_*  /layer.{0..2}/MatMul, /layer.{0..2}/Softmax")
    assert lines[-1] == "TensorRT 10.6: 3 fused attention kernels in the engine"
    assert "not told" in kernel_lines("TensorRT 10.6", [EngineLayer("_gemm_mha_v2")])[2]
    assert kernel_lines("TensorRT 10.6", []) == ["TensorRT 10.6: 0 fused attention kernels in the engine"]
    assert kernels_json("e", "TensorRT 10.6", kernels)["kernels"][1]["nodes"] == ["/layer.1/MatMul", "/layer.1/Softmax"]


def layer_told_by(**fields: object) -> str:
    """The layer of a site whose softmax has these fields."""
    model = encoder_model(layers=1)
    (softmax,) = (node for node in model.graph.node if node.op_type == "Softmax")
    _fill(softmax, **fields)
    return next(iter(source_layers(model, match_model(model)).values()))


def _fill(node: NodeProto, name: str | None = None, doc_string: str = "", **metadata: str) -> None:
    node.name = node.name if name is None else name
    node.doc_string = doc_string
    for key, value in metadata.items():
        node.metadata_props.add(key=key.replace("__", "."), value=value)


@pytest.mark.parametrize(
    ("fields", "layer"),
    [
        (
            {"pkg__torch__onnx__name_scopes": "['', 'encoder', 'encoder.layer.0.self', 'softmax']"},
            "encoder.layer.0.self",
        ),
        ({"pkg__torch__onnx__name_scopes": "not a list", "name": "/a/b/Softmax"}, "a.b"),
        ({"pkg__torch__onnx__name_scopes": "['softmax']", "name": ""}, ""),
        ({"namespace": ": Model/encoder: Encoder/encoder.0: Layer/softmax: aten.softmax.int"}, "encoder.0"),
        ({"doc_string": "/usr/lib/python3/modeling_bert.py(192): forward\n/x/y.py(3): call"}, "modeling_bert.py:192"),
        ({"name": "/encoder/layer.0/self/Softmax"}, "encoder.layer.0.self"),
        ({"name": "Softmax_12"}, ""),
    ],
)
def test_source_layers(fields: dict[str, str], layer: str) -> None:
    assert layer_told_by(**fields) == layer


def test_layers_are_shown_where_they_tell_more_than_the_nodes() -> None:
    def lines(site: Site, layer: str) -> str:
        return "\n".join(inspection_lines(inspection_of(site, layers={site.name: layer})))

    assert "layer" not in lines(replace(SITE, name="/encoder.0/self/Softmax"), "encoder.0.self").splitlines()[0]
    assert "encoder.0.self" in lines(replace(SITE, name="node_Softmax_12"), "encoder.0.self")

"""The HTML page: self-contained, escaped, with a picture of each distinct site before and after."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from chain_models import FORMS
from onnx import helper
from report_models import encoder_model

from attngraft.engine.fusion import FusionReport, SiteFusion
from attngraft.errors import BuildError
from attngraft.lower import lower_model
from attngraft.onnx_graph import walk_graphs
from attngraft.report.drawing import draw_graph
from attngraft.report.inspect_model import inspect_model
from attngraft.report.page import page_html, write_page
from attngraft.report.records import Inspection
from attngraft.report.site_graph import DrawnNode, SiteGraph, site_graph

Write = Callable[..., Path]

VOID = {"meta", "link", "br", "img"}


class Balanced(HTMLParser):
    """Fails on tags that do not match, and collects what a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}" for name, _ in attributes if name in ("src", "href", "onload", "onclick")]
        self.fetched += [tag] if tag in ("script", "link", "iframe") else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(path: Path, choice: str = "softmax") -> str:
    model, inspection = inspect_model(path)
    choices = {site.name: choice if site.lowerings[choice] is None else "keep" for site in inspection.sites.sites}
    return page_html(model, replace(inspection, choices=choices))


def test_the_page_is_well_formed_and_fetches_nothing(data_folder: Path) -> None:
    for path in sorted(data_folder.glob("*.onnx")):
        text = page(path)
        parser = Balanced()
        parser.feed(text)
        assert parser.open == []
        assert parser.fetched == []
        assert "http" not in text.replace("http-equiv", "")
        assert "prefers-color-scheme: dark" in text
        for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
            ElementTree.fromstring(svg)


def test_equal_sites_are_drawn_once_before_and_after(written: Write) -> None:
    text = page(written(encoder_model(layers=3)))
    assert text.count("<svg") == 2
    assert "3 \u00d7 /layer.{0..2}/Softmax" in text
    assert text.count("<tr>") == 4
    before, after = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert "Softmax</text>" in before and "MaskedSoftmax" not in before
    assert "MaskedSoftmax</text>" in after and "scale 0.125" in after
    for words in ("query", "key", "values", "context"):
        assert f">{words}</text>" in before and f">{words}</text>" in after


def test_fused_attention_is_drawn_with_what_it_reads(written: Write) -> None:
    text = page(written(encoder_model(layers=1)), "attention")
    _, after = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert "FusedAttention</text>" in after and "layout qkv" in after and "Transpose" not in after
    assert after.count("MatMul</text>") == 1  # query, key and values come from one product
    for words in ("hidden states", "context"):
        assert f">{words}</text>" in after


def test_a_kept_site_is_drawn_once(written: Write) -> None:
    text = page(written(encoder_model()), "keep")
    assert text.count("<svg") == 1
    assert "as the model has it" in text


def test_names_are_escaped(written: Write) -> None:
    model = encoder_model(layers=1)
    for node in model.graph.node:
        if node.op_type == "Softmax":
            node.name = '<script>alert("x")</script>&'
    text = page(written(model, "<b>.onnx"))
    assert "<script" not in text and "<b>.onnx" not in text
    assert "&lt;script&gt;alert" in text and "&lt;b&gt;.onnx" in text


def test_softmaxes_that_are_no_attention_have_their_own_table(written: Write) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[B,8] x) => (float[B,8] out) { out = Softmax<axis = -1>(x) }'
    )
    text = page(written(model))
    assert "Softmaxes left alone" in text and "All sites" not in text and "<svg" not in text


def test_what_tensorrt_says_is_on_the_page(written: Write) -> None:
    model, inspection = inspect_model(written(encoder_model()))
    sites = tuple(SiteFusion(site.name, site.name.startswith("/layer.0")) for site in inspection.sites.sites)
    text = page_html(model, replace(inspection, fusion=FusionReport("TensorRT 10.6", sites, 1, 0)))
    assert "<b>1 of 2</b>fused by TensorRT 10.6" in text and "<th>fused</th>" in text
    failed = FusionReport("TensorRT 10.6", sites, 0, 0, "no <kernel>")
    text = page_html(model, replace(inspection, fusion=failed, repairs=("norm: cast",)))
    assert "<b>not built</b>TensorRT 10.6" in text and "TensorRT 10.6: no &lt;kernel&gt;" in text
    assert "<li>norm: cast</li>" in text


def test_the_page_appears_whole_or_not_at_all(written: Write, tmp_path: Path) -> None:
    model, inspection = inspect_model(written(encoder_model()))
    write_page(tmp_path / "page.html", model, inspection)
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(BuildError, match="cannot be written"):
        write_page(tmp_path / "absent" / "page.html", model, inspection)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "page.html"]


def titles(graph: SiteGraph) -> list[str]:
    return sorted(node.title for node in graph.nodes)


def drawn(path: Path, choice: str | None = None) -> SiteGraph:
    model, inspection = inspect_model(path)
    (site,) = inspection.sites.sites
    if choice is not None:
        model = lower_model(model, inspection.sites, {site.name: choice})
    return site_graph(dict(walk_graphs(model.graph))[site.graph], site)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_drawn_from_its_operands_to_its_result(written: Write, form: str) -> None:
    graph = drawn(written(FORMS[form].model()))
    keys = {node.key for node in graph.nodes}
    assert {source for source, _ in graph.edges} | {target for _, target in graph.edges} == keys
    assert {"query", "key", "values", "context"} <= set(titles(graph))
    ElementTree.fromstring(draw_graph(graph, form).svg)


def test_scalars_are_written_into_their_nodes(written: Write) -> None:
    graph = drawn(written(FORMS["sqrt(scale) on query and key, guard"].model()))
    assert [node.details for node in graph.nodes if node.title == "Mul"] == [("\u00d7 0.5",)] * 2
    assert {node.kind for node in graph.nodes if node.title in ("IsNaN", "Where")} == {"mask"}


def test_a_fused_node_is_drawn_with_its_operands(written: Write) -> None:
    names = ("q", "k", "v")
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["b", 2, "s", 8]) for n in (*names, "y")]
    node = helper.make_node("Attention", names, ["y"], name="attention", is_causal=1)
    graph = helper.make_graph([node], "g", values[:3], values[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    (attention,) = (node for node in drawn(written(model)).nodes if node.kind == "attention")
    assert attention.details == ("is_causal 1",)
    assert titles(drawn(written(model))) == ["Attention", "context", "key", "query", "values"]


def boxes_and_edges(svg: str) -> tuple[dict[str, tuple[float, float, float, float]], list[str]]:
    root = ElementTree.fromstring(svg)
    boxes = {
        group.find("text").text: tuple(float(group.find("rect").get(side)) for side in ("x", "y", "width", "height"))
        for group in root.iter("g")
    }
    return boxes, [path.get("d") for path in root.iter("path") if path.get("class") == "edge"]


def test_boxes_do_not_overlap_and_lie_inside() -> None:
    names = [f"n{i}" for i in range(9)]
    edges = [
        (f"n{i}", f"n{j}") for i, j in ((0, 2), (1, 2), (2, 3), (3, 4), (0, 8), (5, 4), (4, 6), (4, 7), (6, 8), (7, 8))
    ]
    graph = SiteGraph(tuple(DrawnNode(name, "mask", name * 4, ("a detail",)) for name in names), tuple(edges))
    drawing = draw_graph(graph, "a graph")
    boxes, paths = boxes_and_edges(drawing.svg)
    assert len(boxes) == 9 and len(paths) == len(edges)
    root = ElementTree.fromstring(drawing.svg)
    width, height = float(root.get("width")), float(root.get("height"))
    for name, (x, y, w, h) in boxes.items():
        assert x >= 0 and y >= 0 and x + w <= width + 1 and y + h <= height + 1
        for other, (x2, y2, w2, h2) in boxes.items():
            assert name == other or x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y, (name, other)
    for source, target in edges:
        assert boxes[source * 4][1] < boxes[target * 4][1]


def test_an_inspection_without_anything(written: Write) -> None:
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:]))
    model.ir_version = 8
    path = written(model)
    found, inspection = inspect_model(path)
    assert isinstance(inspection, Inspection)
    assert "0 attention sites, 0 other softmaxes" in page_html(found, inspection)

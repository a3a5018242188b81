"""Attention inside local functions: inlined where it is to be lowered, and left alone where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from attngraft.cli import main
from attngraft.match import inline_attention, match_model
from attngraft.onnx_graph import load_model
from attngraft.rewrite import rewrite_model

Write = Callable[..., Path]

GRAPH = """
    <ir_version: 8, opset_import: ["" : 17, "pkg" : 1]>
    g (float[B,2,S,4] q, float[B,2,T,4] k, float[B,2,T,4] v, int64[B,T] attended) => (float[B,2,S,4] out)
    <float[4] weight = {0.5, 0.25, 2, 1}> {
        %s
    }
"""
ATTEND = """
    <opset_import: ["" : 17], domain: "pkg">
    attend (q, k, v, mask) => (out) {
        kt = Transpose<perm = [0, 1, 3, 2]>(k)
        s = MatMul(q, kt)
        c = Constant<value_float = 0.5>()
        scaled = Mul(s, c)
        low = Constant<value_float = -3.0e38>()
        axes = Constant<value_ints = [1, 2]>()
        wide = Unsqueeze(mask, axes)
        keep = Cast<to = 9>(wide)
        masked = Where(keep, scaled, low)
        p = Softmax<axis = -1>(masked)
        out = MatMul(p, v)
    }
"""
LAYER = """
    <opset_import: ["" : 17, "pkg" : 1], domain: "pkg">
    layer (q, k, v, mask) => (out) { x = pkg.attend(q, k, v, mask) y = pkg.act(x) out = Add(x, y) }
"""
ACT = """
    <opset_import: ["" : %d], domain: "pkg">
    act (x) => (y) { y = Relu(x) }
"""
TWICE = "a = pkg.layer(q, k, v, attended) b = Mul(a, weight) out = pkg.attend(b, k, v, attended)"
SPREAD = """
    <opset_import: ["" : 17], domain: "pkg">
    product (q, k) => (s) { kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) }
    <opset_import: ["" : 17], domain: "pkg">
    weigh (s, v) => (out) { p = Softmax<axis = -1>(s) out = MatMul(p, v) }
"""


def model_of(calls: str, *functions: str) -> ModelProto:
    return onnx.parser.parse_model(GRAPH % calls + "".join(functions))


def twice(act_opset: int = 17) -> ModelProto:
    return model_of(TWICE, ATTEND, LAYER, ACT % act_opset)


def spread() -> ModelProto:
    return model_of("s = pkg.product(q, k) out = pkg.weigh(s, v)", SPREAD)


def function_of_another_opset() -> ModelProto:
    return model_of("out = pkg.attend(q, k, v, attended)", ATTEND.replace('"" : 17', '"" : 16'))


def function_names(model: ModelProto) -> list[str]:
    return [function.name for function in model.functions if function.domain == "pkg"]


@pytest.mark.parametrize("lower", ["native", "softmax"])
@pytest.mark.parametrize("act_opset", [17, 13])
def test_a_function_called_twice_gives_two_sites_that_are_lowered_and_proved(
    written: Write, tmp_path: Path, lower: str, act_opset: int
) -> None:
    source = written(twice(act_opset))
    result = rewrite_model(source, tmp_path / "out.onnx", lower=lower)
    assert result.lowered == len(result.sites.sites) == 2
    assert result.report.passed
    assert any("holed" in case for case in result.report.cases)  # the mask is known for one inside the function
    assert result.repairs == (
        "function pkg::attend: inlined, since it holds 1 attention site",
        "function pkg::layer: inlined, since it calls a function that holds attention",
    )
    assert function_names(load_model(tmp_path / "out.onnx")) == ["act"]


def test_a_padding_mask_is_read_through_a_function() -> None:
    inlined, functions = inline_attention(twice())
    assert [function.name for function in functions] == ["attend", "layer"]
    sites = match_model(inlined).sites
    assert len(sites) == 2
    assert all(site.graph == "" and site.scale.value == 0.5 for site in sites)
    assert len({site.name for site in sites}) == 2


def test_weights_stay_where_they_are() -> None:
    """One inside the model and above the size that matching reads, one in a file that is not even there."""
    model = twice()
    model.graph.initializer.append(numpy_helper.from_array(np.ones((64, 64), np.float32), "large"))
    outside = model.graph.initializer.add(name="outside", data_type=TensorProto.FLOAT, dims=[4096, 4096])
    outside.data_location = TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="weights.bin")
    inlined, _ = inline_attention(model)
    assert inlined.graph.initializer == model.graph.initializer
    assert function_names(model) == ["attend", "layer", "act"]


def test_attention_that_lies_across_functions_is_found(written: Write, tmp_path: Path) -> None:
    model = spread()
    assert match_model(model).sites == ()
    result = rewrite_model(written(model), tmp_path / "out.onnx", lower="softmax")
    assert result.lowered == 1
    assert result.report.passed
    assert [line.partition(",")[2] for line in result.repairs] == [
        " since the model has attention that lies across functions"
    ] * 2


def test_functions_stay_where_no_site_is_lowered(written: Write, tmp_path: Path) -> None:
    """TensorRT has no fused attention in float32, and a plugin gains nothing."""
    source = written(twice())
    result = rewrite_model(source, tmp_path / "out.onnx")
    assert (result.lowered, result.repairs, len(result.sites.sites)) == (0, (), 2)
    assert load_model(tmp_path / "out.onnx") == load_model(source)


def test_functions_without_attention_stay() -> None:
    model = model_of("out = pkg.act(q)", ACT % 17)
    assert inline_attention(model) == (model, ())
    assert inline_attention(model)[0] is model


def test_a_function_of_another_opset_is_left_alone_with_the_reason() -> None:
    model = function_of_another_opset()
    assert inline_attention(model) == (model, ())
    (site,) = match_model(model).sites
    assert "local function of another opset" in site.lowerings["native"]


def test_a_call_in_a_subgraph_is_inlined() -> None:
    branches = """
        c = Constant<value = bool {1}>()
        out = If(c) <
            then_branch = yes () => (float[B,2,S,4] x) { x = pkg.attend(q, k, v, attended) },
            else_branch = no () => (float[B,2,S,4] y) { y = Identity(q) }
        >
    """
    inlined, _ = inline_attention(model_of(branches, ATTEND))
    (site,) = match_model(inlined).sites
    assert site.graph.endswith("then_branch")


def test_inspect_shows_the_sites_that_a_rewrite_would_find(
    written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(twice())
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "2 attention sites" in shown
    assert "local function" not in shown
    assert main(["inspect", str(path), "--html", str(tmp_path / "page.html")]) == 0
    assert "MatMul" in (tmp_path / "page.html").read_text(encoding="utf-8")

"""Which sites TensorRT fuses, asked of the real TensorRT-RTX, which builds without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, helper
from report_models import encoder_model

from attngraft.engine import ShapeRange, build_engine
from attngraft.engine.default_profile import BATCH, IMAGE, SEQUENCE, default_profile
from attngraft.engine.fusion import FusionReport, attribute_kernels, find_fusion
from attngraft.engine.inspector import fused_kernels_of_file
from attngraft.engine.layers import EngineLayer, layers_of_inspector, layers_of_message
from attngraft.engine.sidecar import card_path, read_card
from attngraft.errors import BuildError, EngineError
from attngraft.match import match_model

Write = Callable[..., Path]


def fusion_of(model: ModelProto, path: Path) -> FusionReport:
    return find_fusion(model, path, match_model(model), backend="rtx")


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_fused_sites_are_told_by_name(tmp_path: Path, named: bool) -> None:
    found = fusion_of(encoder_model(named=named), tmp_path / "model.onnx")
    assert found.made_by.startswith("TensorRT-RTX 1.")
    assert [site.fused for site in found.sites] == [True, True]
    assert len({site.kernel for site in found.sites}) == 2
    assert (found.fused, found.kernels, found.elsewhere) == (2, 2, 0)


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"head_size": 8}], ids=["fp32", "head size 8"])
def test_sites_that_are_not_fused(tmp_path: Path, options: dict[str, object]) -> None:
    found = fusion_of(encoder_model(**options), tmp_path / "model.onnx")
    assert [site.fused for site in found.sites] == [False, False]
    assert found.kernels == 0


def test_nodes_of_one_name_give_counts_only(tmp_path: Path) -> None:
    model = encoder_model()
    for node in model.graph.node:
        node.name = "same"
    found = fusion_of(model, tmp_path / "model.onnx")
    assert [site.fused for site in found.sites] == [None, None]
    assert "nodes are called 'same'" in found.sites[0].note
    assert (found.fused, found.kernels, found.elsewhere) == (0, 2, 2)


def test_a_model_that_does_not_build(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["b", 2, "s", 64]) for n in ("q", "k", "v", "y")]
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], name="attention")
    graph = helper.make_graph([node], "g", values[:3], values[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    found = fusion_of(model, tmp_path / "model.onnx")
    assert "not supported by a dedicated kernel" in found.failure and "\n" not in found.failure
    assert [site.fused for site in found.sites] == [None]
    assert found.sites[0].note == "the model does not build"


def test_shapes_that_the_model_has_not(tmp_path: Path) -> None:
    model = encoder_model()
    with pytest.raises(BuildError, match="no such input"):
        find_fusion(
            model, tmp_path / "m.onnx", match_model(model), backend="rtx", shapes={"z": ShapeRange.parse("1x2")}
        )


def test_kernels_that_do_not_tell_their_nodes() -> None:
    model = encoder_model()
    kernels = [EngineLayer("_gemm_mha_v2_myl0_7"), EngineLayer("_gemm_mha_v2_myl0_9", nodes=("/layer.0/Softmax",))]
    found = attribute_kernels("TensorRT", model, match_model(model), kernels)
    assert [site.fused for site in found.sites] == [True, None]
    assert "does not tell" in found.sites[1].note


def test_the_card_of_an_engine_tells_its_kernels(written: Write, tmp_path: Path) -> None:
    path, engine = written(encoder_model()), tmp_path / "model.engine"
    shapes = {
        "x": ShapeRange.parse("1x1x256:4x64x256:8x128x256"),
        "mask": ShapeRange.parse("1x1x1x1:4x1x1x64:8x1x1x128"),
    }
    build_engine(path, engine, backend="rtx", shapes=shapes)
    made_by, kernels = fused_kernels_of_file(engine)
    assert made_by.startswith("TensorRT-RTX 1.")
    assert read_card(engine).fused_attention == kernels
    assert [sum(node.endswith("/Softmax") for node in kernel.nodes) for kernel in kernels] == [1, 1]
    model = onnx.load(path)
    assert attribute_kernels(made_by, model, match_model(model), kernels).fused == 2
    fields = json.loads(card_path(engine).read_text())
    del fields["fused_attention"]
    card_path(engine).write_text(json.dumps(fields))
    assert read_card(engine).fused_attention is None


def test_an_engine_without_a_card_needs_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tmp_path / "model.engine"
    engine.write_bytes(b"ftrt" + bytes(20) + bytes([10, 6, 0, 26]) + bytes(100))
    monkeypatch.setattr("attngraft.engine.inspector.describe_device", lambda: None)
    with pytest.raises(EngineError, match="no card beside it lists its kernels"):
        fused_kernels_of_file(engine)
    with pytest.raises(EngineError, match="no such file"):
        fused_kernels_of_file(tmp_path / "absent.engine")


LINE = (
    "Name: _gemm_mha_v2_myl0_7, LayerType: kgen, Inputs: [ { Name: a, Dimensions: [-1,1,64] }], Constants: [], "
    "Outputs: [], TacticName: _gemm_mha_v2_0x1ba4, StreamId: 0, Metadata: [ONNX Layer: /a/MatMul][ONNX Layer: b[0]]"
)


def test_layers_of_the_log() -> None:
    (layer,) = layers_of_message(f"Layers:\n{LINE}\n\nI/O Tensors:\n Name: x, IOMode: Input")
    assert layer == EngineLayer("_gemm_mha_v2_myl0_7", "kgen", "_gemm_mha_v2_0x1ba4", ("/a/MatMul", "b[0]"))
    assert layer.is_fused_attention


def test_layers_of_the_inspector() -> None:
    entry = {
        "Name": "_gemm_mha_v2_myl0_7",
        "LayerType": "kgen",
        "TacticName": "_gemm_mha_v2_0x1ba4",
        "Metadata": "[ONNX Layer: /a/MatMul]\x1e[ONNX Layer: /a/Softmax]",
    }
    (layer,) = layers_of_inspector(json.dumps({"Layers": [entry], "Bindings": []}))
    assert layer.nodes == ("/a/MatMul", "/a/Softmax")
    assert layer.is_fused_attention
    with pytest.raises(EngineError, match="no layer information"):
        layers_of_inspector(json.dumps({"Layers": ["layer one", "layer two"]}))
    with pytest.raises(EngineError, match="no layer information"):
        layers_of_inspector(json.dumps({"Layers": []}))
    with pytest.raises(EngineError, match="is not understood"):
        layers_of_inspector("no JSON")


@pytest.mark.parametrize(
    ("layer", "fused"),
    [
        (EngineLayer("_gemm_mha_v2_myl0_7"), True),
        (EngineLayer("__myl_Fc_myl0_3", tactic="sm90_fmha_v2_flash_fp16"), True),
        (EngineLayer("/mha/query/MatMul_myl0_2", "gemm", "", ("/mha/query/MatMul",)), False),
        (EngineLayer("/mha/query/MatMul_myl0_2", "gemm", "sm90_xmma_gemm", ("/mha/query/MatMul",)), False),
        (EngineLayer("__myl_MaxSubExpSumDivMul_myl0_6", "kgen", "__myl_MaxSubExp_0x1", ("/mha/Softmax",)), False),
    ],
)
def test_what_is_a_fused_kernel(layer: EngineLayer, fused: bool) -> None:
    assert layer.is_fused_attention is fused


def model_with(**inputs: list[int | str | None]) -> ModelProto:
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    return helper.make_model(helper.make_graph([], "graph", values, values[:1]))


def test_default_shapes() -> None:
    model = model_with(
        ids=["b", "s"], mask=["b", "past + s"], image=[None, 3, None, None], fixed=[2, 5], cache=["b", 4, "past", 8]
    )
    profile = default_profile(model, {})
    assert profile["ids"] == ShapeRange(*zip(BATCH, SEQUENCE))
    assert profile["mask"] == ShapeRange(*zip(BATCH, (2, 128, 256)))
    assert profile["image"] == ShapeRange(*((n, 3, side, side) for n, side in zip(BATCH, IMAGE)))
    assert "fixed" not in profile


def test_given_shapes_decide_for_their_symbols() -> None:
    model = model_with(ids=["b", "s"], mask=["b", 1, "s"])
    given = {"ids": ShapeRange.parse("1x2:3x16:5x32")}
    assert default_profile(model, given) == {**given, "mask": ShapeRange.parse("1x1x2:3x1x16:5x1x32")}
    with pytest.raises(BuildError, match="rank 1"):
        default_profile(model, {"ids": ShapeRange.parse("4")})

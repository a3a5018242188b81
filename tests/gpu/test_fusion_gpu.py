"""What TensorRT fuses, read from its builder and from the inspector of a loaded engine."""

from __future__ import annotations

from pathlib import Path

import onnx

from attngraft.engine import ShapeRange
from attngraft.engine.fusion import attribute_kernels, find_fusion
from attngraft.engine.inspector import fused_kernels_of_file
from attngraft.engine.probe import probe
from attngraft.engine.sidecar import card_path
from attngraft.match import match_model
from engine_cases import BuildFunction
from report_models import encoder_model

DEFAULT_LEVEL = 3
"""TensorRT's own builder level: a lower one may leave the fusion out."""

SHAPES = {"x": ShapeRange.parse("1x1x256:4x64x256:8x128x256"), "mask": ShapeRange.parse("1x1x1x1:4x1x1x64:8x1x1x128")}


def test_a_build_tells_which_sites_are_fused(tmp_path: Path) -> None:
    for dtype, fused in (("float16", 2), ("float32", 0)):
        model = encoder_model(dtype=dtype)
        found = find_fusion(model, tmp_path / "model.onnx", match_model(model), backend="tensorrt", shapes=SHAPES)
        assert found.failure == ""
        assert [site.fused for site in found.sites] == [bool(fused)] * 2
        assert (found.fused, found.elsewhere) == (fused, 0)


def test_an_engine_tells_it_with_its_card_and_without(build: BuildFunction) -> None:
    engine = build(encoder_model(), SHAPES, optimization_level=DEFAULT_LEVEL)
    model = onnx.load(engine.with_name("model.onnx"))
    sites = match_model(model)
    assert attribute_kernels("", model, sites, fused_kernels_of_file(engine)[1]).fused == 2
    card_path(engine).unlink()
    made_by, kernels = fused_kernels_of_file(engine)
    assert made_by.startswith("TensorRT ")
    assert attribute_kernels(made_by, model, sites, kernels).fused == 2


def test_the_probe_answers_here() -> None:
    report = probe(backend="tensorrt")
    assert report.made_by.startswith("TensorRT ")
    assert {answer.fused for answer in report.answers} >= {True, False}

"""What docs/deployment.md says of ONNX Runtime, as far as its CPU provider can tell."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import onnxruntime
import pytest
from build_support import REPOSITORY

from attngraft.contract import DOMAIN
from attngraft.engine.backends import load_backend, register_plugins
from attngraft.engine.logger import process_logger
from attngraft.engine.network import count_plugin_layers
from attngraft.engine.rtx import prepare_parser
from attngraft.plugin_library import plugin_library
from attngraft.rewrite import rewrite_model

DATA = REPOSITORY / "tests" / "data"


@pytest.fixture(params=[("bert_attentions_dynamo", "softmax"), ("bert_eager_fp16_dynamo", "attention")])
def lowered(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A rewritten export: of one plugin, then of the other."""
    export, lower = request.param
    path = tmp_path / "lowered.onnx"
    rewrite_model(DATA / f"{export}.onnx", path, lower=lower, verify=False)
    return path


@pytest.mark.parametrize("ahead_of_time", ["0", "1"])
def test_bodies_are_inlined(lowered: Path, tmp_path: Path, ahead_of_time: str) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(tmp_path / "inlined.onnx")
    options.add_session_config_entry("session.disable_aot_function_inlining", ahead_of_time)
    onnxruntime.InferenceSession(lowered, options, providers=["CPUExecutionProvider"])
    before, after = onnx.load(lowered), onnx.load(tmp_path / "inlined.onnx")
    assert DOMAIN in {node.domain for node in before.graph.node}
    assert DOMAIN not in {node.domain for node in after.graph.node}
    assert len(after.graph.node) > len(before.graph.node)


def test_the_file_for_the_tensorrt_provider(lowered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lowered.parent)
    document = (REPOSITORY / "docs" / "deployment.md").read_text()
    exec(re.findall(r"```python\n(.*?)```", document, re.DOTALL)[0], {})
    before, after = onnx.load("lowered.onnx"), onnx.load("trt.onnx")
    sites = [node for node in before.graph.node if node.domain == DOMAIN]
    nodes = [node for node in after.graph.node if node.domain == "trt.plugins"]
    assert sites and [node.name for node in nodes] == [node.name for node in sites]
    for node in nodes:
        attributes = {attribute.name: attribute.s.decode() for attribute in node.attribute if attribute.s}
        assert (attributes["plugin_namespace"], attributes["plugin_version"]) == (DOMAIN, "1")
    assert not [function for function in after.functions if function.domain == DOMAIN]
    with pytest.raises(Exception, match="trt.plugins:.*is not a registered function/op"):
        onnxruntime.InferenceSession("trt.onnx", providers=["CPUExecutionProvider"])


def test_a_parser_of_tensorrt_makes_plugin_layers_of_it(lowered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-RTX's, which is here: it goes by the attributes, whatever the nodes' domain is."""
    monkeypatch.chdir(lowered.parent)
    document = (REPOSITORY / "docs" / "deployment.md").read_text()
    exec(re.findall(r"```python\n(.*?)```", document, re.DOTALL)[0], {})
    backend = load_backend("rtx")
    trt = backend.module
    register_plugins(trt.get_plugin_registry(), plugin_library())
    prepare_parser(plugin_library())
    builder = trt.Builder(process_logger(trt))
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, process_logger(trt))
    assert parser.parse_from_file("trt.onnx"), parser.get_error(0).desc()
    sites = [node for node in onnx.load("lowered.onnx").graph.node if node.domain == DOMAIN]
    assert count_plugin_layers(backend, network) == len(sites) > 0

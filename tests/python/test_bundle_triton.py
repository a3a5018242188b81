"""Model repositories for Triton: the configuration that the protocol buffer library reads, and the server's options."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from build_support import run_python
from bundle_cases import CARD, FIXED, files_below, one_input, tensor, write_engine
from triton_schema import parse_config

from attngraft.bundle import check_bundle, write_bundle
from attngraft.bundle.text_format import format_message
from attngraft.contract import MaskedSoftmax
from attngraft.engine import build_engine
from attngraft.engine.shapes import ShapeRange
from attngraft.engine.sidecar import EngineCard, card_path, read_card
from attngraft.errors import EngineError
from attngraft.plugin_library import plugin_library
from engine_models import softmax_model


def config_of(tmp_path: Path, card: EngineCard, **options: Any) -> Any:
    """The configuration in the repository of an engine with that card."""
    result = write_bundle(write_engine(tmp_path, card), tmp_path / "repository", "triton", **options)
    assert result.triton is not None
    return parse_config((result.folder / result.triton.name / "config.pbtxt").read_text())


def graphs_of(config: Any) -> list[tuple[int, dict[str, list[int]], int | None]]:
    """Batch, shapes and the lower bound's batch of every graph; a bound's shapes must be the graph's own."""
    graphs = []
    for spec in config.optimization.cuda.graph_spec:
        shapes = {name: list(shape.dim) for name, shape in spec.input.items()}
        bound = spec.graph_lower_bound if spec.HasField("graph_lower_bound") else None
        if bound is not None:
            assert {name: list(shape.dim) for name, shape in bound.input.items()} == shapes
        graphs.append((spec.batch_size, shapes, None if bound is None else bound.batch_size))
    return graphs


def tensors_of(tensors: Any) -> list[tuple[str, str, list[int], list[int] | None]]:
    """Name, type, dims and reshape."""
    types = tensors[0].DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    return [
        (
            item.name,
            types[item.data_type].name,
            list(item.dims),
            list(item.reshape.shape) if item.HasField("reshape") else None,
        )
        for item in tensors
    ]


def test_a_model_with_a_batch_dimension(tmp_path: Path) -> None:
    config = config_of(tmp_path, CARD, name="bert", instances=2)
    assert (config.name, config.platform, config.default_model_filename) == ("bert", "tensorrt_plan", "model.plan")
    assert config.max_batch_size == 7
    assert tensors_of(config.input) == [("ids", "TYPE_INT64", [-1], None), ("lengths", "TYPE_INT32", [1], [])]
    assert tensors_of(config.output) == [("y", "TYPE_FP16", [-1, 64], None), ("pooled", "TYPE_BF16", [64], None)]
    (group,) = config.instance_group
    assert (group.count, group.kind, list(group.profile)) == (2, 1, [])
    assert config.HasField("dynamic_batching")
    assert config.optimization.cuda.graphs


def test_every_batch_has_a_graph_less_than_twice_as_large(tmp_path: Path) -> None:
    usual, longest = {"ids": [128], "lengths": []}, {"ids": [512], "lengths": []}
    ladder = [(1, None), (2, None), (4, 3), (6, 5), (7, None)]
    graphs = graphs_of(config_of(tmp_path, CARD))
    assert graphs == [(batch, shapes, bound) for shapes in (usual, longest) for batch, bound in ladder]


def test_graphs_stay_inside_a_smaller_max_batch(tmp_path: Path) -> None:
    config = config_of(tmp_path, CARD, max_batch=3)
    assert config.max_batch_size == 3
    assert [(batch, bound) for batch, _, bound in graphs_of(config)] == [(1, None), (2, None), (3, None)] * 2


def test_batches_begin_where_the_profile_does(tmp_path: Path) -> None:
    config = config_of(tmp_path, one_input((-1, 16), "3x16:3x16:9x16", (-1, 2)))
    assert graphs_of(config) == [
        (3, {"x": [16]}, None),
        (4, {"x": [16]}, None),
        (8, {"x": [16]}, 5),
        (9, {"x": [16]}, None),
    ]


def test_a_model_without_a_batch_dimension(tmp_path: Path) -> None:
    config = config_of(tmp_path, FIXED)
    assert config.max_batch_size == 0
    assert tensors_of(config.input) == [("x", "TYPE_FP32", [2, 3, 16], None)]
    assert tensors_of(config.output) == [("y", "TYPE_BOOL", [2, 16], None)]
    assert not config.HasField("dynamic_batching")
    assert graphs_of(config) == [(0, {"x": [2, 3, 16]}, None)]


def test_batching_turned_off(tmp_path: Path) -> None:
    config = config_of(tmp_path, CARD, max_batch=0)
    assert config.max_batch_size == 0
    assert tensors_of(config.input) == [("ids", "TYPE_INT64", [-1, -1], None), ("lengths", "TYPE_INT32", [-1], None)]
    assert graphs_of(config) == [
        (0, {"ids": [6, 128], "lengths": [6]}, None),
        (0, {"ids": [7, 512], "lengths": [7]}, None),
    ]


def test_a_batch_of_one_is_a_batch(tmp_path: Path) -> None:
    """Clients send the same shapes either way, and graphs are found by older backends too."""
    config = config_of(tmp_path, one_input((1, -1), "1x4:1x8:1x16", (1, 2)))
    assert config.max_batch_size == 1
    assert tensors_of(config.input) == [("x", "TYPE_FP32", [-1], None)]
    assert not config.HasField("dynamic_batching")
    assert graphs_of(config) == [(1, {"x": [8]}, None), (1, {"x": [16]}, None)]


def test_several_profiles_are_all_served(tmp_path: Path) -> None:
    short, long = {"x": ShapeRange.parse("1x8:2x8:4x8")}, {"x": ShapeRange.parse("1x64:1x64:2x64")}
    card = replace(one_input((-1, -1), "1x8:2x8:4x8", (-1, 2)), profiles=(short, long))
    config = config_of(tmp_path, card)
    assert list(config.instance_group[0].profile) == ["0", "1"]
    assert config.max_batch_size == 4
    assert [(batch, shapes["x"]) for batch, shapes, _ in graphs_of(config)] == [
        *((batch, [8]) for batch in (1, 2, 4)),
        *((batch, [64]) for batch in (1, 2)),
    ]


MASKED = replace(
    CARD,
    inputs=(tensor("x", "float32", -1, 4), tensor("mask", "bool", -1, 4)),
    outputs=(tensor("y", "float32", -1, 4),),
)


@pytest.mark.parametrize(
    ("card", "reason"),
    [
        (one_input((1, 8), "1x8", (-1, 8)), "'x' is 1x8 but 'y' is ?x8"),
        (one_input((-1, 8), "1x8:2x8:4x8", (2, 8)), "'y' is 2x8"),
        (one_input((1,), "1", (1, 8)), "'x' is 1"),
        (replace(FIXED, inputs=(), profiles=({},)), "it has no inputs"),
        (
            replace(
                MASKED, profiles=({"x": ShapeRange.parse("1x4:2x4:8x4"), "mask": ShapeRange.parse("1x4:1x4:1x4")},)
            ),
            "the first dimensions of 'x' and 'mask' have other ranges",
        ),
    ],
)
def test_what_is_no_batch_dimension_is_named(tmp_path: Path, card: EngineCard, reason: str) -> None:
    result = write_bundle(write_engine(tmp_path, card), tmp_path / "repository", "triton")
    assert result.triton is not None
    assert (result.triton.batching.max_batch, result.triton.batching.reason) == (0, reason)
    assert f"max_batch_size is 0: {reason}." in (result.folder / "README.txt").read_text()
    with pytest.raises(EngineError, match="--max-batch 2: the engine has no batch dimension"):
        write_bundle(tmp_path / "model.engine", tmp_path / "again", "triton", max_batch=2)


@pytest.mark.parametrize(
    ("card", "options", "message"),
    [
        (CARD, {"max_batch": 8}, "--max-batch 8: the engine's profiles take batches of 1 to 7"),
        (CARD, {"max_batch": -1}, "--max-batch -1: the engine's profiles take"),
        (CARD, {"instances": 0}, "--instances 0: give 1 or more"),
        (CARD, {"name": "../up"}, "--name '../up': a model's name"),
        (CARD, {"name": ""}, "--name '': a model's name"),
        (CARD, {"name": "a b"}, "--name 'a b': a model's name"),
        (one_input((), "scalar", (1, 8)), {}, "tensor 'x': is a scalar, which Triton does not serve"),
        (replace(CARD, outputs=(tensor("y", "float16", -1, 0),)), {}, "tensor 'y': has no elements"),
        (replace(CARD, outputs=(tensor("y", "float8", -1, 4),)), {}, "tensor 'y': Triton has no type float8"),
    ],
)
def test_what_triton_cannot_serve(tmp_path: Path, card: EngineCard, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError) as raised:
        write_bundle(write_engine(tmp_path, card), tmp_path / "repository", "triton", **options)
    assert str(raised.value).startswith(message)
    assert not (tmp_path / "repository").exists()


def test_odd_characters(tmp_path: Path) -> None:
    """In the engine's file name, the folder's and the tensors'."""
    name = 'a "b"\\c\n\t\x7f1 é 漢'
    card = replace(FIXED, inputs=(tensor(name, "float32", 2, 3, 16),), profiles=({name: FIXED.profiles[0]["x"]},))
    folder = tmp_path / "my; 'repository' $HOME é"
    result = write_bundle(write_engine(tmp_path, card, "-my model é.engine"), folder, "triton")
    assert result.triton is not None and result.triton.name == "my_model__"
    config = parse_config((folder / "my_model__" / "config.pbtxt").read_text())
    assert config.input[0].name == name
    assert graphs_of(config) == [(0, {name: [2, 3, 16]}, None)]
    check_bundle(folder)


def test_text_format_of_nothing() -> None:
    assert format_message({"a": {}, "b": [], "c": [{}, {"d": False}]}) == "a { }\nb: []\nc { }\nc {\n  d: false\n}\n"


SERVER = '#!/bin/sh\npwd\nprintf "%s\\n" "$@"\n'
"""What stands for tritonserver: it prints where it runs and its arguments."""


def served(tmp_path: Path, folder: Path) -> list[str]:
    """What serve.sh starts, from another folder."""
    (tmp_path / "bin").mkdir()
    server = tmp_path / "bin" / "tritonserver"
    server.write_text(SERVER)
    server.chmod(0o755)
    path = f"{server.parent}{os.pathsep}{os.environ['PATH']}"
    command = [str(folder / "serve.sh"), "--log-verbose=1", "two words"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd="/", env={**os.environ, "PATH": path}, check=True
    )
    return done.stdout.splitlines()


def test_a_library_beside_the_engine_is_named_to_the_server(tmp_path: Path) -> None:
    engine = write_engine(tmp_path, replace(CARD, plugin_embedded=False))
    folder = tmp_path / "odd; folder"
    write_bundle(engine, folder, "triton")
    # Triton takes every folder at the top for a model: the library must not lie in one.
    assert list(files_below(folder)) == [
        "README.txt",
        "libattngraft.so",
        "manifest.json",
        "model/1/model.plan",
        "model/1/model.plan.json",
        "model/config.pbtxt",
        "serve.sh",
    ]
    assert (folder / "libattngraft.so").read_bytes() == plugin_library().read_bytes()
    assert (folder / "model/1/model.plan").read_bytes() == engine.read_bytes()
    assert read_card(folder / "model/1/model.plan") == read_card(engine)
    option = "--backend-config=tensorrt,plugins=./libattngraft.so"
    assert served(tmp_path, folder) == [str(folder), "--model-repository=.", option, "--log-verbose=1", "two words"]
    assert f"tritonserver --model-repository=. {option}\n" in (folder / "README.txt").read_text()


def test_a_library_inside_the_engine_must_be_allowed(tmp_path: Path) -> None:
    folder = write_bundle(write_engine(tmp_path), tmp_path / "repository", "triton").folder
    assert "libattngraft.so" not in files_below(folder)
    option = "--backend-config=tensorrt,version-compatible=true"
    assert served(tmp_path, folder)[1:3] == ["--model-repository=.", option]
    assert f"tritonserver --model-repository=. {option}\n" in (folder / "README.txt").read_text()


def test_an_engine_without_plugins_needs_no_option(tmp_path: Path) -> None:
    card = replace(CARD, plugin_library=None, plugin_embedded=False, contract_version=None, plugin_layers=0)
    folder = write_bundle(write_engine(tmp_path, card), tmp_path / "repository", "triton").folder
    assert served(tmp_path, folder)[1:] == ["--model-repository=.", "--log-verbose=1", "two words"]
    assert "--backend-config" not in (folder / "README.txt").read_text()


def test_preloading_the_library_registers_nothing() -> None:
    """As README.txt says: TensorRT is loaded after it. The backend's own option opens it behind TensorRT."""
    code = (
        "import json, tensorrt_lean\n"
        "print(json.dumps([c.name for c in tensorrt_lean.get_plugin_registry().all_creators"
        " if c.plugin_namespace == 'attngraft']))"
    )
    assert run_python(code, LD_PRELOAD=str(plugin_library())) == []
    behind = code.replace("print", f"import ctypes; ctypes.CDLL({str(plugin_library())!r})\nprint")
    assert sorted(run_python(behind)) == ["FusedAttention", "MaskedSoftmax"]


def test_an_engine_of_tensorrt_rtx_is_refused(tmp_path: Path) -> None:
    onnx.save(softmax_model(MaskedSoftmax(), (1, 3, 5)), tmp_path / "model.onnx")
    engine = build_engine(tmp_path / "model.onnx", tmp_path / "model.engine", backend="rtx").engine_path
    with pytest.raises(EngineError, match="is a TensorRT-RTX engine, which Triton's TensorRT backend cannot load"):
        write_bundle(engine, tmp_path / "repository", "triton")
    assert not (tmp_path / "repository").exists()


def test_an_engine_without_a_card_is_refused(tmp_path: Path) -> None:
    engine = write_engine(tmp_path, None)
    for format in ("triton", "directory"):
        with pytest.raises(EngineError) as raised:
            write_bundle(engine, tmp_path / "bundle", format)
        assert "has no card (model.engine.json), so its inputs, profiles and plugin library cannot be known" in str(
            raised.value
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.engine"]
    assert not card_path(engine).exists()

"""`attngraft build --pick fastest` on a GPU, from the command line to the engine's answers; and builder flags."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import tensorrt

from attngraft.engine import ShapeRange, build_engine
from attngraft.engine.device import describe_device
from attngraft.engine.sidecar import read_card
from attngraft.errors import BuildError
from attngraft.pick import make_recipe, pick_fastest
from attngraft.runtime import preflight_engine
from block_cases import BATCH, LENGTH, assert_engine_equals, block_inputs
from cli_support import run_cli
from engine_cases import BUILDER_LEVEL
from native_models import BLOCKS, HIDDEN

NAME = "roots, added -inf, guard"
"""One fp16 layer that every lowering can take."""

SHAPES = {
    "x": ShapeRange.parse(f"1x1x{HIDDEN}:{BATCH}x{LENGTH}x{HIDDEN}:{2 * BATCH}x{2 * LENGTH}x{HIDDEN}"),
    "keep": ShapeRange.parse(f"1x1x1x1:{BATCH}x1x{LENGTH}x{LENGTH}:{2 * BATCH}x1x{2 * LENGTH}x{2 * LENGTH}"),
}
UNIFORM = ["keep", "native", "attention", "softmax", "auto"]


def save(folder: Path, name: str = NAME) -> Path:
    onnx.save(BLOCKS[name].model(), folder / "model.onnx")
    return folder / "model.onnx"


def test_the_picked_engine_is_right_and_the_table_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, engine, found, cache = (tmp_path / name for name in ("model.onnx", "p.engine", "found.json", "cache"))
    save(tmp_path)
    shapes = [f"--shape={name}={ranges}" for name, ranges in SHAPES.items()]
    timings = tmp_path / "timing.cache"
    options = [*shapes, "--backend", "tensorrt", "--json", found, "--cache", cache, "--timing-cache", timings, "-q"]
    assert run_cli("build", model, "-o", engine, "--pick", "fastest", *options) == 0
    printed = capsys.readouterr().out
    content = json.loads(found.read_text())
    candidates = {one["name"]: one for one in content["candidates"]}
    assert list(candidates) == UNIFORM
    assert content["against"] == "ONNX Runtime"
    for name, one in candidates.items():
        assert one["failure"] is None, one
        assert name in printed
        if one["same_as"] is None:
            assert one["gpu_us"] > 0 and one["spread_us"] >= 0
            assert len(one["rounds_us"]) == content["rounds"]
            assert one["worst"]["difference"] <= one["worst"]["tolerance"]
    timed = {name: one["gpu_us"] for name, one in candidates.items() if one["gpu_us"]}
    picked = content["picked"]
    assert picked in timed
    fastest = min(timed, key=timed.__getitem__)
    assert picked == fastest or fastest in content["ties"]
    assert content["gains_nothing"] == (picked == "keep" or "keep" in content["ties"])
    assert_engine_equals(engine, BLOCKS[NAME].model(), block_inputs(BLOCKS[NAME].model()))

    card, device = read_card(engine), describe_device()
    assert (card.gpu, card.compute_capability) == (device.name, device.compute_capability)
    assert card.worst_difference.of == "engine"
    assert len(card.sites) == 1
    assert preflight_engine(engine).problems == ()
    assert timings.stat().st_size > 0

    assert run_cli("build", model, "-o", tmp_path / "again.engine", "--pick", "fastest", *options) == 0
    assert "a copy from the cache" in capsys.readouterr().out
    assert (tmp_path / "again.engine").read_bytes() == engine.read_bytes()


def test_two_profiles_in_one_pick(tmp_path: Path) -> None:
    model = save(tmp_path)
    fixed = {"x": ShapeRange.fixed((1, 5, HIDDEN)), "keep": ShapeRange.fixed((1, 1, 5, 5))}
    recipe = make_recipe(
        model, tmp_path / "p.engine", profiles=(SHAPES, fixed), backend="tensorrt", optimization_level=BUILDER_LEVEL
    )
    result = pick_fastest(recipe)
    assert [trial.name for trial in result.trials][:5] == UNIFORM
    assert read_card(result.engine_path).profiles == (SHAPES, fixed)
    cases = result.verdict.winner.report.cases
    assert any(f"1x5x{HIDDEN}" in case for case in cases), cases
    assert_engine_equals(result.engine_path, BLOCKS[NAME].model(), block_inputs(BLOCKS[NAME].model()))


@pytest.mark.parametrize("flag", ["hardware_compatible", "weight_streaming", "refit"])
def test_flags_build_engines_that_run(tmp_path: Path, flag: str) -> None:
    built = build_engine(
        save(tmp_path), tmp_path / "f.engine", backend="tensorrt", shapes=SHAPES, flags=[flag],
        optimization_level=BUILDER_LEVEL,
    )  # fmt: skip
    assert read_card(built.engine_path).flags == (flag,)
    assert preflight_engine(built.engine_path).problems == ()
    assert_engine_equals(built.engine_path, BLOCKS[NAME].model(), block_inputs(BLOCKS[NAME].model()))


def test_version_compatible_engines_run_or_say_what_is_missing(tmp_path: Path) -> None:
    """TensorRT needs its lean runtime for it, which is a package of its own."""
    options = {"backend": "tensorrt", "shapes": SHAPES, "optimization_level": BUILDER_LEVEL}
    try:
        built = build_engine(save(tmp_path), tmp_path / "v.engine", flags=["version_compatible"], **options)
    except BuildError as error:
        assert "lean" in str(error)
        return
    card = read_card(built.engine_path)
    assert card.carries_code and card.flags == ("version_compatible",)
    found = preflight_engine(built.engine_path)
    assert found.problems == ()
    assert found.header.version_text.startswith(".".join(tensorrt.__version__.split(".")[:3]))
    assert_engine_equals(built.engine_path, BLOCKS[NAME].model(), block_inputs(BLOCKS[NAME].model()))

"""Bundles where they are meant to run: the script, the C++ example, a session, and Triton's configuration."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorrt

from attngraft.bundle import write_bundle
from attngraft.engine.logger import process_logger
from attngraft.runtime import Session
from engine_cases import CONFIG, OPERANDS, PROFILE, BuildFunction, attention_inputs
from engine_models import HIDDEN, attention_model
from triton_schema import parse_config

EMBEDDED, BESIDE = "embedded", "beside"


@pytest.fixture(scope="module", params=[EMBEDDED, BESIDE])
def engine(request: pytest.FixtureRequest, build: BuildFunction) -> Path:
    """Dynamic batch and sequence, the library inside or not."""
    return build(attention_model(CONFIG, OPERANDS), PROFILE, embed_plugins=request.param == EMBEDDED)


@pytest.fixture
def bundle(engine: Path, tmp_path: Path) -> Path:
    return write_bundle(engine, tmp_path / "bundle", "directory").folder


def test_the_script_replays_every_shape(bundle: Path) -> None:
    done = subprocess.run([sys.executable, bundle / "run.py", "--replays", "20"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [re.sub(r"\d+\.\d{3} ms", "T", line) for line in done.stdout.splitlines()]
    assert lines == [
        f"profile 0 opt (x 2x8x{HIDDEN}, keep 2x1x8): plain T, graph T",
        f"profile 0 max (x 4x64x{HIDDEN}, keep 4x1x64): plain T, graph T",
    ]


def test_the_example_replays(bundle: Path) -> None:
    done = subprocess.run(
        [replay_example(), bundle, "50"],
        capture_output=True,
        text=True,
        env={**os.environ, "TENSORRT_LIBRARY": str(tensorrt_library())},
    )
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"(\d+\.\d{4}) ms a replay, mean of 50\n", done.stdout)
    assert found is not None, done.stdout
    assert 0 < float(found.group(1)) < 1000


def replay_example() -> Path:
    """The C++ example, compiled with the tests (docs/development.md)."""
    given = os.environ.get("ATTNGRAFT_REPLAY")
    abi = Path(os.environ.get("ATTNGRAFT_TEST_ABI", Path(__file__).parents[2] / "build" / "lib" / "abi"))
    program = Path(given) if given else abi.resolve().parents[1] / "examples" / "cpp" / "attngraft_replay"
    assert program.is_file(), f"{program} is not there: build it, or set ATTNGRAFT_REPLAY"
    return program


def tensorrt_library() -> Path:
    """The libnvinfer that this process has loaded."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    (library,) = (Path(path) for path in paths if re.fullmatch(r"libnvinfer\.so\.\d+.*", Path(path).name))
    return library


def test_a_session_takes_the_bundled_engine(engine: Path, bundle: Path) -> None:
    inputs = attention_inputs(2, 8)
    with Session(engine) as original, Session(bundle / "model.engine") as copy:
        expected = original.run(inputs)["y"]
        for _ in range(3):
            np.testing.assert_array_equal(copy.run(inputs)["y"], expected)
        assert copy.statistics.replays == 2


def test_the_configuration_is_the_engines(engine: Path, tmp_path: Path) -> None:
    """Names, types and shapes as TensorRT tells them; every graph's shapes are taken by a context."""
    result = write_bundle(engine, tmp_path / "repository", "triton", name="attention")
    config = parse_config((result.folder / "attention" / "config.pbtxt").read_text())
    assert config.max_batch_size == 4
    runtime = tensorrt.Runtime(process_logger(tensorrt))
    runtime.engine_host_code_allowed = True
    # The global registry has had the library since the engine was built.
    loaded = runtime.deserialize_cuda_engine((result.folder / "attention/1/model.plan").read_bytes())
    names = [loaded.get_tensor_name(index) for index in range(loaded.num_io_tensors)]
    for tensors, mode in ((config.input, tensorrt.TensorIOMode.INPUT), (config.output, tensorrt.TensorIOMode.OUTPUT)):
        assert [item.name for item in tensors] == [name for name in names if loaded.get_tensor_mode(name) == mode]
        for item in tensors:
            assert [-1, *item.dims] == list(loaded.get_tensor_shape(item.name))
            assert (
                type_name(item) == {"FLOAT": "TYPE_FP32", "BOOL": "TYPE_BOOL"}[loaded.get_tensor_dtype(item.name).name]
            )
    context = loaded.create_execution_context()
    specs = config.optimization.cuda.graph_spec
    assert [(spec.batch_size, list(spec.input["x"].dim)) for spec in specs] == [
        (batch, [length, HIDDEN]) for length in (8, 64) for batch in (1, 2, 4)
    ]
    for spec in specs:
        for name, shape in spec.input.items():
            assert context.set_input_shape(name, (spec.batch_size, *shape.dim))
        assert tuple(context.get_tensor_shape("y"))[0] == spec.batch_size


def type_name(item: Any) -> str:
    return item.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[item.data_type].name

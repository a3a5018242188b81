"""What goes wrong, through the command line: one line that says what, where and what to do, and status 1."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from chain_models import attention as chain

BEFORE = b"what was there before"

SIZE = 32
"""Of the model's matrices: 4 KiB in fp32, more than ONNX keeps inside a file whose weights are external."""


@dataclass(frozen=True)
class Run:
    """One finished command."""

    status: int
    output: str
    errors: list[str]


def attngraft(*arguments: object, prelude: str = "", **environment: str) -> Run:
    """The command line in a process of its own, without a GPU; `prelude` is Python that runs in it first."""
    code = f"import sys\n{prelude}\nfrom attngraft.cli import main\nsys.exit(main())"
    finished = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", **environment},
    )
    return Run(finished.returncode, finished.stdout, finished.stderr.splitlines())


def expect_error(run: Run, *said: str) -> None:
    """One error line, the last and only one of its kind, with all that is to be `said`."""
    assert run.status == 1, run
    assert not any("Traceback" in line for line in run.errors), run
    assert [line.startswith("attngraft: error: ") for line in run.errors].count(True) == 1, run
    for words in said:
        assert words in run.errors[-1], run


def attention(
    *, opset: int = 17, dtype: int = TensorProto.FLOAT, mask: tuple[int, ...] = (SIZE, SIZE), cyclic: bool = False
) -> onnx.ModelProto:
    """softmax(x W x^T / 8 + mask) x, one site, on x [batch, SIZE, SIZE]."""
    element = helper.tensor_dtype_to_np_dtype(dtype)
    value = [helper.make_tensor_value_info(name, dtype, ["batch", SIZE, SIZE]) for name in ("x", "y")]
    constants = {
        "weight": np.eye(SIZE),
        "eighth": np.array(0.125),
        "mask": np.linspace(-1, 0, math.prod(mask)).reshape(mask),
    }
    nodes = [
        helper.make_node("MatMul", ["y" if cyclic else "x", "weight"], ["query"]),
        helper.make_node("Transpose", ["x"], ["key"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["query", "key"], ["product"]),
        helper.make_node("Mul", ["product", "eighth"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], name="site", axis=-1),
        helper.make_node("MatMul", ["probabilities", "x"], ["y"]),
    ]
    weights = [numpy_helper.from_array(array.astype(element), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "attention", value[:1], value[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def no_onnx(path: Path) -> None:
    path.write_text("These are the notes of a meeting.\n" * 40)


def truncated(path: Path) -> None:
    whole = attention().SerializeToString()
    path.write_bytes(whole[: len(whole) * 2 // 3])


def without_its_data(path: Path) -> None:
    onnx.save_model(attention(), path, save_as_external_data=True, location="weights.data")
    path.with_name("weights.data").unlink()


def with_short_data(path: Path) -> None:
    onnx.save_model(attention(), path, save_as_external_data=True, location="weights.data")
    os.truncate(path.with_name("weights.data"), 100)


def absent(path: Path) -> None:
    """Writes nothing."""


def saved(**options: object) -> Callable[[Path], None]:
    return lambda path: onnx.save_model(attention(**options), path)


BAD_MODELS = {
    "absent": (absent, "model.onnx"),
    "no ONNX": (no_onnx, "model.onnx"),
    "truncated": (truncated, "model.onnx"),
    "external data missing": (without_its_data, "weights.data"),
    "external data too short": (with_short_data, "weights.data"),
    "cycle": (saved(cyclic=True), "cycle"),
    "opset too old": (saved(opset=10), "opset"),
}
"""How the model is made, and what the error line names."""

COMMANDS = {
    "inspect": lambda model, target: ("inspect", model),
    "rewrite": lambda model, target: ("rewrite", model, "-o", target, "--lower", "softmax"),
    "verify": lambda model, target: ("verify", model, model),
    "build": lambda model, target: ("build", model, "-o", target, "--backend", "rtx", "--lower", "keep"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", BAD_MODELS)
def test_bad_model(kind: str, command: str, tmp_path: Path) -> None:
    write, named = BAD_MODELS[kind]
    model, target = tmp_path / "model.onnx", tmp_path / "target"
    write(model)
    target.write_bytes(BEFORE)
    files = sorted(tmp_path.iterdir())
    expect_error(attngraft(*COMMANDS[command](model, target)), named)
    assert target.read_bytes() == BEFORE
    assert sorted(tmp_path.iterdir()) == files


SHAPE = f"x=1x{SIZE}x{SIZE}"


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one plugin node."""
    folder = tmp_path_factory.mktemp("lowered")
    saved()(folder / "model.onnx")
    run = attngraft("rewrite", folder / "model.onnx", "-o", folder / "lowered.onnx", "--lower", "softmax")
    assert run.status == 0, run
    return folder / "lowered.onnx"


@pytest.fixture(scope="module")
def engine(lowered: Path) -> Path:
    """Its TensorRT-RTX engine, plugin library listed, with a card beside it."""
    target = lowered.with_name("good.engine")
    options = ("--backend", "rtx", "--lower", "keep", "--no-embed", "--shape", SHAPE)
    run = attngraft("build", lowered, "-o", target, *options)
    assert run.status == 0, run
    return target


def build_over(target: Path, model: Path, *options: str, shape: str = SHAPE, **more: str) -> Run:
    target.write_bytes(BEFORE)
    arguments = ("build", model, "-o", target, "--backend", "rtx", "--lower", "keep", "--shape", shape, *options)
    run = attngraft(*arguments, **more)
    assert target.read_bytes() == BEFORE
    assert not list(target.parent.glob("*.json"))
    return run


@pytest.mark.parametrize(
    ("shape", "said"),
    (
        (f"x=1x{SIZE + 1}x{SIZE}", ("x", str(SIZE))),
        (f"x=1x{SIZE}", ("x", "rank")),
        (f"z=1x{SIZE}x{SIZE}", ("z",)),
        (f"x=4x{SIZE}x{SIZE}:2x{SIZE}x{SIZE}:8x{SIZE}x{SIZE}", ("min",)),
        ("x=one", ("'one'", "1x3x224x224")),
    ),
)
def test_profile_that_contradicts_the_model(shape: str, said: tuple[str, ...], lowered: Path, tmp_path: Path) -> None:
    expect_error(build_over(tmp_path / "new.engine", lowered, shape=shape), *said)


def test_mask_that_does_not_broadcast(lowered: Path, tmp_path: Path) -> None:
    model = onnx.load(lowered)
    (mask,) = (tensor for tensor in model.graph.initializer if tensor.name == "mask")
    mask.CopyFrom(numpy_helper.from_array(np.zeros((SIZE - 1, SIZE), np.float32), "mask"))
    onnx.save_model(model, tmp_path / "model.onnx")
    expect_error(build_over(tmp_path / "new.engine", tmp_path / "model.onnx"), "broadcast")


def test_unsupported_dtype(lowered: Path, tmp_path: Path) -> None:
    model = onnx.load(lowered)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT32
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.int32), tensor.name))
    onnx.save_model(model, tmp_path / "model.onnx")
    expect_error(build_over(tmp_path / "new.engine", tmp_path / "model.onnx"), "model.onnx")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (chain("s = MatMul(q, kt) p = Softmax<axis = -1>(s)", dtype="double"), "scores are float64"),
        (
            chain(
                "s = MatMul(q, kt) m = Add(s, mask) p = Softmax<axis = -1>(m)",
                constants={"mask": np.zeros((1, 1, 1, 1, 1), np.float32)},
                outputs="float[1,B,2,S,4] out",
            ),
            "does not broadcast",
        ),
    ],
    ids=["dtype", "mask"],
)
def test_a_site_that_cannot_be_lowered(model: onnx.ModelProto, said: str, tmp_path: Path) -> None:
    onnx.save_model(model, tmp_path / "model.onnx")
    target = tmp_path / "lowered.onnx"
    target.write_bytes(BEFORE)
    expect_error(attngraft("rewrite", tmp_path / "model.onnx", "-o", target, "--lower", "softmax"), said, "p:")
    assert target.read_bytes() == BEFORE


def test_plugin_library_of_another_contract(lowered: Path, tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_text("int attngraftContractVersion(void) { return 999; }\n")
    library = tmp_path / "libattngraft.so"
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", source, "-o", library], check=True)
    run = build_over(tmp_path / "new.engine", lowered, ATTNGRAFT_PLUGIN_LIBRARY=str(library))
    expect_error(run, "999", str(library))


def test_no_plugin_library(lowered: Path, tmp_path: Path) -> None:
    library = tmp_path / "nowhere" / "libattngraft.so"
    run = build_over(tmp_path / "new.engine", lowered, ATTNGRAFT_PLUGIN_LIBRARY=str(library))
    expect_error(run, str(library))


def without(module: str) -> str:
    """A prelude in which `module` cannot be imported."""
    return f"sys.modules[{module!r}] = None"


def test_tensorrt_is_not_installed(lowered: Path, tmp_path: Path) -> None:
    run = build_over(tmp_path / "new.engine", lowered, prelude=without("tensorrt_rtx"))
    expect_error(run, "attngraft[rtx]")


def test_cuda_python_is_not_installed(engine: Path) -> None:
    run = attngraft("run", engine, prelude=without("cuda.bindings"))
    expect_error(run, "attngraft[runtime]")


def test_no_gpu(engine: Path) -> None:
    expect_error(attngraft("run", engine), "GPU")


def changed_copy(engine: Path, folder: Path, change: Callable[[bytearray], None]) -> Path:
    """A copy of the engine and its card, the engine's bytes changed."""
    plan = bytearray(engine.read_bytes())
    change(plan)
    copy = folder / engine.name
    copy.write_bytes(plan)
    card = engine.with_name(f"{engine.name}.json")
    copy.with_name(card.name).write_bytes(card.read_bytes())
    return copy


VERSION_OFFSET = 24
"""Where a plan has the major version of the TensorRT that made it."""


def test_engine_of_another_version(engine: Path, tmp_path: Path) -> None:
    def age(plan: bytearray) -> None:
        plan[VERSION_OFFSET + 1] = 0

    expect_error(attngraft("run", changed_copy(engine, tmp_path, age)), "good.engine", "was built by", "1.0.")


def test_truncated_engine(engine: Path, tmp_path: Path) -> None:
    def halve(plan: bytearray) -> None:
        del plan[len(plan) // 2 :]

    expect_error(attngraft("run", changed_copy(engine, tmp_path, halve)), "good.engine", "truncated")


def test_no_engine(tmp_path: Path) -> None:
    path = tmp_path / "model.engine"
    path.write_text("no engine")
    expect_error(attngraft("run", path), "model.engine")


def test_engine_for_another_gpu(engine: Path) -> None:
    prelude = (
        "from attngraft.runtime import preflight\n"
        "from attngraft.engine.device import DeviceFacts\n"
        "preflight.describe_device = lambda device: DeviceFacts('Other GPU', '7.0', 1 << 34)"
    )
    expect_error(attngraft("run", engine, prelude=prelude), "good.engine", "Other GPU", "7.0")


def test_engine_without_its_plugin(engine: Path, tmp_path: Path) -> None:
    library = tmp_path / "libattngraft.so"
    run = attngraft("run", engine, ATTNGRAFT_PLUGIN_LIBRARY=str(library))
    expect_error(run, "good.engine", "plugin library", str(library))

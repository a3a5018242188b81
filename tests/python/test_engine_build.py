"""Engines built by the real TensorRT-RTX, which needs no GPU for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import onnx
import pytest
from onnx import helper

from attngraft import plugin_library as plugin_library_module
from attngraft.contract import EmptyRows, MaskedSoftmax, Role
from attngraft.engine import BuildResult, ShapeRange, backends, build_engine, builder, progress, rtx
from attngraft.engine.backends import load_backend, register_plugins
from attngraft.engine.logger import MessageLog
from attngraft.engine.sidecar import card_path, read_card, read_plan_header
from attngraft.errors import AttngraftError, BuildError, EngineError, MissingDependency, ModelError
from engine_models import HIDDEN, OPSET, attention_model, softmax_model

X_SHAPES = ShapeRange.parse(f"1x1x{HIDDEN}:2x8x{HIDDEN}:4x32x{HIDDEN}")
KEEP_SHAPES = ShapeRange.parse("1x1x1:2x1x8:4x1x32")
KEEP_CONFIG = MaskedSoftmax(operands=(Role.KEEP,), scale=0.25, empty_rows=EmptyRows.UNIFORM)
KEEP_OPERANDS = {Role.KEEP: ("bool", ("batch", 1, "seq"))}
KEEP_PROFILE = {"x": X_SHAPES, Role.KEEP: KEEP_SHAPES}


def save(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    onnx.save(model, folder / name)
    return folder / name


@pytest.fixture
def two_sites(tmp_path: Path) -> Path:
    return save(attention_model(KEEP_CONFIG, KEEP_OPERANDS), tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A model without attngraft operators."""
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], "graph", value[:1], value[1:])
    return save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8), tmp_path)


PLAIN_PROFILE = {"x": ShapeRange.parse("1x4:2x4:8x4")}


def build(model: Path, **options: object) -> BuildResult:
    return build_engine(model, model.with_suffix(".engine"), backend="rtx", **options)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_site_becomes_a_plugin_layer(tmp_path: Path, dtype: str) -> None:
    model = save(attention_model(KEEP_CONFIG, KEEP_OPERANDS, dtype=dtype), tmp_path)
    result = build(model, shapes=KEEP_PROFILE)
    assert result.plugin_layers == 2
    assert result.layers > 2
    assert result.size_bytes == result.engine_path.stat().st_size
    assert result.profiles == (KEEP_PROFILE,)
    assert read_plan_header(result.engine_path).version_text == result.tensorrt_version
    card = read_card(result.engine_path)
    assert card is not None
    assert [(tensor.name, tensor.dtype) for tensor in card.inputs] == [("x", dtype), ("keep", "bool")]
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in card.outputs] == [("y", dtype, (-1, -1, HIDDEN))]


@pytest.mark.parametrize(
    ("config", "operands"),
    [
        (MaskedSoftmax(scale=0.5, causal="bottom_right", window_left=3), {}),
        (MaskedSoftmax(operands=(Role.BIAS, Role.KEEP), softcap=30.0), {
            Role.BIAS: ("float32", ("batch", 1, "keys")), Role.KEEP: ("int64", ("batch", 1, "keys"))}),
        (MaskedSoftmax(operands=(Role.KV_LENGTHS, Role.KV_STARTS)), {
            Role.KV_LENGTHS: ("int32", ("batch",)), Role.KV_STARTS: ("int32", ("batch",))}),
    ],
)  # fmt: skip
def test_all_roles_and_attributes_build(
    tmp_path: Path, config: MaskedSoftmax, operands: dict[str, tuple[str, tuple[int | str, ...]]]
) -> None:
    model = save(softmax_model(config, ("batch", 3, "keys"), operands), tmp_path)
    sizes = {"batch": (1, 2, 4), "keys": (1, 17, 64)}
    corners = {
        name: ShapeRange(*([sizes.get(dim, (dim,) * 3)[corner] for dim in shape] for corner in range(3)))
        for name, shape in {
            "scores": ("batch", 3, "keys"),
            **{role: shape for role, (_, shape) in operands.items()},
        }.items()
    }
    assert build(model, shapes=corners).plugin_layers == 1


def test_the_library_is_embedded_or_listed(two_sites: Path) -> None:
    library = plugin_library_module.plugin_library()
    embedded = build(two_sites, shapes=KEEP_PROFILE)
    assert library.read_bytes() in embedded.engine_path.read_bytes()
    assert read_card(embedded.engine_path).plugin_embedded
    listed = build(two_sites, shapes=KEEP_PROFILE, embed_plugins=False)
    assert listed.size_bytes < embedded.size_bytes - library.stat().st_size / 2
    card = read_card(listed.engine_path)
    assert (card.plugin_library, card.plugin_embedded, card.plugin_layers) == (library.name, False, 2)


def test_weights_in_another_file(tmp_path: Path) -> None:
    model = attention_model(KEEP_CONFIG, KEEP_OPERANDS)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    elsewhere = tmp_path / "out"
    elsewhere.mkdir()
    weights = path.with_name("weights.bin").stat().st_size
    assert weights >= 2 * 4 * HIDDEN * HIDDEN
    result = build_engine(path, elsewhere / "model.engine", backend="rtx", shapes=KEEP_PROFILE, embed_plugins=False)
    assert result.plugin_layers == 2
    assert result.size_bytes > weights


def test_a_model_without_plugins_needs_no_library(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Path:
        raise AssertionError("the plugin library was asked for")

    monkeypatch.setattr(builder, "plugin_library", absent)
    result = build(plain, shapes=PLAIN_PROFILE)
    card = read_card(result.engine_path)
    assert (result.plugin_layers, card.plugin_library, card.plugin_embedded) == (0, None, False)


def test_auto_builds_ahead_of_time_without_a_gpu(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "describe_device", lambda: None)
    assert build_engine(plain, plain.with_suffix(".engine"), shapes=PLAIN_PROFILE).backend == "rtx"


def test_log_and_progress(plain: Path) -> None:
    reports: list[str] = []
    log = plain.with_suffix(".log")
    build(plain, shapes=PLAIN_PROFILE, progress=reports.append, log_path=log)
    assert any(line.startswith("parsing ") for line in reports)
    assert any(line.startswith("building ") for line in reports)
    assert reports[-1].startswith("writing ")
    assert "[VERBOSE]" in log.read_text()


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError])
def test_an_exception_in_a_report_stops_the_build(
    two_sites: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    monkeypatch.setattr(progress, "REPORT_INTERVAL_S", 0.0)

    def report(line: str) -> None:
        if line.startswith("  "):  # from inside TensorRT
            raise error

    with pytest.raises(error):
        build(two_sites, shapes=KEEP_PROFILE, progress=report)
    assert sorted(two_sites.parent.iterdir()) == [two_sites]


def unparsable(folder: Path) -> Path:
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    node = helper.make_node("NoSuchOperator", ["x"], ["y"], name="odd_one", domain="elsewhere")
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("elsewhere", 1)]
    model = helper.make_model(helper.make_graph([node], "graph", values[:1], values[1:]), opset_imports=opsets)
    model.ir_version = 8
    return save(model, folder, "odd.onnx")


def illegal_attribute(folder: Path) -> Path:
    model = softmax_model(MaskedSoftmax(), (1, 3, 5))
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "causal":
            attribute.s = b"diagonal"
    return save(model, folder, "illegal.onnx")


def contradicting_masks(folder: Path) -> Path:
    config = MaskedSoftmax(operands=(Role.KEEP,))
    return save(softmax_model(config, (2, 3, 5), {Role.KEEP: ("bool", (2, 1, 4))}), folder, "masks.onnx")


@pytest.mark.parametrize(
    ("make", "reason"),
    [(unparsable, "odd_one"), (illegal_attribute, "diagonal"), (contradicting_masks, "does not broadcast")],
)
def test_a_failed_build_leaves_what_was_there(tmp_path: Path, make: Callable[[Path], Path], reason: str) -> None:
    model = make(tmp_path)
    engine = tmp_path / "kept.engine"
    engine.write_bytes(b"the old engine")
    card_path(engine).write_text("the old card")
    with pytest.raises(BuildError, match=reason) as raised:
        build_engine(model, engine, backend="rtx")
    assert "\n" not in str(raised.value)
    assert engine.read_bytes() == b"the old engine"
    assert card_path(engine).read_text() == "the old card"
    assert {path.name for path in tmp_path.iterdir()} == {model.name, engine.name, card_path(engine).name}


def test_an_input_that_is_a_shape(tmp_path: Path) -> None:
    kinds = [("x", onnx.TensorProto.FLOAT, ["n", 4]), ("shape", onnx.TensorProto.INT64, [2])]
    inputs = [helper.make_tensor_value_info(*kind) for kind in kinds]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["a", "b"])
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "shape"], ["y"])], "graph", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    with pytest.raises(BuildError, match="input 'shape': its values decide shapes"):
        build(save(model, tmp_path), shapes=PLAIN_PROFILE)


def test_bad_targets(plain: Path) -> None:
    with pytest.raises(BuildError, match="does not exist"):
        build_engine(plain, plain.parent / "nowhere" / "model.engine", backend="rtx", shapes=PLAIN_PROFILE)
    with pytest.raises(BuildError, match="is the model itself"):
        build_engine(plain, plain, backend="rtx", shapes=PLAIN_PROFILE)
    with pytest.raises(BuildError, match="is a folder"):
        build_engine(plain, plain.parent, backend="rtx", shapes=PLAIN_PROFILE)
    with pytest.raises(BuildError, match="log file"):
        build(plain, shapes=PLAIN_PROFILE, log_path=plain.parent / "nowhere" / "log")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"backend": "tpu"}, "not one of auto, tensorrt, rtx"),
        ({"backend": "rtx", "timing_cache": "cache"}, "timing cache"),
        ({"backend": "rtx", "shapes": {}}, "dynamic dimensions"),
        ({"backend": "rtx", "shapes": {"image": ShapeRange.fixed((1,))}}, "no such input"),
    ],
)
def test_bad_requests(plain: Path, options: dict[str, object], reason: str) -> None:
    arguments = {"shapes": PLAIN_PROFILE, **options}
    with pytest.raises(BuildError, match=reason):
        build_engine(plain, plain.with_suffix(".engine"), **arguments)
    assert not plain.with_suffix(".engine").exists()


def test_a_model_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("not a model")
    with pytest.raises(ModelError):
        build(tmp_path / "model.onnx")


def test_a_missing_plugin_library(two_sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGRAFT_PLUGIN_LIBRARY", str(two_sites.parent / "absent.so"))
    with pytest.raises(AttngraftError, match="absent.so") as raised:
        build(two_sites, shapes=KEEP_PROFILE)
    assert "\n" not in str(raised.value)


def test_the_plugins_are_registered_once(two_sites: Path) -> None:
    log = two_sites.with_suffix(".log")
    for _ in range(3):
        assert build(two_sites, shapes=KEEP_PROFILE, log_path=log).plugin_layers == 2
        assert "loadLibrary" not in log.read_text()


class RefusingRegistry:
    """A plugin registry to which no library is good enough."""

    all_creators = ()

    def load_library(self, path: str) -> None:
        return None

    def get_creator(self, name: str, version: str, namespace: str) -> None:
        return None


def test_a_library_that_tensorrt_refuses() -> None:
    with pytest.raises(EngineError, match="libother.so: TensorRT cannot load the plugin library") as raised:
        register_plugins(RefusingRegistry(), Path("libother.so"))
    assert "\n" not in str(raised.value)


def test_a_missing_shim_is_an_error_and_no_abort(two_sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtx, "SHIM", "libabsent.so")
    with pytest.raises(EngineError, match="libabsent.so"):
        build(two_sites, shapes=KEEP_PROFILE)


BLOCKED = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
from attngraft.engine import build_engine
from attngraft.errors import MissingDependency
try:
    build_engine({model!r}, {engine!r}, backend={backend!r})
except MissingDependency as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("backend", "extra"), [("tensorrt", "attngraft[tensorrt]"), ("rtx", "attngraft[rtx]"), ("auto", "attngraft[rtx]")]
)
def test_a_missing_tensorrt_names_the_extra(tmp_path: Path, backend: str, extra: str) -> None:
    model = save(softmax_model(MaskedSoftmax(), (1, 3, 5)), tmp_path)
    program = BLOCKED.format(
        blocked=["tensorrt", "tensorrt_rtx"], model=str(model), engine=str(tmp_path / "m.engine"), backend=backend
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert extra in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_an_old_tensorrt_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ModuleType("tensorrt")
    old.__version__ = "8.6.1"
    monkeypatch.setitem(sys.modules, "tensorrt", old)
    with pytest.raises(MissingDependency, match="8.6.1 is older than 10.6"):
        load_backend("tensorrt")


def test_a_ctrl_c_while_tensorrt_logs_stops_the_build(two_sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised in there, it would be lost in TensorRT's C++."""
    add, seen = MessageLog.add, []

    def interrupt(self: MessageLog, severity: str, message: str) -> None:
        add(self, severity, message)
        if not seen and "Graph" in message:
            seen.append(message)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(MessageLog, "add", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(two_sites, shapes=KEEP_PROFILE)
    assert seen
    assert sorted(two_sites.parent.iterdir()) == [two_sites]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_of_the_caller_stay(two_sites: Path) -> None:
    def own(*_: object) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGINT, own)
    try:
        handlers = []
        build(two_sites, shapes=KEEP_PROFILE, progress=lambda line: handlers.append(signal.getsignal(signal.SIGINT)))
        assert set(handlers) == {own}
    finally:
        signal.signal(signal.SIGINT, before)

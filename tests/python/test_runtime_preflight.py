"""Engines that cannot run here are refused in one line, before TensorRT sees them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
import tensorrt_rtx

from attngraft.contract import CONTRACT_VERSION, MaskedSoftmax
from attngraft.engine import build_engine
from attngraft.engine.backends import Backend
from attngraft.engine.device import DeviceFacts
from attngraft.engine.sidecar import EngineCard, card_path, read_card
from attngraft.errors import EngineError, MissingDependency
from attngraft.runtime import Session, preflight_engine
from engine_models import softmax_model

H200 = DeviceFacts("NVIDIA H200", "9.0", 1 << 37)
RTX_4090 = DeviceFacts("NVIDIA GeForce RTX 4090", "8.9", 1 << 34)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A real engine with one plugin layer and the library listed, not embedded."""
    onnx.save(softmax_model(MaskedSoftmax(), (1, 3, 5)), tmp_path / "model.onnx")
    result = build_engine(tmp_path / "model.onnx", tmp_path / "model.engine", backend="rtx", embed_plugins=False)
    return result.engine_path


def on(monkeypatch: pytest.MonkeyPatch, device: DeviceFacts | None) -> None:
    monkeypatch.setattr("attngraft.runtime.preflight.describe_device", lambda index: device)


def change_card(engine: Path, **fields: object) -> None:
    card = read_card(engine)
    assert isinstance(card, EngineCard)
    card_path(engine).write_text(replace(card, **fields).to_json())


def the_problem(engine: Path) -> str:
    found = preflight_engine(engine)
    assert len(found.problems) == 1
    assert "\n" not in found.problems[0]
    with pytest.raises(EngineError) as raised:
        found.raise_if_unfit()
    assert str(raised.value) == f"{engine}: {found.problems[0]}"
    return found.problems[0]


def test_a_fitting_engine(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, RTX_4090)
    found = preflight_engine(engine)
    assert found.problems == ()
    assert found.header.version_text == tensorrt_rtx.__version__
    assert found.card is not None and found.card.plugin_layers == 1
    found.raise_if_unfit()


def test_a_truncated_engine(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, None)
    data = engine.read_bytes()
    engine.write_bytes(data[:-100])
    assert f"truncated: {len(data) - 100} of {len(data)} bytes" in the_problem(engine)


def test_a_card_of_another_engine(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, None)
    change_card(engine, size_bytes=7)
    assert "its card says 7" in the_problem(engine)


@pytest.mark.parametrize("version", [(1, 6, 9, 0), (1, 8, 0, 0), (2, 7, 1, 0)])
def test_another_version(engine: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...]) -> None:
    on(monkeypatch, None)
    data = bytearray(engine.read_bytes())
    data[24:28] = bytes(version)
    engine.write_bytes(data)
    card_path(engine).unlink()
    problem = the_problem(engine)
    assert "was built by TensorRT-RTX " + ".".join(map(str, version)) in problem
    assert tensorrt_rtx.__version__ in problem


def test_another_build_number_is_no_other_version(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, None)
    data = bytearray(engine.read_bytes())
    data[27] ^= 1
    engine.write_bytes(data)
    assert preflight_engine(engine).problems == ()


def test_a_gpu_that_rtx_does_not_serve(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, H200)
    assert "TensorRT-RTX does not serve NVIDIA H200 (compute capability 9.0)" in the_problem(engine)


def test_an_engine_for_another_gpu(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(engine.read_bytes())
    data[:4], data[24:28] = b"ftrt", bytes((10, 6, 0, 26))
    engine.write_bytes(data)
    change_card(engine, backend="tensorrt", gpu="NVIDIA A100", compute_capability="8.0")
    on(monkeypatch, H200)
    # What stands for TensorRT here only has to have a version.
    stand_in = Backend("tensorrt", "TensorRT", type("", (), {"__version__": "10.6.0"}))
    monkeypatch.setattr("attngraft.runtime.preflight.load_backend", lambda name: stand_in)
    problem = the_problem(engine)
    assert "built on NVIDIA A100 (compute capability 8.0)" in problem
    assert "NVIDIA H200 (compute capability 9.0)" in problem


def test_a_backend_that_is_not_installed(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, None)

    def absent(name: str) -> Backend:
        raise MissingDependency("TensorRT cannot be imported; install it")

    monkeypatch.setattr("attngraft.runtime.preflight.load_backend", absent)
    assert "needs 1.7.1.116 of a package that is not here" in the_problem(engine)


def test_the_listed_library_is_missing(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, None)
    monkeypatch.setenv("ATTNGRAFT_PLUGIN_LIBRARY", str(engine.parent / "absent.so"))
    assert "needs the plugin library" in the_problem(engine)


def test_the_listed_library_has_another_contract(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, None)
    change_card(engine, contract_version=CONTRACT_VERSION + 1)
    assert f"contract version {CONTRACT_VERSION + 1}, but {CONTRACT_VERSION} is installed" in the_problem(engine)


def test_an_embedded_library_brings_its_own_contract(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, None)
    change_card(engine, contract_version=CONTRACT_VERSION + 1, plugin_embedded=True)
    monkeypatch.setenv("ATTNGRAFT_PLUGIN_LIBRARY", str(engine.parent / "absent.so"))
    assert preflight_engine(engine).problems == ()


def no_engine(path: Path) -> None:
    path.write_bytes(b"something else entirely, longer than a header")


def no_file(path: Path) -> None:
    path.unlink()


def bad_card(path: Path) -> None:
    card_path(path).write_text("{")


@pytest.mark.parametrize("damage", [no_engine, no_file, bad_card])
def test_what_is_no_engine_is_one_line(engine: Path, damage: Callable[[Path], None]) -> None:
    damage(engine)
    for attempt in (preflight_engine, Session):
        with pytest.raises(EngineError) as raised:
            attempt(engine)
        assert "\n" not in str(raised.value)
        assert str(engine) in str(raised.value)


def test_a_session_refuses_before_tensorrt_sees_it(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, H200)
    with pytest.raises(EngineError, match="does not serve"):
        Session(engine)


def test_header_layout_is_that_of_a_real_engine(engine: Path) -> None:
    magic, size, *version = struct.unpack("<4s12xQ4B", engine.read_bytes()[:28])
    assert (magic, size) == (b"vtrt", engine.stat().st_size)
    assert ".".join(map(str, version)) == tensorrt_rtx.__version__


@pytest.fixture
def tensorrt_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The header of a TensorRT 10.6.0 engine that was built on an H200, and a card to be changed."""
    path = tmp_path / "fake.engine"
    path.write_bytes(struct.pack("<4s12xQ4B", b"ftrt", 28, 10, 6, 0, 26))
    card = EngineCard(
        "tensorrt", "10.6.0", 28, "NVIDIA H200", "9.0", None, False, None, 0, 9, "model.onnx", "", (), (), ({},)
    )
    card_path(path).write_text(card.to_json())
    on(monkeypatch, H200)
    return path


def install(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    module = SimpleNamespace(__version__=version)
    monkeypatch.setattr(
        "attngraft.runtime.preflight.load_backend", lambda name: Backend("tensorrt", "TensorRT", module)
    )


@pytest.mark.parametrize(
    ("version", "fits"), [("10.6.0", True), ("10.9.0.34", True), ("11.0.0", True), ("10.5.0", False)]
)
def test_version_compatible_engines_run_in_later_tensorrts(
    tensorrt_engine: Path, monkeypatch: pytest.MonkeyPatch, version: str, fits: bool
) -> None:
    install(monkeypatch, version)
    if version != "10.6.0":
        assert f"but {version} is installed" in the_problem(tensorrt_engine)
    change_card(tensorrt_engine, flags=("version_compatible",))
    if fits:
        assert preflight_engine(tensorrt_engine).problems == ()
    else:
        assert "was built by TensorRT 10.6.0.26 for it and later ones, but 10.5.0" in the_problem(tensorrt_engine)


@pytest.mark.parametrize(("capability", "fits"), [("8.0", True), ("8.9", True), ("10.0", True), ("7.5", False)])
def test_hardware_compatible_engines_run_on_other_gpus(
    tensorrt_engine: Path, monkeypatch: pytest.MonkeyPatch, capability: str, fits: bool
) -> None:
    install(monkeypatch, "10.6.0")
    on(monkeypatch, DeviceFacts("another GPU", capability, 1 << 34))
    assert f"this GPU is another GPU (compute capability {capability})" in the_problem(tensorrt_engine)
    change_card(tensorrt_engine, flags=("hardware_compatible",))
    if fits:
        assert preflight_engine(tensorrt_engine).problems == ()
    else:
        assert "for GPUs of compute capability 8.0 and later" in the_problem(tensorrt_engine)


def test_cards_say_whether_code_is_inside(tensorrt_engine: Path) -> None:
    card = read_card(tensorrt_engine)
    assert not card.carries_code
    assert replace(card, flags=("version_compatible",)).carries_code
    assert replace(card, plugin_embedded=True).carries_code

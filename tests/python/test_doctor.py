"""The doctor's findings, on this machine and on broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngraft import doctor
from attngraft.doctor import Check, diagnose
from attngraft.engine.device import DeviceFacts
from attngraft.engine.sidecar import PlanHeader
from attngraft.errors import MissingDependency
from attngraft.runtime.preflight import Preflight
from test_engine_sidecar import CARD


def by_name(checks: list[Check]) -> dict[str, Check]:
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


def test_this_machine() -> None:
    checks = by_name(diagnose())
    for required in ("Python", "onnx", "onnxruntime", "plugin library", "TensorRT-RTX"):
        assert checks[required].ok is True, checks[required]
    assert "contract version" in checks["plugin library"].detail
    assert all(check.ok or check.remedy for check in checks.values())
    assert not any("\n" in check.detail + check.remedy for check in checks.values())


def test_a_missing_gpu_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "describe_device", lambda index: None)
    assert by_name(diagnose())["GPU"].ok is None


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "describe_device", lambda index: DeviceFacts("NVIDIA H200", "9.0", 140 << 30))
    monkeypatch.setattr(doctor, "driver_version", lambda: "13.0")
    check = by_name(diagnose())["GPU"]
    assert check.ok is True
    assert check.detail == "NVIDIA H200, compute capability 9.0, 140 GiB, driver for CUDA 13.0"


def test_no_tensorrt_at_all_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise MissingDependency(f"{name} cannot be imported; install it with: pip install {name}")

    monkeypatch.setattr(doctor, "load_backend", absent)
    checks = by_name(diagnose())
    assert checks["TensorRT"].ok is None
    assert checks["TensorRT"].remedy == "install it with: pip install tensorrt"
    assert checks["engines"].ok is False


def test_a_missing_plugin_library_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTNGRAFT_PLUGIN_LIBRARY", str(tmp_path / "absent.so"))
    check = by_name(diagnose())["plugin library"]
    assert check.ok is False
    assert check.remedy


def test_a_package_that_does_not_import_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    check = by_name(diagnose())["onnxruntime"]
    assert check.ok is False
    assert check.remedy == "pip install onnxruntime"


def test_an_engine_that_is_none(tmp_path: Path) -> None:
    check = diagnose(tmp_path / "model.engine")[-1]
    assert (check.name, check.ok) == ("engine model.engine", False)
    assert "no such file" in check.detail
    assert check.remedy


def test_an_engine_with_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tmp_path / "model.engine"
    header = PlanHeader("tensorrt", (10, 6, 0, 26), 32)
    monkeypatch.setattr(doctor, "preflight_engine", lambda path, device: Preflight(engine, header, CARD, ()))
    check = diagnose(engine)[-1]
    assert check.ok is True
    assert check.detail == (
        "tensorrt 10.6.0.26, 2 attngraft layers, from model.onnx, sites: 1 native and 1 keep, 2 profiles, refit, "
        "worst difference 0.0015, tolerance 0.01 (engine against ONNX Runtime)"
    )
    monkeypatch.setattr(doctor, "preflight_engine", lambda path, device: Preflight(engine, header, None, ()))
    assert diagnose(engine)[-1].detail == "tensorrt 10.6.0.26"

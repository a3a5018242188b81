"""Plain folders: what is in them, that they appear whole or not at all, and their check."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from bundle_cases import CARD, FIXED, SIZE, files_below, write_engine

from attngraft.bundle import check_bundle, write_bundle
from attngraft.contract import MaskedSoftmax
from attngraft.engine import ShapeRange, build_engine
from attngraft.engine.sidecar import card_path, read_card
from attngraft.errors import BuildError, EngineError
from attngraft.plugin_library import plugin_library
from engine_models import softmax_model


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with the library inside the engine."""
    return write_bundle(write_engine(tmp_path), tmp_path / "bundle", "directory").folder


def test_a_real_engine_with_its_library_beside_it(tmp_path: Path) -> None:
    onnx.save(softmax_model(MaskedSoftmax(), ("batch", 3, "keys")), tmp_path / "model.onnx")
    engine = build_engine(
        tmp_path / "model.onnx",
        tmp_path / "softmax.engine",
        backend="rtx",
        shapes={"scores": ShapeRange.parse("1x3x8:2x3x16:4x3x64")},
        embed_plugins=False,
    ).engine_path
    result = write_bundle(engine, tmp_path / "bundle", "directory")
    found = files_below(result.folder)
    assert list(found) == [
        "README.txt",
        "graphs.json",
        "libattngraft.so",
        "manifest.json",
        "model.engine",
        "model.engine.json",
        "run.py",
    ]
    assert found["model.engine"].read_bytes() == engine.read_bytes()
    assert read_card(found["model.engine"]) == read_card(engine)
    assert found["libattngraft.so"].read_bytes() == plugin_library().read_bytes()
    assert os.access(found["run.py"], os.X_OK)
    assert json.loads(found["graphs.json"].read_text())["graphs"] == [
        {"profile": 0, "corner": "opt", "shapes": {"scores": [2, 3, 16]}},
        {"profile": 0, "corner": "max", "shapes": {"scores": [4, 3, 64]}},
    ]
    manifest = check_bundle(result.folder)
    assert (manifest.backend, manifest.engine, manifest.library) == ("rtx", "model.engine", "libattngraft.so")
    assert set(manifest.files) == set(found) - {"manifest.json"}
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_library_inside_the_engine_is_not_shipped_again(bundle: Path) -> None:
    assert "libattngraft.so" not in files_below(bundle)
    assert check_bundle(bundle).library is None
    assert "inside the engine" in (bundle / "README.txt").read_text()


def test_one_shape_is_one_graph(tmp_path: Path) -> None:
    folder = write_bundle(write_engine(tmp_path, FIXED), tmp_path / "bundle", "directory").folder
    assert json.loads((folder / "graphs.json").read_text()) == {
        "graphs": [{"profile": 0, "corner": "opt", "shapes": {"x": [2, 3, 16]}}]
    }


def test_profiles_are_those_of_the_card() -> None:
    (profile,) = FIXED.profiles
    assert profile == {"x": ShapeRange.parse("2x3x16")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda engine: engine.unlink(), "no such file"),
        (lambda engine: engine.write_bytes(b"ONNX" * 100), "is not a TensorRT engine"),
        (lambda engine: card_path(engine).write_text("{}"), "is not a card of this attngraft version"),
        (lambda engine: os.truncate(engine, SIZE - 1), f"is truncated: {SIZE - 1} of {SIZE} bytes"),
        (lambda engine: os.truncate(engine, SIZE + 1), f"has {SIZE + 1} bytes of tensorrt, but its card says {SIZE}"),
        (
            lambda engine: card_path(engine).write_text(replace(CARD, backend="rtx").to_json()),
            f"has {SIZE} bytes of tensorrt, but its card says {SIZE} of rtx",
        ),
        (
            lambda engine: card_path(engine).write_text(
                replace(CARD, plugin_embedded=False, contract_version=77).to_json()
            ),
            "needs a plugin library of contract version 77",
        ),
    ],
)
def test_engines_that_cannot_be_bundled(tmp_path: Path, change: Callable[[Path], object], message: str) -> None:
    engine = write_engine(tmp_path)
    change(engine)
    with pytest.raises(EngineError) as raised:
        write_bundle(engine, tmp_path / "bundle", "directory")
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "bundle").exists()


def test_options_of_triton_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="--instances: is for --format triton"):
        write_bundle(write_engine(tmp_path), tmp_path / "bundle", "directory", instances=1)
    with pytest.raises(EngineError, match="bundle format 'zip': not one of directory, triton"):
        write_bundle(write_engine(tmp_path), tmp_path / "bundle", "zip")


def test_nothing_is_overwritten_without_force(tmp_path: Path, bundle: Path) -> None:
    before = {name: path.read_bytes() for name, path in files_below(bundle).items()}
    engine = write_engine(tmp_path, FIXED)
    with pytest.raises(BuildError, match="exists; give another path, or --force to replace a bundle"):
        write_bundle(engine, bundle, "directory")
    assert {name: path.read_bytes() for name, path in files_below(bundle).items()} == before
    (bundle / "left_over").write_text("of the former bundle")
    write_bundle(engine, bundle, "directory", force=True)
    assert read_card(bundle / "model.engine") == FIXED
    assert set(files_below(bundle)) == set(before)
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_no_bundle_is_never_replaced(tmp_path: Path, bundle: Path, kind: str) -> None:
    target = tmp_path / "mine"
    if kind == "folder":
        target.mkdir()
        (target / "thesis.txt").write_text("years of work")
    elif kind == "file":
        target.write_text("years of work")
    else:
        target.symlink_to(bundle)
    with pytest.raises(BuildError, match="exists and is no bundle, so it is not replaced"):
        write_bundle(tmp_path / "model.engine", target, "directory", force=True)
    assert target.is_symlink() == (kind == "link")
    assert kind != "folder" or (target / "thesis.txt").read_text() == "years of work"
    check_bundle(bundle)


@pytest.mark.parametrize("force", [False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool) -> None:
    engine, target = write_engine(tmp_path), tmp_path / "bundle"
    if force:
        write_bundle(engine, target, "directory")
    before = {name: path.read_bytes() for name, path in files_below(tmp_path).items()}

    def fail(source: Path, copy: Path) -> None:
        copy.write_bytes(b"half of")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", fail)
    with pytest.raises(BuildError, match=r"bundle: cannot be written \(No space left on device\)"):
        write_bundle(engine, target, "directory", force=force)
    assert {name: path.read_bytes() for name, path in files_below(tmp_path).items()} == before
    assert target.exists() == force


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(message: str) -> None:
        if "run.py" in message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_bundle(write_engine(tmp_path), tmp_path / "bundle", "directory", progress=interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.engine", "model.engine.json"]


def test_the_former_bundle_comes_back_when_the_new_one_cannot(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def fail_for_the_new(self: Path, target: Path) -> Path:
        if self.name.endswith(".tmp"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_the_new)
    with pytest.raises(BuildError, match="Input/output error"):
        write_bundle(write_engine(tmp_path, FIXED), bundle, "directory", force=True)
    check_bundle(bundle)
    assert read_card(bundle / "model.engine") == CARD
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    engine = write_engine(tmp_path)
    with pytest.raises(BuildError, match="does not exist; create it first"):
        write_bundle(engine, tmp_path / "nowhere" / "bundle", "directory")


def corrupt(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: corrupt(folder / "model.engine"),
            "model.engine: is not the file that the bundle was written with",
        ),
        (lambda folder: corrupt(folder / "README.txt"), "README.txt: is not the file"),
        (lambda folder: os.truncate(folder / "model.engine", 10), f"has 10 bytes, but was written with {SIZE}"),
        (lambda folder: (folder / "run.py").unlink(), "run.py: is missing from the bundle"),
        (lambda folder: (folder / "manifest.json").unlink(), "is no bundle, it has no manifest.json"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "is not a manifest of this attngraft version"),
        (lambda folder: shutil.rmtree(folder), "is no bundle, it has no manifest.json"),
    ],
)
def test_check_finds(bundle: Path, change: Callable[[Path], object], message: str) -> None:
    change(bundle)
    with pytest.raises(EngineError) as raised:
        check_bundle(bundle)
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("path", ["../model.engine", "/etc/hostname", "a/../../model.engine", ""])
def test_a_manifest_does_not_lead_out_of_its_folder(bundle: Path, path: str) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"][path] = manifest["files"].pop("model.engine")
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(EngineError, match="is not a manifest"):
        check_bundle(bundle)


def test_files_beside_the_bundles_own_are_let_be(bundle: Path) -> None:
    (bundle / "notes.txt").write_text("mine")
    assert "notes.txt" not in check_bundle(bundle).files

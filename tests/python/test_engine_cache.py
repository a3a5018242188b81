"""The cache of engines: hits, keys, damage, and several processes at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pick_support import recipe_of, save_block
from test_engine_sidecar import CARD

from attngraft.engine import ShapeRange
from attngraft.engine.cache import EngineCache, cache_key
from attngraft.engine.sidecar import card_path, read_card
from attngraft.errors import BuildError
from attngraft.pick import cached as cached_module
from attngraft.pick.cached import recipe_facts
from native_models import HIDDEN


def write_engine(path: Path, data: bytes = b"an engine") -> Path:
    path.write_bytes(data)
    card_path(path).write_text(CARD.to_json())
    return path


def test_a_hit_is_a_copy_with_its_card_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    cache = EngineCache(tmp_path / "cache", said.append)
    key, target = cache_key({"model": "a"}), tmp_path / "out.engine"
    assert cache.fetch(key, target) is None
    cache.store(key, write_engine(tmp_path / "built.engine"), {"picked": "native"})
    found = cache.fetch(key, target)
    assert (found.card, found.found) == (CARD, {"picked": "native"})
    assert target.read_bytes() == b"an engine"
    assert read_card(target) == CARD
    assert "is a copy from" in said[-1]
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [key]


def cut(entry: Path) -> None:
    (entry / "engine").write_bytes(b"an eng")


def flip(entry: Path) -> None:
    (entry / "engine").write_bytes(b"an Engine")


def lose_card(entry: Path) -> None:
    (entry / "engine.json").unlink()


def lose_digests(entry: Path) -> None:
    (entry / "digests.json").write_text("{")


@pytest.mark.parametrize("damage", [cut, flip, lose_card, lose_digests])
def test_a_damaged_entry_is_absent_and_replaced(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    said: list[str] = []
    cache, key = EngineCache(tmp_path / "cache", said.append), "key"
    cache.store(key, write_engine(tmp_path / "built.engine"))
    damage(tmp_path / "cache" / key)
    assert cache.fetch(key, tmp_path / "out.engine") is None
    assert "is damaged" in said[-1]
    assert not (tmp_path / "out.engine").exists()
    cache.store(key, tmp_path / "built.engine")
    assert cache.fetch(key, tmp_path / "out.engine").card == CARD
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [key]


def test_what_cannot_be_kept_is_said_and_no_error(tmp_path: Path) -> None:
    said: list[str] = []
    cache = EngineCache(tmp_path / "cache", said.append)
    cache.store("key", tmp_path / "absent.engine")
    assert "is not kept there" in said[-1]
    assert list((tmp_path / "cache").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot be made"):
        EngineCache(tmp_path / "file" / "cache")


def store_and_fetch(folder: Path, number: int) -> int:
    """Good copies out of several rounds in which all processes write and read one entry."""
    cache, good = EngineCache(folder / "cache"), 0
    built = write_engine(folder / f"built{number}.engine", b"an engine" * 100_000)
    for _ in range(20):
        cache.store("key", built)
        target = folder / f"out{number}.engine"
        good += cache.fetch("key", target) is not None and target.read_bytes() == built.read_bytes()
    return good


def test_processes_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        counts = pool.starmap(store_and_fetch, [(tmp_path, number) for number in range(3)])
    assert counts == [20, 20, 20]
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["key"]


def test_everything_that_decides_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(save_block(tmp_path))
    other_shapes = ({**recipe.profiles[0], "x": ShapeRange.parse(f"1x1x{HIDDEN}:2x7x{HIDDEN}:2x8x{HIDDEN}")},)
    module = type("Module", (), {"__version__": "1.8.0"})
    others = [
        replace(recipe, digest="other weights"),
        replace(recipe, backend=replace(recipe.backend, name="tensorrt")),
        replace(recipe, backend=replace(recipe.backend, module=module)),
        replace(recipe, profiles=other_shapes),
        replace(recipe, profiles=recipe.profiles * 2),
        replace(recipe, embed_plugins=False),
        replace(recipe, flags=("refit",)),
        replace(recipe, verify=False),
        replace(recipe, tf32=False),
        replace(recipe, optimization_level=1),
        replace(recipe, source=tmp_path / "another_name.onnx"),
    ]
    keys = [cache_key(recipe_facts(one, "auto")) for one in (recipe, *others)]
    keys.append(cache_key(recipe_facts(recipe, "pick fastest")))
    with monkeypatch.context() as patch:
        patch.setattr(cached_module, "_library_digest", lambda: "another library")
        keys.append(cache_key(recipe_facts(recipe, "auto")))
    for name, capability in (("NVIDIA H100", "9.0"), ("NVIDIA H200", "9.0"), ("NVIDIA H200", "9.1")):
        device = type("Device", (), {"name": name, "compute_capability": capability})
        monkeypatch.setattr(cached_module, "describe_device", lambda device=device: device)
        keys.append(cache_key(recipe_facts(recipe, "auto")))
    assert len(set(keys)) == len(keys)
    monkeypatch.undo()
    elsewhere = replace(recipe, engine=tmp_path / "elsewhere.engine", timing_cache=tmp_path / "timing")
    assert cache_key(recipe_facts(elsewhere, "auto")) == keys[0]


def test_external_weights_are_in_the_digest(tmp_path: Path) -> None:
    import onnx

    model = onnx.load(save_block(tmp_path))
    path = tmp_path / "external.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = recipe_of(path).digest
    weights = bytearray((tmp_path / "weights.bin").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "weights.bin").write_bytes(weights)
    assert recipe_of(path).digest != before

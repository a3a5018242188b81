"""Registration in real TensorRT registries, by load_library and by dlopen, in either order. No GPU needed."""

from __future__ import annotations

import pytest
from build_support import run_python

from attngraft.plugin_library import plugin_library

TENSORRTS = ("tensorrt_lean", "tensorrt_rtx")

# Steps: I import TensorRT, L registry.load_library, D dlopen, U registry.deregister_library of the last handle.
REGISTER = """
import ctypes, importlib, json, sys
modules, steps, library = sys.argv[1].split(","), sys.argv[2], sys.argv[3]
registries, handles = [], []
for step in steps:
    if step == "I":
        tensorrts = [importlib.import_module(module) for module in modules]
        registries = [tensorrt.get_plugin_registry() for tensorrt in tensorrts]
    if step == "L":
        handles = [registry.load_library(library) for registry in registries]
    if step == "D":
        ctypes.CDLL(library)
    if step == "U":
        for registry, handle in zip(registries, handles):
            registry.deregister_library(handle)
print(json.dumps({
    "handles": [handle is not None for handle in handles],
    "creators": [
        [(c.name, c.plugin_version, c.plugin_namespace) for c in registry.all_creators].count(
            ("MaskedSoftmax", "1", "attngraft"))
        for registry in registries
    ],
}))
"""


def register(modules: tuple[str, ...], steps: str) -> dict:
    return run_python(REGISTER, ",".join(modules), steps, plugin_library())


@pytest.mark.parametrize("tensorrt", TENSORRTS)
@pytest.mark.parametrize("steps", ["IL", "IDL", "ILD", "DIL", "ILUL", "IDLU"])
def test_every_order_registers_once(tensorrt: str, steps: str) -> None:
    assert register((tensorrt,), steps) == {"handles": [True], "creators": [1]}


@pytest.mark.parametrize("tensorrt", TENSORRTS)
def test_dlopen_alone_registers(tensorrt: str) -> None:
    assert register((tensorrt,), "ID") == {"handles": [], "creators": [1]}


@pytest.mark.parametrize("tensorrt", TENSORRTS)
def test_deregistering_removes_the_creator(tensorrt: str) -> None:
    assert register((tensorrt,), "ILU") == {"handles": [True], "creators": [0]}


@pytest.mark.parametrize("steps", ["IL", "ID", "IDL", "ILD"])
def test_two_tensorrts_in_one_process(steps: str) -> None:
    registered = register(TENSORRTS, steps)
    assert registered["creators"] == [1, 1]
    assert all(registered["handles"])


CREATE = """
import importlib, json, sys
import numpy as np
tensorrt = importlib.import_module(sys.argv[1])
registry = tensorrt.get_plugin_registry()
registry.load_library(sys.argv[2])
creator = registry.get_creator("MaskedSoftmax", "1", "attngraft")
Type = tensorrt.PluginFieldType
def create(*fields):
    collection = tensorrt.PluginFieldCollection([tensorrt.PluginField(*field) for field in fields])
    return creator.create_plugin("layer", collection, tensorrt.TensorRTPhase.BUILD) is not None
print(json.dumps({
    "fields": sorted(field.name for field in creator.field_names),
    "good": create(
        ("operands", b"bias,kv_lengths", Type.CHAR), ("scale", np.float32([0.125]), Type.FLOAT32),
        ("window_left", np.int32([64]), Type.INT32), ("causal", b"top_left", Type.CHAR)),
    "bad": create(("scale", np.float32([1, 2]), Type.FLOAT32)),
}))
"""


@pytest.mark.parametrize("tensorrt", TENSORRTS)
def test_creates_plugins_from_fields(tensorrt: str) -> None:
    created = run_python(CREATE, tensorrt, plugin_library())
    expected = ["causal", "empty_rows", "operands", "scale", "softcap", "window_left", "window_right"]
    assert created == {"fields": expected, "good": True, "bad": False}

"""Registration in real TensorRT registries, by load_library and by dlopen, in either order. No GPU needed."""

from __future__ import annotations

import pytest
from build_support import run_python

from attngraft.plugin_library import plugin_library

TENSORRTS = ("tensorrt_lean", "tensorrt_rtx")
CREATORS = ["FusedAttention", "MaskedSoftmax"]

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
        sorted(c.name for c in registry.all_creators
               if c.name in ("FusedAttention", "MaskedSoftmax")
               and (c.plugin_version, c.plugin_namespace) == ("1", "attngraft"))
        for registry in registries
    ],
}))
"""


def register(modules: tuple[str, ...], steps: str) -> dict:
    return run_python(REGISTER, ",".join(modules), steps, plugin_library())


@pytest.mark.parametrize("tensorrt", TENSORRTS)
@pytest.mark.parametrize("steps", ["IL", "IDL", "ILD", "DIL", "ILUL", "IDLU"])
def test_every_order_registers_once(tensorrt: str, steps: str) -> None:
    assert register((tensorrt,), steps) == {"handles": [True], "creators": [CREATORS]}


@pytest.mark.parametrize("tensorrt", TENSORRTS)
def test_dlopen_alone_registers(tensorrt: str) -> None:
    assert register((tensorrt,), "ID") == {"handles": [], "creators": [CREATORS]}


@pytest.mark.parametrize("tensorrt", TENSORRTS)
def test_deregistering_removes_the_creators(tensorrt: str) -> None:
    assert register((tensorrt,), "ILU") == {"handles": [True], "creators": [[]]}


@pytest.mark.parametrize("steps", ["IL", "ID", "IDL", "ILD"])
def test_two_tensorrts_in_one_process(steps: str) -> None:
    registered = register(TENSORRTS, steps)
    assert registered["creators"] == [CREATORS, CREATORS]
    assert all(registered["handles"])


CREATE = """
import importlib, json, sys
import numpy as np
tensorrt = importlib.import_module(sys.argv[1])
registry = tensorrt.get_plugin_registry()
registry.load_library(sys.argv[2])
Type = tensorrt.PluginFieldType
def create(operator, *fields):
    collection = tensorrt.PluginFieldCollection([tensorrt.PluginField(*field) for field in fields])
    creator = registry.get_creator(operator, "1", "attngraft")
    return creator.create_plugin("layer", collection, tensorrt.TensorRTPhase.BUILD) is not None
mask = [("operands", b"bias,kv_lengths", Type.CHAR), ("scale", np.float32([0.125]), Type.FLOAT32),
        ("window_left", np.int32([64]), Type.INT32), ("causal", b"top_left", Type.CHAR)]
heads = [("heads", np.int32([12]), Type.INT32), ("kv_heads", np.int32([4]), Type.INT32)]
print(json.dumps({
    "fields": {
        operator: sorted(field.name for field in registry.get_creator(operator, "1", "attngraft").field_names)
        for operator in ("FusedAttention", "MaskedSoftmax")
    },
    "good": [
        create("MaskedSoftmax", *mask),
        create("FusedAttention", *mask, *heads, ("layout", b"bsd", Type.CHAR)),
    ],
    "bad": [
        create("MaskedSoftmax", ("scale", np.float32([1, 2]), Type.FLOAT32)),
        create("FusedAttention", ("layout", b"bsd", Type.CHAR)),
    ],
}))
"""

MASK_FIELDS = ["causal", "empty_rows", "operands", "scale", "softcap", "window_left", "window_right"]


@pytest.mark.parametrize("tensorrt", TENSORRTS)
def test_creates_plugins_from_fields(tensorrt: str) -> None:
    created = run_python(CREATE, tensorrt, plugin_library())
    assert created == {
        "fields": {
            "FusedAttention": sorted([*MASK_FIELDS, "exact", "heads", "kv_heads", "layout"]),
            "MaskedSoftmax": MASK_FIELDS,
        },
        "good": [True, True],
        "bad": [False, False],
    }

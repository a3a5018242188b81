"""The device that tests/cpp emulates on the CPU, and its libraries (CMake option ATTNGRAFT_BUILD_TESTS)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

SHARED_BYTES = 227 * 1024
"""Of a block on compute capability 9.0."""

MESSAGE_BYTES = 500


class Device(ctypes.Structure):
    """Mirrors tests/cpp/emulated_grid.h: bytes of a block's shared memory, warp groups, bulk copies of keys and values,
    of queries, multiprocessors, clusters."""

    _fields_ = [
        ("shared_bytes", ctypes.c_int32),
        ("has_warpgroups", ctypes.c_int32),
        ("has_bulk_copies", ctypes.c_int32),
        ("has_query_copies", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("has_clusters", ctypes.c_int32),
    ]


def library_path(name: str) -> Path:
    """Of `libattngraft_emulated_<name>.so`: where ATTNGRAFT_EMULATED_<NAME> says, else of the build that `make test`
    makes, or of one in `build` itself."""
    build = Path(__file__).parents[2] / "build"
    places = [folder / "lib" / f"libattngraft_emulated_{name}.so" for folder in (build / "dev", build)]
    built = next((place for place in places if place.exists()), places[0])
    return Path(os.environ.get(f"ATTNGRAFT_EMULATED_{name.upper()}") or built)

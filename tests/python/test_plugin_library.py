"""The compiled library: what it exports and needs, and how a wrong one is refused."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from build_support import CXX, project_version, run

from attngraft import contract
from attngraft.errors import EngineError, MissingDependency
from attngraft.plugin_library import LIBRARY_VARIABLE, plugin_library

EXPORTS = {"getCreators", "setLoggerFinder", "attngraftContractVersion", "attngraftVersion"}

# Nothing but the C library, under its names on the platforms that TensorRT supports.
SYSTEM_LIBRARIES = ("libc.so", "ld-linux", "libm.so", "libdl.so", "librt.so", "libpthread.so")


def compiled(folder: Path, source: str) -> Path:
    """A shared library of one line of C."""
    library = folder / "library.so"
    done = run(CXX, "-x", "c", "-shared", "-fPIC", "-o", library, "-", input=source)
    assert done.returncode == 0, done.stderr
    return library


def needed_libraries(library: Path) -> list[str]:
    lines = run("readelf", "--dynamic", "--wide", library).stdout.splitlines()
    return [line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line]


def test_exports_the_entry_points_and_nothing_else() -> None:
    done = run("nm", "--dynamic", "--defined-only", "--format=posix", plugin_library())
    assert {line.split()[0] for line in done.stdout.splitlines()} == EXPORTS


def test_links_neither_tensorrt_nor_torch_nor_cuda() -> None:
    needed = needed_libraries(plugin_library())
    assert needed
    assert all(name.startswith(SYSTEM_LIBRARIES) for name in needed), needed


def test_versions() -> None:
    library = ctypes.CDLL(str(plugin_library()))
    library.attngraftVersion.restype = ctypes.c_char_p
    assert library.attngraftContractVersion() == contract.CONTRACT_VERSION
    assert library.attngraftVersion().decode() == project_version()


def test_the_rtx_shim_leads_to_tensorrt_rtx() -> None:
    shim = plugin_library().with_name("libtensorrt_rtx.so")
    dynamic = run("readelf", "--dynamic", "--wide", shim).stdout
    assert needed_libraries(shim) == ["libtensorrt_rtx.so.1"]
    assert "[libtensorrt_rtx.so]" in dynamic
    assert "PATH" not in dynamic, "a search path could lead to another library of that name"


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "absent.so"))
    with pytest.raises(MissingDependency, match=r"absent\.so does not exist; install attngraft with pip"):
        plugin_library()


def test_a_file_that_is_no_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.so").write_text("no library")
    monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "text.so"))
    with pytest.raises(EngineError, match=r"text\.so cannot be loaded"):
        plugin_library()


def test_another_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIBRARY_VARIABLE, str(compiled(tmp_path, "int unrelated(void) { return 1; }")))
    with pytest.raises(EngineError, match="is no attngraft plugin library"):
        plugin_library()


def test_another_contract_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = contract.CONTRACT_VERSION + 1
    source = f"int attngraftContractVersion(void) {{ return {other}; }}"
    monkeypatch.setenv(LIBRARY_VARIABLE, str(compiled(tmp_path, source)))
    with pytest.raises(EngineError, match=f"built for contract version {other}, this attngraft needs"):
        plugin_library()

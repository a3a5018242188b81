"""The wheel: built as `pip install .` builds it, and used where there is no source tree."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from build_support import REPOSITORY, project_version, run

from attngraft.contract import CONTRACT_VERSION

# All tests of this file share one build, also when the tests are spread over processes.
pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.timeout(1800)]

# One architecture, that with the fewest kernels, and kernels that nobody runs here: minutes less.
DEFINITIONS = {"ATTNGRAFT_CUDA_ARCHITECTURES": "80", "ATTNGRAFT_FAST_COMPILE": "ON"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel out of pip's build isolation: CUDA from pip unless one is installed, the headers' wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    options = [part for name, value in DEFINITIONS.items() for part in ("-C", f"cmake.define.{name}={value}")]
    done = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, REPOSITORY, *options, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("attngraft-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed wheel and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    done = run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", folder, wheel)
    assert done.returncode == 0, done.stderr
    return folder


def in_installed(folder: Path, tmp_path: Path, code: str) -> dict:
    """What `code` prints as JSON, run far from the source tree over the installed wheel."""
    environment = {name: value for name, value in os.environ.items() if name != "ATTNGRAFT_PLUGIN_LIBRARY"}
    environment["PYTHONPATH"] = str(folder)
    done = run(sys.executable, "-c", code, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_holds_the_package_the_library_and_the_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = f"attngraft-{project_version()}.dist-info"
    assert {
        "attngraft/__init__.py",
        "attngraft/contract.py",
        "attngraft/lib/libattngraft.so",
        "attngraft/lib/libtensorrt_rtx.so",
        "attngraft/onnx_export/__init__.py",
        f"{metadata}/licenses/LICENSE",
        f"{metadata}/entry_points.txt",
    } <= names
    top = {name.split("/")[0] for name in names}
    assert top == {"attngraft", metadata}
    suffixes = {Path(name).suffix for name in names if name.startswith("attngraft/")}
    assert suffixes <= {".py", ".so", ".typed", ".json", ".html"}, "sources or build products in the wheel"


def test_serves_every_python(wheel: Path) -> None:
    assert wheel.name.startswith(f"attngraft-{project_version()}-py3-none-")


def test_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = Parser().parsestr(archive.read(f"attngraft-{project_version()}.dist-info/METADATA").decode())
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"tensorrt", "rtx", "runtime", "export", "test", "pycuda"} <= set(metadata.get_all("Provides-Extra"))
    base = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert not any(name in line for line in base for name in ("torch", "tensorrt", "cuda", "nvidia"))


def test_the_library_is_found_and_loads_away_from_the_sources(installed: Path, tmp_path: Path) -> None:
    code = """
import ctypes, json, sys
import attngraft.cli
from attngraft.contract import CONTRACT_VERSION
from attngraft.plugin_library import plugin_library
library = plugin_library()
import tensorrt_lean
registry = tensorrt_lean.get_plugin_registry()
handle = registry.load_library(str(library))
print(json.dumps({
    "package": attngraft.__file__, "library": str(library), "contract": CONTRACT_VERSION, "loaded": handle is not None,
    "creators": [c.name for c in registry.all_creators if c.plugin_namespace == "attngraft"],
}))
"""
    found = in_installed(installed, tmp_path, code)
    assert Path(found["package"]).parent == installed / "attngraft"
    assert Path(found["library"]) == installed / "attngraft" / "lib" / "libattngraft.so"
    assert found["contract"] == CONTRACT_VERSION
    assert found["loaded"] and sorted(found["creators"]) == ["FusedAttention", "MaskedSoftmax"]


def test_importing_the_package_loads_none_of_the_extras(installed: Path, tmp_path: Path) -> None:
    code = """
import json, sys
import attngraft, attngraft.cli
print(json.dumps(sorted({"torch", "tensorrt", "tensorrt_rtx", "cuda", "transformers", "cupy"} & set(sys.modules))))
"""
    assert in_installed(installed, tmp_path, code) == []


def test_the_command_is_installed(installed: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = run(sys.executable, installed / "bin" / "attngraft", "--help", env=environment)
    assert done.returncode == 0, done.stderr
    assert "inspect" in done.stdout and "rewrite" in done.stdout

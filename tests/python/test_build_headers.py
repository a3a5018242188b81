"""One set of sources for every TensorRT: they compile against each version's headers and call each as it wants."""

from __future__ import annotations

from pathlib import Path

import pytest
from build_support import CXX, PLUGIN, REPOSITORY, archived_headers, cuda_include, pinned_headers, run

PINNED = "pinned"
VERSIONS = (PINNED, "11.4", "rtx-1.4", "rtx-1.7")


@pytest.fixture(scope="module", params=VERSIONS)
def headers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the TensorRT headers of one version."""
    folder = tmp_path_factory.mktemp("headers")
    return pinned_headers(folder) if request.param == PINNED else archived_headers(request.param, folder)


def compile_with(headers: Path, *arguments: str | Path) -> None:
    done = run(
        *(CXX, "-std=c++17", "-Wall", "-Wextra", "-Werror", '-DATTNGRAFT_VERSION="test"'),
        *("-I", PLUGIN / "tensorrt", "-I", PLUGIN / "kernels"),
        *("-isystem", headers, "-isystem", cuda_include()),
        *arguments,
    )
    assert done.returncode == 0, done.stderr


def test_the_sources_compile(headers: Path) -> None:
    sources = sorted((PLUGIN / "tensorrt").glob("*.cpp"))
    assert len(sources) > 5
    compile_with(headers, "-fsyntax-only", *sources)


def test_the_virtual_tables_are_those_of_the_headers(headers: Path, tmp_path: Path) -> None:
    probe = tmp_path / "abi_probe"
    # Implementing a registry means implementing its deprecated functions too.
    compile_with(headers, "-Wno-deprecated-declarations", REPOSITORY / "tests" / "cpp" / "abi_probe.cpp", "-o", probe)
    assert run(probe).returncode == 0

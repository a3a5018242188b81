"""What CMake says when something is missing, and what it finds. Nothing is compiled."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from build_support import REPOSITORY, archived_headers, cuda_include, run


@pytest.fixture
def configure(tmp_path: Path):
    """Runs CMake's configure step in a new build folder and returns what it printed and whether it went well."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert cmake is not None

    def configure(*definitions: str, python: str | Path = sys.executable, **environment: str) -> tuple[bool, str]:
        done = run(
            *(cmake, "-S", REPOSITORY, "-B", tmp_path / "build", f"-DPython_EXECUTABLE={python}"),
            *(f"-D{definition}" for definition in definitions),
            env={**os.environ, **environment},
        )
        # CMake wraps its messages.
        return done.returncode == 0, " ".join((done.stdout + done.stderr).split())

    return configure


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    """The root of a TensorRT SDK, as far as the build looks at it."""
    include = tmp_path / "sdk" / "include"
    include.mkdir(parents=True)
    archived_headers("11.4", include)
    return include.parent


def test_says_what_it_uses(configure, headers: Path) -> None:
    succeeded, text = configure(f"TENSORRT_ROOT={headers}", "ATTNGRAFT_CUDA_ARCHITECTURES=80;90")
    assert succeeded, text
    assert "architectures 80;90" in text
    assert f"TensorRT headers 11.4, {headers / 'include'}" in text
    assert "nvcc (" in text


def test_default_architectures_go_from_8_0_to_ptx_of_the_newest(configure, headers: Path) -> None:
    succeeded, text = configure(TENSORRT_ROOT=str(headers))
    assert succeeded, text
    architectures = text.split("architectures ")[1].split()[0].split(";")
    assert {"80-real", "90-real"} <= set(architectures)
    newest = architectures[-2].removesuffix("-real")
    assert architectures[-1] == f"{newest}-virtual"
    assert min(int(architecture.split("-")[0]) for architecture in architectures) == 80


def test_headers_from_pip_where_there_is_no_sdk(configure) -> None:
    succeeded, text = configure()
    assert succeeded, text
    assert "TensorRT headers 10." in text


def test_an_sdk_without_headers_is_named(configure, tmp_path: Path) -> None:
    succeeded, text = configure(f"TENSORRT_ROOT={tmp_path}")
    assert not succeeded
    assert f"TENSORRT_ROOT is {tmp_path}, where no include/NvInferRuntimePlugin.h is" in text


def test_no_headers_at_all_says_what_to_do(configure) -> None:
    succeeded, text = configure(PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert not succeeded
    assert "No TensorRT headers: set TENSORRT_ROOT to a TensorRT SDK" in text


def test_an_old_cuda_is_passed_over_and_what_to_install_is_named(configure, headers: Path, tmp_path: Path) -> None:
    old = tmp_path / "cuda" / "bin" / "nvcc"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n")
    without_packages = tmp_path / "python"
    without_packages.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    for script in (old, without_packages):
        script.chmod(0o755)
    succeeded, text = configure(f"TENSORRT_ROOT={headers}", python=without_packages, CUDA_HOME=str(old.parents[1]))
    assert not succeeded
    assert f"{old} is CUDA 11.8, older than 12.0; passed over" in text
    assert "No CUDA compiler: install CUDA 12.0 or newer" in text and "nvidia-cuda-nvcc==13.0.*" in text


def test_a_cuda_compiler_without_its_runtime_is_named(configure, headers: Path, tmp_path: Path) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.symlink_to(cuda_include().parent / "bin" / "nvcc")
    succeeded, text = configure(f"TENSORRT_ROOT={headers}", CUDACXX=str(nvcc))
    assert not succeeded
    assert f"{nvcc} has no libcudart_static.a or cuda_runtime_api.h beside it" in text

"""The C++ example compiles against each TensorRT's headers, and says in one line what is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tensorrt_lean_libs
from build_support import CXX, REPOSITORY, archived_headers, cuda_include, pinned_headers, run
from bundle_cases import write_engine

from attngraft.bundle import write_bundle

SOURCE = REPOSITORY / "examples" / "cpp" / "replay.cpp"


def compile_example(headers: Path, *arguments: str | Path) -> None:
    flags = ("-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-isystem", headers, "-isystem", cuda_include())
    done = run(CXX, *flags, SOURCE, *arguments)
    assert done.returncode == 0, done.stderr


def test_it_compiles_against_the_headers_of_tensorrt_10(tmp_path: Path) -> None:
    compile_example(pinned_headers(tmp_path), "-fsyntax-only")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, for TensorRT 11, of which the lean runtime is here."""
    folder = tmp_path_factory.mktemp("example")
    program = folder / "attngraft_replay"
    runtime = next(cuda_include().parent.glob("lib*/libcudart_static.a"))
    compile_example(archived_headers("11.4", folder), "-o", program, runtime, "-ldl", "-lrt", "-lpthread")
    return program


def error_of(program: Path, *arguments: str | Path, library: str = "") -> str:
    """What a run without a GPU says."""
    environment = {**os.environ, "TENSORRT_LIBRARY": library or str(lean_library())}
    done = run(program, *arguments, env={**environment, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert done.stdout == ""
    return line.removeprefix("attngraft_replay: error: ")


def lean_library() -> Path:
    (library,) = Path(tensorrt_lean_libs.__file__).parent.glob("libnvinfer_lean.so.*")
    return library


def test_what_is_missing_is_said_in_one_line(example: Path, tmp_path: Path) -> None:
    assert error_of(example, tmp_path) == f"{tmp_path}: is no bundle, it has no model.engine to read"
    bundle = write_bundle(write_engine(tmp_path), tmp_path / "bundle", "directory").folder
    assert error_of(example, bundle, library="libabsent.so").startswith("libabsent.so: cannot open shared object file")
    assert error_of(example, bundle, library="libm.so.6").endswith("undefined symbol: getInferLibVersion")
    # With a driver but no device to be seen it is another of CUDA's reasons.
    assert error_of(example, bundle).startswith("cudaStreamCreateWithFlags: ")

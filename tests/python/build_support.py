"""The repository, the compilers and the headers, for the tests of the build and of the plugin library."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN = REPOSITORY / "plugin"
HEADER_ARCHIVES = REPOSITORY / "tests" / "data" / "tensorrt_headers"
CXX = os.environ.get("CXX", "c++")


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs to the end and captures what it prints; the caller looks at the return code."""
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)


def cuda_include() -> Path:
    """Folder of cuda_runtime_api.h: of CUDA from pip, else of an installed one."""
    from_pip = [folder for entry in sys.path for folder in Path(entry).glob("nvidia/cu*/include")]
    installed = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    return next(folder for folder in from_pip + installed if (folder / "cuda_runtime_api.h").is_file())


def pinned_headers(folder: Path) -> Path:
    """The TensorRT headers that the build takes without an SDK, downloaded as the build does it."""
    pin = REPOSITORY / "cmake" / "tensorrt_headers.txt"
    options = ("--quiet", "--no-deps", "--require-hashes", "--ignore-requires-python")
    pip = run(sys.executable, "-m", "pip", "download", *options, "-r", pin, "-d", folder)
    assert pip.returncode == 0, pip.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if "/include/tensorrt/" in name])
    return folder / "kernel_lens" / "include" / "tensorrt"


def archived_headers(version: str, folder: Path) -> Path:
    """Headers of another TensorRT, out of tests/data."""
    with tarfile.open(HEADER_ARCHIVES / f"{version}.tar.xz") as archive:
        for member in archive.getmembers():
            header = archive.extractfile(member)
            assert header is not None, member.name
            (folder / Path(member.name).name).write_bytes(header.read())
    return folder


def project_version() -> str:
    """The version that pyproject.toml gives."""
    found = re.search(r'^version = "(.*)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found.group(1)


def run_python(code: str, *arguments: str | Path, **environment: str) -> Any:
    """Runs `code` in a fresh interpreter and returns the JSON of the last line that it prints."""
    done = run(sys.executable, "-c", code, *arguments, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])

"""The borders between kernels, TensorRT and PyTorch (docs: the layout), as far as a look at the sources can tell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from build_support import PLUGIN

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)

# What a kernel may include besides its neighbours: CUDA's own headers and the C++ library (names without a dot).
CUDA_HEADERS = re.compile(r"(cuda|cooperative_groups|cub|vector_types|math_constants)[\w/]*\.(h|hpp|cuh)")


def sources(folder: str) -> list[Path]:
    found = [path for path in sorted((PLUGIN / folder).iterdir()) if path.suffix in {".h", ".cuh", ".cpp", ".cu"}]
    assert found
    return found


@pytest.mark.parametrize("source", sources("kernels"), ids=lambda path: path.name)
def test_kernels_know_neither_tensorrt_nor_pytorch(source: Path) -> None:
    neighbours = {path.name for path in sources("kernels")}
    foreign = [
        name
        for name in INCLUDE.findall(source.read_text())
        if name not in neighbours and "." in name and not CUDA_HEADERS.fullmatch(name)
    ]
    assert not foreign


@pytest.mark.parametrize("source", sources("tensorrt"), ids=lambda path: path.name)
def test_the_plugin_launches_no_kernel_itself(source: Path) -> None:
    text = source.read_text()
    assert source.suffix not in {".cu", ".cuh"}
    assert "<<<" not in text and "cudaLaunchKernel" not in text


@pytest.mark.parametrize("source", sources("tensorrt"), ids=lambda path: path.name)
def test_the_plugin_sees_only_the_border_of_the_kernels(source: Path) -> None:
    kernels = {path.name for path in sources("kernels")}
    assert set(INCLUDE.findall(source.read_text())) & kernels <= {"fused_attention.h", "masked_softmax.h", "operands.h"}

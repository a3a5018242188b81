"""The list of sources and flags for torch.utils.cpp_extension is that of the build. tests/gpu compiles it."""

from __future__ import annotations

import re
import sys

import pytest
from build_support import PLUGIN, REPOSITORY

sys.path.append(str(REPOSITORY / "tools"))

from torch_extension import flags, sources  # noqa: E402

HOPPER, AMPERE = (9, 0), (8, 0)


def built_by_cmake() -> set[str]:
    lists = [(PLUGIN / name).read_text() for name in ("CMakeLists.txt", "torch/CMakeLists.txt")]
    return set(re.findall(r"\w+\.(?:cpp|cu)\b", "".join(lists)))


def test_the_sources_are_those_of_the_build() -> None:
    names = {path.name for path in sources(HOPPER)}
    assert names == built_by_cmake() and all(path.is_file() for path in sources(HOPPER))
    others = {path.name for path in sources(AMPERE)}
    assert names - others == {name for name in names if name.startswith("warpgroup_")} != set()


@pytest.mark.parametrize(("capability", "architecture"), [(HOPPER, "90a"), (AMPERE, "80"), ((12, 0), "120")])
def test_the_flags_are_those_of_the_build(capability: tuple[int, int], architecture: str) -> None:
    for_cpp, for_cuda = flags(capability)
    assert f"-gencode=arch=compute_{architecture},code=sm_{architecture}" in for_cuda
    (target,) = re.findall(r"TORCH_TARGET_VERSION=\w+", (PLUGIN / "torch" / "CMakeLists.txt").read_text())
    for compiler in (for_cpp, for_cuda):
        assert f"-D{target}" in compiler
        assert ("-DATTNGRAFT_WARPGROUPS=1" in compiler) == (capability == HOPPER)
        assert ("-DATTNGRAFT_CLUSTERS=1" in compiler) == (capability >= HOPPER)
    assert "--Ofast-compile=max" in flags(capability, fast=True)[1] and "--Ofast-compile=max" not in for_cuda

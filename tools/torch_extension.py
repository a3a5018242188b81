"""libattngraft_torch.so from source by torch.utils.cpp_extension, without CMake and for one kind of GPU.

    python tools/torch_extension.py            prints the path of the library, for ATTNGRAFT_TORCH_LIBRARY
    torch.ops.load_library(build(...))         from Python, with this folder on the path

Needs a CUDA build of PyTorch 2.10 or newer, nvcc of the same CUDA, a C++ compiler and ninja.
"""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["build", "flags", "sources"]

PLUGIN = Path(__file__).resolve().parents[1] / "plugin"

WARPGROUPS = (9, 0)
"""The compute capability whose warp-group instructions some kernels are made of; nvcc calls it 90a."""

CLUSTERS_SINCE = (9, 0)

PYTORCH_DEFINES = (
    "__CUDA_NO_HALF_OPERATORS__",
    "__CUDA_NO_HALF_CONVERSIONS__",
    "__CUDA_NO_HALF2_OPERATORS__",
    "__CUDA_NO_BFLOAT16_CONVERSIONS__",
)
"""What torch.utils.cpp_extension defines: the kernels use these operators."""


def sources(capability: tuple[int, int]) -> list[Path]:
    """Every file to compile for a compute capability."""
    kernels = [path for path in PLUGIN.glob("kernels/*") if path.suffix in (".cpp", ".cu")]
    if capability != WARPGROUPS:
        kernels = [path for path in kernels if not path.name.startswith("warpgroup_")]
    return sorted(kernels) + sorted(PLUGIN.glob("torch/*.cpp"))


def flags(capability: tuple[int, int], fast: bool = False) -> tuple[list[str], list[str]]:
    """For the C++ compiler, and for nvcc. `fast` compiles in a tenth of the time, for kernels that are slow."""
    common = ["-DTORCH_TARGET_VERSION=0x020a000000000000"]
    name = "{}{}".format(*capability)
    if capability == WARPGROUPS:
        common.append("-DATTNGRAFT_WARPGROUPS=1")
        name += "a"
    if capability >= CLUSTERS_SINCE:
        common.append("-DATTNGRAFT_CLUSTERS=1")
    cuda = [*common, f"-gencode=arch=compute_{name},code=sm_{name}", *(f"-U{word}" for word in PYTORCH_DEFINES)]
    return ["-O3", *common], [*cuda, "--Ofast-compile=max"] if fast else cuda


def build(folder: str | Path, capability: tuple[int, int] | None = None, fast: bool = False) -> Path:
    """Compiles into `folder`, what has changed since last time, loads the library and returns its path.

    capability  of the GPU to compile for; by default that of the current device
    """
    import torch
    from torch.utils import cpp_extension

    capability = capability or torch.cuda.get_device_capability()
    for_cpp, for_cuda = flags(capability, fast)
    Path(folder).mkdir(parents=True, exist_ok=True)
    library = cpp_extension.load(
        "libattngraft_torch",
        [str(path) for path in sources(capability)],
        extra_cflags=for_cpp,
        extra_cuda_cflags=for_cuda,
        extra_include_paths=[str(PLUGIN / "kernels"), str(PLUGIN / "torch")],
        build_directory=str(folder),
        with_cuda=True,
        is_python_module=False,
    )
    return Path(library)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compiles libattngraft_torch.so for the GPU in this machine.")
    parser.add_argument("--folder", default="build/torch_extension", help="where to compile (default: %(default)s)")
    parser.add_argument("--fast", action="store_true", help="compile in a tenth of the time, for slow kernels")
    options = parser.parse_args()
    print(build(Path(options.folder).resolve(), fast=options.fast))


if __name__ == "__main__":
    main()

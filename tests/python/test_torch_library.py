"""libattngraft_torch.so and what attngraft.torch makes of it, each in a process of its own. No GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from build_support import PLUGIN, run, run_python

import attngraft
from attngraft.torch import library

LIBRARY = Path(
    os.environ.get(library.LIBRARY_VARIABLE) or Path(attngraft.__file__).parent / "lib/libattngraft_torch.so"
)

ASK = """
import json, sys, torch
if len(sys.argv) > 1:
    torch.ops.load_library(sys.argv[1])
import attngraft.torch
from attngraft.torch.library import SCHEMAS, kernel_is_missing
q = torch.ones(1, 2, 3, 8)
print(json.dumps({
    "missing": kernel_is_missing(),
    "schemas": {name: str(getattr(torch.ops.attngraft, name).default._schema) for name in SCHEMAS},
    "cuda": [torch._C._dispatch_has_kernel_for_dispatch_key(f"attngraft::{name}", "CUDA") for name in SCHEMAS],
    "compiler": "torch._dynamo" in sys.modules,
    "context": attngraft.torch.fused_attention(q, q, q).sum().item(),
    "probabilities": attngraft.torch.masked_softmax(q).sum().item(),
}))
"""


def test_the_library_loads_without_a_gpu_and_registers_its_kernel() -> None:
    assert LIBRARY.is_file(), f"{LIBRARY} was not built: CMake found no PyTorch beside the build's Python"
    assert library.kernel_is_missing() is None
    for name in library.SCHEMAS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"attngraft::{name}", "CUDA"), name


@pytest.mark.parametrize("with_library", [True, False])
def test_the_operator_is_the_same_with_and_without_the_library(with_library: bool, tmp_path: Path) -> None:
    """Loaded by PyTorch beforehand, or not there at all."""
    package = tmp_path / "attngraft"
    package.mkdir()
    for part in Path(attngraft.__file__).parent.resolve().iterdir():
        if part.name not in ("lib", "__pycache__"):
            (package / part.name).symlink_to(part.resolve())
    (package / "torch").unlink()
    (package / "torch").mkdir()
    for part in Path(library.__file__).parent.glob("*.py"):
        (package / "torch" / part.name).write_bytes(part.read_bytes())
    arguments = [LIBRARY] if with_library else []
    found = run_python(ASK, *arguments, **{library.LIBRARY_VARIABLE: "", "PYTHONPATH": str(tmp_path)})
    assert found["cuda"] == [with_library] * len(library.SCHEMAS)
    assert found["context"] == 48.0 and found["probabilities"] == 6.0
    assert not found["compiler"], "importing attngraft.torch imports PyTorch's compiler, which takes a second"
    assert found["schemas"] == {name: f"attngraft::{name}{schema}" for name, schema in library.SCHEMAS.items()}
    if not with_library:
        assert "libattngraft_torch.so was not built; install attngraft with" in found["missing"]


TRY = """
import json, os, sys, torch
messages = []
for path in sys.argv[1:]:
    os.environ["ATTNGRAFT_TORCH_LIBRARY"] = path
    try:
        import attngraft.torch
    except Exception as error:
        messages.append(f"{type(error).__name__}: {error}")
print(json.dumps(messages))
"""


def test_a_library_that_is_named_must_be_one(tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("no library")
    plugin = os.environ.get("ATTNGRAFT_PLUGIN_LIBRARY") or LIBRARY.with_name("libattngraft.so")
    missing, unreadable, foreign = run_python(TRY, "/nowhere", text, plugin)
    assert missing.startswith("MissingDependency: ATTNGRAFT_TORCH_LIBRARY is /nowhere, where no file is")
    assert unreadable.startswith(f"EngineError: ATTNGRAFT_TORCH_LIBRARY: {text} cannot be loaded")
    assert foreign.startswith("EngineError: ") and "is no attngraft library for PyTorch" in foreign


OLDER = """
import json, torch
library = torch.library.Library("attngraft", "FRAGMENT")
library.define("fused_attention(Tensor q) -> Tensor")
try:
    import attngraft.torch
except Exception as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
"""


def test_a_library_of_another_version_is_told() -> None:
    assert run_python(OLDER) == (
        "EngineError: libattngraft_torch.so was built from another attngraft, its fused_attention is "
        "attngraft::fused_attention(Tensor q) -> Tensor; build it again"
    )


def test_without_pytorch_the_message_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = run(sys.executable, "-c", "import attngraft.torch", env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 1
    assert "MissingDependency: attngraft.torch needs PyTorch" in done.stderr.splitlines()[-1]
    assert "pip install 'torch>=2.6'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("source", sorted((PLUGIN / "torch").glob("*.cpp")), ids=lambda path: path.name)
def test_the_operator_launches_no_kernel_itself_and_uses_the_stable_interface_alone(source: Path) -> None:
    for file in (source, *source.parent.glob("*.h")):
        text = file.read_text()
        assert "<<<" not in text and "cudaLaunchKernel" not in text
        included = [line.split("<")[1] for line in text.splitlines() if line.startswith("#include <torch/")]
        assert all(name.startswith(("torch/csrc/stable/", "torch/headeronly/")) for name in included)

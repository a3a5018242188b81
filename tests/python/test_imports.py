"""The borders: what importing costs, and which part may import which."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import attngraft

PACKAGE = Path(attngraft.__file__).parent
ORDER = ("onnx_graph", "match", "lower", "verify", "rewrite", "engine", "runtime", "pick", "bundle", "cli")
"""Each part may import those before it."""

FREE = ("contract", "errors")
"""Imported by all; they import no other part."""

MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages([str(PACKAGE)], "attngraft.")
    if not name.startswith("attngraft.onnx_export")
)


def part(module: str) -> str:
    """The part of a module: attngraft.match.scale belongs to match."""
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> set[str]:
    """The attngraft modules that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.startswith("attngraft.")}


def sources(of: str) -> list[Path]:
    """The files of a part."""
    file = PACKAGE / f"{of}.py"
    return [file] if file.exists() else sorted((PACKAGE / of).rglob("*.py"))


@pytest.mark.parametrize("name", ORDER)
def test_parts_import_only_what_comes_before(name: str) -> None:
    files = sources(name)
    assert files, f"{name} has no files"
    allowed = {*ORDER[: ORDER.index(name) + 1], *FREE, "plugin_library"}
    if name == "cli":
        allowed |= {"doctor", "report"}
    for file in files:
        # A table of text is no part of the road: everyone may print one.
        wrong = {m for m in imports(file) if part(m) not in allowed and not m.startswith("attngraft.report.table")}
        wrong -= {m for m in wrong if part(m) == "report" and name == "cli"}
        assert not wrong, f"{file.relative_to(PACKAGE)} imports {sorted(wrong)}"


@pytest.mark.parametrize("name", FREE)
def test_contract_and_errors_import_no_part(name: str) -> None:
    (file,) = sources(name)
    assert {part(module) for module in imports(file)} <= set(FREE)


def test_tables_import_nothing() -> None:
    assert not imports(PACKAGE / "report" / "table.py")


def loaded_after(statement: str) -> set[str]:
    """The top-level modules that are loaded in a fresh process after a statement."""
    code = f"{statement}\nimport sys; print(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


HEAVY = {"torch", "tensorrt", "tensorrt_rtx", "tensorrt_lean", "cuda", "transformers"}


def test_importing_the_package_imports_nothing_else() -> None:
    assert not loaded_after("import attngraft") & {*HEAVY, "onnx", "numpy", "onnxruntime"}


@pytest.mark.parametrize(
    "statement",
    [
        "from attngraft import load_model, match_model, rewrite_model, save_model, verify_models",
        "import attngraft.engine",
        "import attngraft.runtime",
        "import attngraft.bundle",
        "import attngraft.pick",
        "import attngraft.doctor",
        "import attngraft.cli",
    ],
)
def test_parts_import_neither_torch_nor_tensorrt_nor_cuda(statement: str) -> None:
    assert not loaded_after(statement) & HEAVY


@pytest.mark.parametrize("name", MODULES)
def test_all_is_right(name: str) -> None:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None)
    if names is None:
        assert not name.endswith("__init__")
        return
    assert len(set(names)) == len(names)
    assert all(hasattr(module, item) for item in names)


def test_public_names() -> None:
    assert all(getattr(attngraft, name) is not None for name in attngraft.__all__)
    assert set(attngraft.__all__) <= set(dir(attngraft))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = attngraft.nothing

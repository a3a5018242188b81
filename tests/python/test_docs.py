"""The documents say what the code does: contract tables, commands, links, the README's example, measured tables."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from attngraft import contract
from attngraft.onnx_export.__main__ import main as export_main

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def table(document: str, first_heading: str) -> dict[str, list[str]]:
    """The cells of the table whose first column has that heading, by the first cell, backticks removed."""
    lines = (ROOT / "docs" / document).read_text().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"| {first_heading} |"))
    rows: dict[str, list[str]] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        rows[first.strip("`")] = others
    return rows


def test_contract_lists_every_attribute_with_its_default() -> None:
    documented = {name: cells[0].strip("`").strip('"') for name, cells in table("contract.md", "attribute").items()}
    assert documented == {name: str(value) for name, value in contract.MaskedSoftmax().attributes().items()}


def test_contract_lists_what_fused_attention_has_beyond_that() -> None:
    documented = {name: cells[0].strip("`") for name, cells in table("contract.md", "own attribute").items()}
    attributes = {**contract.FusedAttention().attributes()}
    shared = contract.MaskedSoftmax().attributes()
    assert documented == {name: str(value) for name, value in attributes.items() if name not in shared}
    words = (*contract.Layout.SEPARATE, *contract.Layout.PACKED)
    assert tuple(table("contract.md", "word of `layout`")) == words


def test_contract_lists_every_role_and_value() -> None:
    assert tuple(table("contract.md", "role")) == contract.Role.ALL
    assert tuple(table("contract.md", "value of `empty_rows`")) == contract.EmptyRows.ALL
    assert tuple(re.findall(r"`(\w+)`", table("contract.md", "attribute")["causal"][1])) == contract.CausalMode.ALL


def test_contract_lists_every_type() -> None:
    keep_types = table("contract.md", "role")["keep"][0]
    assert tuple(re.findall(r"\w*(?:bool|int)\d*", keep_types)) == contract.KEEP_DTYPES
    text = (ROOT / "docs" / "contract.md").read_text()
    assert f"rank {contract.MIN_RANK} to {contract.MAX_RANK}" in text
    assert ", ".join(contract.SCORE_DTYPES[:2]) + f" or {contract.SCORE_DTYPES[2]}" in text
    assert f"version {contract.CONTRACT_VERSION}" in text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_every_documented_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    documented = {
        name for path in DOCUMENTS for name in re.findall(r"^    make ([a-z-]+)", path.read_text(), re.MULTILINE)
    }
    assert documented and documented <= targets


def test_every_option_in_the_command_line_document_exists() -> None:
    commands = [["attngraft.cli", usage.split()[1]] for usage in table("command_line.md", "command")]
    helps = [
        subprocess.run([sys.executable, "-m", *command, "--help"], capture_output=True, text=True, check=True).stdout
        for command in (*commands, ["attngraft.onnx_export"])
    ]
    documented = set(re.findall(r"--[a-z][a-z-]*", (ROOT / "docs" / "command_line.md").read_text()))
    assert documented and {option for option in documented if not any(option in text for text in helps)} == set()


def test_readme_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that needs no GPU: exported as the README says, then its first Python block."""
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text()
    (arguments,) = re.findall(r"python -m attngraft\.onnx_export (.+)", readme)
    assert export_main(arguments.split()) == 0
    example = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0]
    printed = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1].startswith("2 plugin layers, ")
    assert Path("bert.engine").exists()


@pytest.mark.parametrize("module", ["make_tables", "make_plots"])
def test_tables_and_pictures_are_those_of_the_results(module: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{module}", "--check"]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr

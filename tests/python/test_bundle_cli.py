"""The command `bundle`: what it prints, and its errors in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bundle_cases import CARD, write_engine
from cli_support import error_line, run_cli


def test_a_folder_and_its_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "bundle"
    assert run_cli("bundle", write_engine(tmp_path), "--format", "directory", "-o", target) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        f"wrote {target}: directory, 5 files, 0.0 MB",
        "plugin library: inside the engine, which the server must allow; README.txt says how",
    ]
    assert "writing model.engine" in captured.err.splitlines()
    assert run_cli("bundle", "--check", target, "-q") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (f"{target}: 5 files, all as they were written\n", "")
    (target / "graphs.json").write_text("{}")
    assert "graphs.json: has 2 bytes, but was written with" in error_line(capsys, "bundle", "--check", target)


def test_a_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine, target = write_engine(tmp_path, replace(CARD, plugin_embedded=False)), tmp_path / "repository"
    options = ["--name", "bert", "--instances", "2", "--max-batch", "4"]
    assert run_cli("bundle", engine, "--format", "triton", "-o", target, "-q", *options) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines()[1:] == [
        "model bert: max_batch_size 4, the profiles take batches of 1 to 7",
        "plugin library: libattngraft.so, beside the engine",
    ]
    config = (target / "bert" / "config.pbtxt").read_text()
    assert "max_batch_size: 4\n" in config and "count: 2\n" in config


def test_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bundle", write_engine(tmp_path), "--format", "directory", "-o", tmp_path / "bundle"]
    assert run_cli(*command) == 0
    capsys.readouterr()
    assert "bundle: exists; give another path, or --force" in error_line(capsys, *command)
    assert run_cli(*command, "--force") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "bundle: no engine; give its path, or --check DIR"),
        (["model.engine"], "bundle: no format; give --format directory or --format triton"),
        (["model.engine", "--format", "triton"], "bundle: no folder; give it with -o DIR"),
        (["model.engine", "--check", "folder"], "--check takes a bundle and no engine"),
        (["absent.engine", "--format", "triton", "-o", "out"], "absent.engine: no such file"),
        (["model.engine", "--format", "directory", "-o", "out", "--name", "x"], "--name: is for --format triton"),
        (["--check", "model.engine"], "model.engine: is no bundle, it has no manifest.json"),
    ],
)
def test_errors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_engine(tmp_path)
    assert message in error_line(capsys, "bundle", *arguments)
    assert not Path("out").exists()

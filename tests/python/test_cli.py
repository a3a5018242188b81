"""The command line: rewriting and verifying, exit statuses, and that errors are one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chain_models import FORMS
from cli_support import Write, error_line, run_cli

from attngraft import rewrite
from attngraft.cli import main


def test_rewrite_and_verify(written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = written(FORMS["where -1e9"].model()), tmp_path / "out.onnx"
    assert run_cli("rewrite", source, "-o", target, "--lower", "softmax") == 0
    captured = capsys.readouterr()
    assert "1 attention site (1 softmax)" in captured.out
    assert "equal" in captured.out
    assert "verify: running" in captured.err
    assert run_cli("verify", source, target, "--seed", "3", "--shape", "k=2x2x5x4", "--shape", "q=2x2x3x4", "-q") == 0
    captured = capsys.readouterr()
    assert "2x2x5x4" in captured.out
    assert captured.err == ""


def test_rewrite_says_when_nothing_is_gained(
    written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = written(FORMS["mul"].model())
    assert run_cli("rewrite", model, "-o", tmp_path / "out.onnx", "--target", "rtx") == 0
    assert "nothing to gain" in capsys.readouterr().out


def test_verify_fails_on_a_difference(written: Write, capsys: pytest.CaptureFixture[str]) -> None:
    first = written(FORMS["mul"].model(), "first.onnx")
    second = written(FORMS["bare"].model(), "second.onnx")
    assert run_cli("verify", first, second) == 1
    captured = capsys.readouterr()
    assert "DIFFERS" in captured.out
    assert captured.err.splitlines()[-1].startswith("attngraft: error: output 'out' differs by")


def test_rewriting_to_fused_attention(written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(FORMS["mul"].model())
    assert run_cli("rewrite", source, "-o", tmp_path / "out.onnx", "--lower", "attention") == 0
    printed = capsys.readouterr().out
    assert "1 attention site (1 attention)" in printed
    assert "attention in place, layout bhsd" in printed
    assert (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("command", ["inspect", "rewrite", "verify", "build", "run"])
def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    absent = tmp_path / "absent.onnx"
    more = {"rewrite": ("-o", tmp_path / "out"), "build": ("-o", tmp_path / "out"), "verify": (absent,)}.get(
        command, ()
    )
    assert "no such file" in error_line(capsys, command, absent, *more)
    assert not list(tmp_path.iterdir())


def test_bad_model_leaves_the_target_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "source.onnx", tmp_path / "out.onnx"
    source.write_text("no model")
    target.write_text("what was there")
    assert "is not an ONNX file" in error_line(capsys, "rewrite", source, "-o", target)
    assert target.read_text() == "what was there"


def test_target_folder_that_does_not_exist(written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(FORMS["mul"].model())
    assert "does not exist" in error_line(capsys, "rewrite", source, "-o", tmp_path / "absent" / "out.onnx")
    assert "absent" in error_line(capsys, "build", source, "-o", tmp_path / "absent" / "out.engine")


@pytest.mark.parametrize("shape", ["q", "=1x2", "q=1x", "q=axb"])
def test_shape_that_is_not_understood(written: Write, capsys: pytest.CaptureFixture[str], shape: str) -> None:
    source = written(FORMS["mul"].model())
    assert "NAME=1x3x224x224" in error_line(capsys, "verify", source, source, "--shape", shape)


def test_usage_errors_have_their_own_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["rewrite", "model.onnx"])
    assert stopped.value.code == 2
    assert "-o" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("attngraft ")


def test_interruption(
    written: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rewrite, "run_original", interrupt)
    source = written(FORMS["mul"].model())
    assert run_cli("rewrite", source, "-o", tmp_path / "out.onnx", "--lower", "softmax") == 130
    assert capsys.readouterr().err.splitlines()[-1] == "attngraft: interrupted"
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


SLOW_REWRITE = """
import sys, time
from attngraft import cli, rewrite
def slow(*_, **__):
    print("verifying", flush=True)
    time.sleep(60)
rewrite.run_original = slow
sys.exit(cli.main(sys.argv[1:]))
"""


def test_interruption_by_signal(written: Write, tmp_path: Path) -> None:
    source = written(FORMS["mul"].model())
    command = [sys.executable, "-c", SLOW_REWRITE, "rewrite", source, "-o", tmp_path / "out.onnx", "--lower", "softmax"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "verifying\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_a_reader_that_goes_away_is_no_traceback(written: Write) -> None:
    source = written(FORMS["mul"].model())
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "attngraft.cli", "inspect", source, "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr == ""

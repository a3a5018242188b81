"""`attngraft build` as a command: profiles, flags, picking, the cache, and what interruptions and full disks leave."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import error_line, run_cli
from pick_support import SHAPES, Runner, Timer, save_block
from test_engine_build import KEEP_CONFIG, KEEP_OPERANDS, KEEP_PROFILE, attention_model, save

from attngraft.engine.sidecar import card_path, read_card
from attngraft.pick import fastest as fastest_module

BLOCK_SHAPES = [f"--shape={name}={shapes}" for name, shapes in SHAPES.items()]
KEEP_SHAPES = [f"--shape={name}={shapes}" for name, shapes in KEEP_PROFILE.items()]
QUIET_RTX = ["--backend", "rtx", "-q"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, as far as picking needs one."""
    monkeypatch.setattr(fastest_module, "describe_device", lambda: "a GPU")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return save_block(folder)


def fake_runs(monkeypatch: pytest.MonkeyPatch, model: Path, us: dict[int, float]) -> Timer:
    timer = Timer(us)
    monkeypatch.setattr(fastest_module, "_session", Runner(model))
    monkeypatch.setattr(fastest_module, "_time_engines", timer)
    return timer


def test_pick_prints_a_table_and_writes_json(
    model: Path, tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_runs(monkeypatch, model, {2: 50.0})
    target, found = tmp_path / "out.engine", tmp_path / "found.json"
    options = [*BLOCK_SHAPES, *QUIET_RTX, "--no-embed", "--json", found, "--log", tmp_path / "log"]
    assert run_cli("build", model, "-o", target, "--pick", "fastest", *options) == 0
    content = json.loads(found.read_text())
    assert content["picked"] == "attention"
    assert [one["name"] for one in content["candidates"]] == ["keep", "native", "attention", "softmax", "auto"]
    printed = capsys.readouterr().out
    assert "attention  1 attention  1 " in printed
    assert "picked attention" in printed
    assert f"wrote {found}" in printed
    card = read_card(target)
    assert (card.plugin_layers, card.plugin_embedded, card.source) == (1, False, "model.onnx")
    assert sorted(path.name for path in tmp_path.glob("log*")) == ["log.0", "log.1", "log.2", "log.3"]
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("log")) == [
        "found.json", "models", "out.engine", "out.engine.json",
    ]  # fmt: skip


def test_a_picked_engine_comes_from_the_cache(
    model: Path, tmp_path: Path, gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timer = fake_runs(monkeypatch, model, {1: 50.0})
    monkeypatch.setenv("ATTNGRAFT_CACHE", str(tmp_path / "cache"))
    options = ["--pick", "fastest", *BLOCK_SHAPES, *QUIET_RTX]
    assert run_cli("build", model, "-o", tmp_path / "first.engine", *options) == 0
    first = capsys.readouterr().out
    assert len(timer.calls) == 1
    found = tmp_path / "found.json"
    assert run_cli("build", model, "-o", tmp_path / "second.engine", *options, "--json", found) == 0
    second = capsys.readouterr().out
    assert len(timer.calls) == 1
    assert "a copy from the cache" in second
    assert second.splitlines()[: first.count("\n") - 1] == first.splitlines()[:-1]  # the same table
    assert json.loads(found.read_text())["engine"] == str(tmp_path / "second.engine")
    assert (tmp_path / "first.engine").read_bytes() == (tmp_path / "second.engine").read_bytes()
    assert read_card(tmp_path / "second.engine").worst_difference.of == "engine"


def test_one_build_is_cached_too(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--lower", "native", "--cache", tmp_path / "cache", *BLOCK_SHAPES, *QUIET_RTX]
    for name in ("first", "second", "third"):
        if name == "third":
            model.write_bytes(model.read_bytes() + b"")
        assert run_cli("build", model, "-o", tmp_path / f"{name}.engine", *options) == 0
    printed = capsys.readouterr().out
    assert printed.count("a copy from the cache") == 2
    card = read_card(tmp_path / "third.engine")
    assert [site.lowering for site in card.sites] == ["native"]
    assert card.worst_difference.of == "rewritten model"
    assert run_cli("build", model, "-o", tmp_path / "other.engine", *options, "--lower", "keep") == 0
    assert "a copy from the cache" not in capsys.readouterr().out


def test_profiles_from_options_and_from_a_file(model: Path, tmp_path: Path) -> None:
    again = ["--shape=x=1x1x128:1x4x128:2x16x128", "--shape=keep=1x1x1x1:1x1x4x4:2x1x16x16"]
    given = tmp_path / "given.engine"
    assert run_cli("build", model, "-o", given, "--lower", "keep", *BLOCK_SHAPES, *again, *QUIET_RTX) == 0
    profiles = read_card(given).profiles
    assert len(profiles) == 2 and profiles[1]["x"].max == (2, 16, 128)
    file = tmp_path / "profiles.json"
    file.write_text(json.dumps([{name: str(shapes) for name, shapes in profile.items()} for profile in profiles]))
    read = tmp_path / "read.engine"
    options = ["--profiles", file, "--weight-streaming", *QUIET_RTX]
    assert run_cli("build", model, "-o", read, "--lower", "keep", *options) == 0
    assert read_card(read).profiles == profiles
    assert read_card(read).flags == ("weight_streaming",)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--pick", "fastest", "--lower", "native"], "--pick fastest tries all lowerings"),
        (["--json", "found.json"], "writes what --pick fastest found"),
        (["--profiles", "p.json", *BLOCK_SHAPES], "leave --shape out"),
        (["--version-compatible", *BLOCK_SHAPES], "--version-compatible: TensorRT-RTX"),
        (["--hardware-compatible", *BLOCK_SHAPES], "--hardware-compatible: TensorRT-RTX"),
        (["--pick", "fastest", *BLOCK_SHAPES], "there is no NVIDIA GPU here"),
    ],
)
def test_options_that_do_not_go_together(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    reason: str,
) -> None:
    monkeypatch.setattr(fastest_module, "describe_device", lambda: None)
    assert reason in error_line(capsys, "build", model, "-o", tmp_path / "out.engine", *QUIET_RTX, *options)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def start_build(model: Path, target: Path, *options: str, code: str = "") -> subprocess.Popen[str]:
    """`attngraft build` in a process of its own, behind a line of Python. Standard error tells when TensorRT is at
    work."""
    program = f"import sys; {code}\nfrom attngraft.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "build", str(model), "-o", str(target), "--backend", "rtx", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def old_engine(path: Path) -> Path:
    path.write_bytes(b"the old engine")
    card_path(path).write_text("the old card")
    return path


def assert_as_it_was(target: Path, model: Path) -> None:
    assert target.read_bytes() == b"the old engine"
    assert card_path(target).read_text() == "the old card"
    assert sorted(target.parent.iterdir()) == sorted({target, card_path(target), model, model.parent} - {target.parent})


PICK_WITHOUT_GPU = f"""
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path; from pick_support import Runner, Timer; from attngraft.pick import fastest
fastest.describe_device = lambda: 'a GPU'; fastest._session = Runner(Path(sys.argv[2])); fastest._time_engines = Timer()
"""


@pytest.mark.parametrize("options", [["--lower", "keep"], ["--pick", "fastest"]], ids=["one", "pick"])
def test_an_interrupt_leaves_what_was_there(tmp_path: Path, options: list[str]) -> None:
    model = save(attention_model(KEEP_CONFIG, KEEP_OPERANDS, sites=6), tmp_path)
    target = old_engine(tmp_path / "out.engine")
    process = start_build(model, target, *KEEP_SHAPES, *options, code=PICK_WITHOUT_GPU)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("building "):
            process.send_signal(signal.SIGINT)
            break
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert error.splitlines()[-1] == "attngraft: interrupted"
    assert_as_it_was(target, model)


@pytest.mark.parametrize("options", [["--lower", "keep"], ["--pick", "fastest"]], ids=["one", "pick"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, options: list[str]) -> None:
    """No file may grow beyond 300 kB, as on a full disk: the engine, which carries the plugin library, is larger."""
    model = save(attention_model(KEEP_CONFIG, KEEP_OPERANDS), tmp_path)
    assert model.stat().st_size < 300_000
    target = old_engine(tmp_path / "out.engine")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))"
    process = start_build(model, target, *KEEP_SHAPES, *options, "-q", code=f"{limit}; {PICK_WITHOUT_GPU}")
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1, error
    (line,) = [line for line in error.splitlines() if line.startswith("attngraft: error: ")]
    assert ".engine: cannot be written (File too large); choose another path or free space" in line
    assert_as_it_was(target, model)

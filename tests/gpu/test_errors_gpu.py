"""What goes wrong on a machine with a GPU is said in one line."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from attngraft.contract import Role
from attngraft.engine.sidecar import card_path
from attngraft.errors import EngineError
from attngraft.runtime import Session
from engine_cases import CONFIG, OPERANDS, PROFILE, BuildFunction, attention_inputs
from engine_models import HIDDEN, attention_model


def copy_engine(engine: Path, folder: Path) -> Path:
    for path in (engine, card_path(engine)):
        shutil.copy(path, folder / path.name)
    return folder / engine.name


def truncate(engine: Path) -> None:
    os.truncate(engine, engine.stat().st_size // 2)


def make_older(engine: Path) -> None:
    with open(engine, "r+b") as file:
        file.seek(24)
        file.write(bytes((8, 6, 1, 6)))


def make_rtx(engine: Path) -> None:
    with open(engine, "r+b") as file:
        file.write(b"vtrt")


def move_to_another_gpu(engine: Path) -> None:
    text = card_path(engine).read_text()
    changed = [
        line if '"compute_capability"' not in line else '  "compute_capability": "7.5",' for line in text.splitlines()
    ]
    card_path(engine).write_text("\n".join(changed))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "is truncated"),
        (make_older, "was built by TensorRT 8.6.1.6"),
        (make_rtx, "needs .* of a package that is not here"),
        (move_to_another_gpu, "compute capability 7.5"),
    ],
)
def test_an_engine_that_does_not_fit(
    attention_engine: Path, tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    engine = copy_engine(attention_engine, tmp_path)
    damage(engine)
    with pytest.raises(EngineError, match=reason) as raised:
        Session(engine)
    assert "\n" not in str(raised.value)


RUN = """
import sys
import numpy as np
from attngraft.errors import AttngraftError
from attngraft.runtime import Session
try:
    with Session(sys.argv[1]) as session:
        output = session.run(dict(np.load(sys.argv[2])))["y"]
        output = session.run(dict(np.load(sys.argv[2])))["y"]
        print("replays", session.statistics.replays, "sum", float(output.sum()))
except AttngraftError as error:
    print(type(error).__name__, error)
"""


def run_elsewhere(engine: Path, folder: Path, **environment: str) -> str:
    """Runs the engine in a new process, where nothing has loaded the plugin yet; returns what it prints."""
    np.savez(folder / "inputs.npz", **attention_inputs(2, 8))
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(engine), str(folder / "inputs.npz")],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=True,
    )
    assert len(done.stdout.splitlines()) == 1, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def listed_engine(build: BuildFunction) -> Path:
    """An engine that needs the installed plugin library."""
    return build(attention_model(CONFIG, OPERANDS), PROFILE, embed_plugins=False)


def test_an_embedded_plugin_needs_no_library(attention_engine: Path, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.so")
    assert run_elsewhere(attention_engine, tmp_path, ATTNGRAFT_PLUGIN_LIBRARY=absent).startswith("replays 1")


def test_a_listed_plugin_is_loaded(listed_engine: Path, tmp_path: Path) -> None:
    assert run_elsewhere(listed_engine, tmp_path).startswith("replays 1")


def test_a_listed_plugin_that_is_missing(listed_engine: Path, tmp_path: Path) -> None:
    said = run_elsewhere(listed_engine, tmp_path, ATTNGRAFT_PLUGIN_LIBRARY=str(tmp_path / "absent.so"))
    assert said.startswith("EngineError") and "needs the plugin library" in said


def test_an_engine_without_its_plugin_and_card(listed_engine: Path, tmp_path: Path) -> None:
    engine = copy_engine(listed_engine, tmp_path)
    card_path(engine).unlink()
    said = run_elsewhere(engine, tmp_path)
    assert said.startswith("EngineError") and "TensorRT cannot load it" in said


LEFT_OPEN = """
import sys
import numpy as np
import torch
from attngraft.runtime import Session
inputs = {name: torch.from_numpy(value).cuda() for name, value in np.load(sys.argv[2]).items()}
session = Session(sys.argv[1])
outputs = session.run(inputs)
tensor = torch.from_dlpack(outputs["y"])
"""


def test_a_process_may_end_with_a_session_open(attention_engine: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", **attention_inputs(2, 8))
    arguments = [sys.executable, "-c", LEFT_OPEN, str(attention_engine), str(tmp_path / "inputs.npz")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_both_ways_in_one_process(attention_engine: Path, listed_engine: Path) -> None:
    inputs = attention_inputs(2, 8)
    with Session(attention_engine) as embedded, Session(listed_engine) as listed:
        np.testing.assert_array_equal(embedded.run(inputs)["y"], listed.run(inputs)["y"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": np.zeros((5, 8, HIDDEN), np.float32)}, "5x8x32 is outside the engine's profile"),
        ({"x": np.zeros((2, 65, HIDDEN), np.float32)}, "outside the engine's profile"),
        ({"x": np.zeros((2, 8, HIDDEN), np.float64)}, "is float64, but the engine takes float32"),
        ({"x": np.zeros((2, 8), np.float32)}, "has rank 2"),
        ({"extra": np.zeros(1, np.float32)}, "no such input"),
        ({"x": torch.zeros(2, HIDDEN, 8).cuda().transpose(1, 2)}, "not contiguous"),
        ({"x": torch.zeros(2, 8, HIDDEN, dtype=torch.complex64).cuda()}, "the engine takes float32"),
        ({"x": torch.zeros(2, 8, HIDDEN, device="cuda", requires_grad=True)}, "DLPack"),
        ({"x": [1.0]}, "is no array"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(attention_engine: Path, change: dict[str, object], reason: str) -> None:
    with Session(attention_engine) as session:
        expected = session.run(attention_inputs(2, 8))["y"]
        with pytest.raises(EngineError, match=reason) as raised:
            session.run({**attention_inputs(2, 8), **change})
        assert "\n" not in str(raised.value)
        np.testing.assert_array_equal(session.run(attention_inputs(2, 8))["y"], expected)


def test_operands_that_contradict_each_other_at_run_time(attention_engine: Path) -> None:
    """Each shape is inside its profile; together they do not broadcast, which only the plugin can see."""
    good = attention_inputs(2, 8)
    with Session(attention_engine) as session:
        expected = session.run(good)["y"]
        with pytest.raises(EngineError) as raised:
            session.run({**good, Role.KEEP: np.ones((2, 1, 7), bool)})
        assert "\n" not in str(raised.value)
        np.testing.assert_array_equal(session.run(good)["y"], expected)
    del session
    gc.collect()  # the exception is still held, and with it the frames of the failed run
    with Session(attention_engine) as session:
        for seq in (8, 64, 3):
            session.run(attention_inputs(4, seq))
        np.testing.assert_array_equal(session.run(good)["y"], expected)


def test_no_such_device(attention_engine: Path) -> None:
    with pytest.raises(EngineError, match="device 99"):
        Session(attention_engine, device=99)

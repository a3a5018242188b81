"""The benchmark of picking, as far as it goes without a GPU: its works, its rows, and the table made of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from benchmarks import make_tables, pick_fastest
from pick_support import SHAPES, Runner, Timer, recipe_of, save_block

from attngraft.pick import pick_fastest as pick


def test_check_lists_candidates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_block(tmp_path)
    shapes = [f"--shape={name}={ranges}" for name, ranges in SHAPES.items()]
    assert pick_fastest.main(["--check", "--model", str(model), "--shape", "other=1", *shapes]) == 0
    assert capsys.readouterr().out == "model: keep, native, attention, softmax; 1 sites float16 d64 keep bshd\n"


def test_a_row_and_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_block(tmp_path)
    recipe = recipe_of(model)
    timer = Timer({0: 200.0, 1: 150.0, 2: 90.0}, jitter=1.0)
    result = pick(recipe, run=Runner(model, wrong=lambda y: y + 1), timer=timer)  # both plugins are wrong
    monkeypatch.setattr(pick_fastest, "matrix_rate", lambda dtype: 100.0)
    work = pick_fastest.Work("BERT B8", lambda folder: model, lambda _: (SHAPES,), lambda _: 5000.0)
    row = pick_fastest.measured_row(work, model, recipe, result)
    assert row.dtype == "float16" and row.bound_us == 50.0
    assert set(row.peers_us) == {"tensorrt-plain", "tensorrt-native"}
    assert row.ours_us == row.peers_us["tensorrt-native"] == pytest.approx(160, abs=5)
    assert set(row.notes["failures"]) == {"attention", "softmax"}
    assert row.notes["same"] == {"auto": "native"}
    assert 0.5 <= row.notes["noise_us"] < 4
    environment = {"device": "a GPU", "driver": "1", "cuda": "2", "tensorrt": "3", "torch": "4"}
    run = {**environment, "commit": "0" * 40, "date": "2026-01-01", "command": "c"}
    lines = make_tables._picks({**run, "rows": [asdict(row)]}).splitlines()
    head, line = lines[2], lines[4]
    cells = dict(zip((cell.strip() for cell in head.split("|")), (cell.strip() for cell in line.split("|"))))
    assert (cells["work"], cells["picked"], cells["attention"], cells["limit"]) == ("BERT B8", "native", "", "50.0")
    assert float(cells["gain"]) == pytest.approx(row.peers_us["tensorrt-plain"] / row.ours_us, abs=1e-3)
    assert cells["noise"].endswith("%")

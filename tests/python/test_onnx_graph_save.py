"""Saving: whole or not at all, with the external data, above 2 GB too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from chain_models import FORMS, attention
from onnx import ModelProto, TensorProto
from test_onnx_graph_load import externalised, weighted

from attngraft.errors import ModelError
from attngraft.onnx_graph import load_model, save_model, stage_model
from attngraft.rewrite import rewrite_model

HUGE = 2**31 + 2**20
"""Bytes, just above what one protobuf file may hold."""

LIMIT = 2**29
"""Peak memory, in bytes, of a process that loads, matches, lowers and saves without reading the weights."""


def test_names_and_bytes_are_kept(tmp_path: Path, data_folder: Path) -> None:
    source = data_folder / "sdpa_boolean_dynamo.onnx"
    save_model(load_model(source), tmp_path / "copy.onnx", source.parent)
    assert onnx.load(tmp_path / "copy.onnx") == onnx.load(source)


def test_same_folder_keeps_referring(tmp_path: Path) -> None:
    path = externalised(tmp_path, weighted())
    save_model(load_model(path), tmp_path / "copy.onnx", tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["copy.onnx", "model.onnx", "weights.bin"]
    onnx.checker.check_model(tmp_path / "copy.onnx")


def test_other_folder_gets_the_data(tmp_path: Path) -> None:
    path = externalised(tmp_path, weighted())
    target = tmp_path / "elsewhere" / "copy.onnx"
    target.parent.mkdir()
    save_model(load_model(path), target, tmp_path)
    assert (target.parent / "weights.bin").read_bytes() == (tmp_path / "weights.bin").read_bytes()
    assert tensors(onnx.load(target)) == tensors(onnx.load(path))
    onnx.checker.check_model(target)


def tensors(model: ModelProto) -> dict[str, bytes]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor).tobytes() for tensor in model.graph.initializer}


def test_data_behind_a_link_is_read_and_copied(tmp_path: Path) -> None:
    path = externalised(tmp_path, weighted())
    (tmp_path / "weights.bin").rename(tmp_path / "blob")
    (tmp_path / "weights.bin").symlink_to("blob")
    target = tmp_path / "elsewhere" / "copy.onnx"
    target.parent.mkdir()
    save_model(load_model(path), target, tmp_path)
    onnx.checker.check_model(target)


def test_holes_and_data_are_copied_alike(tmp_path: Path) -> None:
    path = externalised(tmp_path, weighted())
    weights = tmp_path / "weights.bin"
    with open(weights, "r+b") as file:
        file.seek(2**22)
        file.write(b"after a hole")
        file.truncate(2**23)
    target = tmp_path / "elsewhere" / "copy.onnx"
    target.parent.mkdir()
    save_model(load_model(path), target, tmp_path)
    assert (target.parent / "weights.bin").read_bytes() == weights.read_bytes()


def test_a_file_of_the_same_name_is_left_alone(tmp_path: Path) -> None:
    path = externalised(tmp_path, weighted())
    target = tmp_path / "elsewhere" / "copy.onnx"
    target.parent.mkdir()
    (target.parent / "weights.bin").write_bytes(b"someone else's")
    model = load_model(path)
    save_model(model, target, tmp_path)
    assert (target.parent / "weights.bin").read_bytes() == b"someone else's"
    assert (target.parent / "copy.weights.bin").exists()
    assert model == load_model(path)
    onnx.load(target)


def test_discarded_stage_leaves_nothing(tmp_path: Path) -> None:
    path = externalised(tmp_path, weighted())
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "copy.onnx").write_bytes(b"what was there")
    with pytest.raises(RuntimeError), stage_model(load_model(path), folder / "copy.onnx", tmp_path) as staged:
        onnx.checker.check_model(staged.path)
        raise RuntimeError
    assert [file.name for file in folder.iterdir()] == ["copy.onnx"]
    assert (folder / "copy.onnx").read_bytes() == b"what was there"


def test_mode_of_new_and_replaced_files(tmp_path: Path) -> None:
    target = tmp_path / "copy.onnx"
    model = FORMS["bare"].model()
    umask = os.umask(0o022)
    try:
        save_model(model, target, tmp_path)
        assert target.stat().st_mode & 0o777 == 0o644
        target.chmod(0o600)
        save_model(model, target, tmp_path)
        assert target.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(umask)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        save_model(FORMS["bare"].model(), tmp_path / "absent" / "copy.onnx", tmp_path)


def huge_model(folder: Path) -> Path:
    """A model with a 2 GB weight whose file is a hole, so that it takes neither disk nor time, unless something reads
    it."""
    chain = "s = MatMul(q, kt) t = Mul(s, c) p = Softmax<axis = -1>(t)"
    outputs = "float[B,2,S,4] out, float[N,1] unused"
    model: ModelProto = attention(chain, constants={"c": 0.5}, outputs=outputs)
    model.graph.node.append(onnx.helper.make_node("Gather", ["huge", "zero_row"], ["unused"]))
    model.graph.initializer.append(onnx.helper.make_tensor("zero_row", TensorProto.INT64, [1], [0]))
    tensor = model.graph.initializer.add(name="huge", data_type=TensorProto.FLOAT, dims=[HUGE // 4, 1])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "huge.bin"), ("offset", "0"), ("length", str(HUGE))):
        tensor.external_data.add(key=key, value=value)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with open(folder / "huge.bin", "wb") as file:
        file.truncate(HUGE)
    return folder / "model.onnx"


REWRITE_AND_TELL_PEAK_MEMORY = """
import re, sys
from attngraft.rewrite import rewrite_model
result = rewrite_model(sys.argv[1], sys.argv[2], lower="softmax", verify=False)
peak = re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())  # getrusage's includes the parent's memory
print(result.lowered, int(peak.group(1)) * 1024)
"""


def test_above_two_gigabytes_nothing_is_read(tmp_path: Path) -> None:
    path = huge_model(tmp_path)
    target = tmp_path / "elsewhere" / "copy.onnx"
    target.parent.mkdir()
    command = [sys.executable, "-c", REWRITE_AND_TELL_PEAK_MEMORY, str(path), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    lowered, peak = map(int, done.stdout.split())
    assert lowered == 1
    assert peak < LIMIT
    assert (target.parent / "huge.bin").stat().st_size == HUGE
    assert target.stat().st_size < 2**16


def test_above_two_gigabytes_is_verified_from_its_file(tmp_path: Path) -> None:
    path = huge_model(tmp_path)
    result = rewrite_model(path, tmp_path / "out.onnx", lower="softmax")
    assert result.lowered == 1
    assert result.report is not None
    assert result.report.passed

"""Whole models on the GPU: a trained ViT-S and a 12-layer BERT-base in fp32 and fp16, with the plugin at every site.

Each engine must give what ONNX Runtime gives on the CPU, at several shapes, and replay it from a CUDA graph. The ViT is
the demo's (`make demo` fetches it to .demo/), or the file that ATTNGRAFT_VIT names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from attngraft.engine import ShapeRange, build_engine
from attngraft.onnx_export import SAMPLES
from attngraft.rewrite import rewrite_model
from attngraft.runtime import Session
from engine_cases import BUILDER_LEVEL

VIT = Path(os.environ.get("ATTNGRAFT_VIT", Path(__file__).parents[2] / ".demo" / "vit_s_focus.onnx"))

SITES = 12
LONGEST, LARGEST_BATCH = 384, 8

FP32_TOLERANCE = 1e-3
"""TF32 is off: twelve layers of fp32 sums in another order, on outputs of order 1."""

FP16_TOLERANCE = 5e-2
"""Twelve layers of activations rounded to 2^-11 in other places, on outputs up to 4. A wrong mask changes outputs by
more than 0.1. The reference is the fp16 model itself: in it a wholly masked row adds -65504 to every score, which fp32
arithmetic, ONNX Runtime's and the plugin's, does not absorb, unlike the lowest fp32 number in the fp32 model."""

TEXT_SHAPES = ((1, 17), (3, 128), (8, 384), (2, 1))
"""Batch and sequence, within the profile; odd, usual, largest and smallest sequence."""


@dataclass(frozen=True)
class BuiltModel:
    """An engine and the reference that it must equal."""

    engine: Path
    reference: onnxruntime.InferenceSession
    tolerance: float


def reference_session(model: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def build(model: Path, shapes: dict[str, ShapeRange]) -> Path:
    """The engine of the model with every site lowered to the plugin."""
    lowered = model.with_name(f"{model.stem}_softmax.onnx")
    rewrite_model(model, lowered, lower="softmax", verify=False)
    built = build_engine(
        lowered, lowered.with_suffix(".engine"), backend="tensorrt", shapes=shapes, tf32=False,
        optimization_level=BUILDER_LEVEL,
    )  # fmt: skip
    assert built.plugin_layers == SITES
    return built.engine_path


def export_bert(folder: Path, dtype: str) -> Path:
    return SAMPLES["bert-base"].build(dtype=dtype).export(folder / f"bert_{dtype}.onnx")


@pytest.fixture(scope="module")
def bert_fp32_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_bert(tmp_path_factory.mktemp("bert"), "fp32")


@pytest.fixture(scope="module", params=("fp32", "fp16"))
def bert(request: pytest.FixtureRequest, bert_fp32_file: Path) -> BuiltModel:
    model = bert_fp32_file if request.param == "fp32" else export_bert(bert_fp32_file.parent, "fp16")
    text = ShapeRange((1, 1), (LARGEST_BATCH, 128), (LARGEST_BATCH, LONGEST))
    engine = build(model, {"input_ids": text, "attention_mask": text})
    tolerance = FP32_TOLERANCE if request.param == "fp32" else FP16_TOLERANCE
    return BuiltModel(engine, reference_session(model), tolerance)


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> BuiltModel:
    assert VIT.is_file(), f"{VIT} is missing; run make demo, which fetches it, or set ATTNGRAFT_VIT"
    model = tmp_path_factory.mktemp("vit") / VIT.name
    model.symlink_to(VIT.resolve())
    shapes = ShapeRange((1, 3, 224, 224), (1, 3, 224, 224), (4, 3, 224, 224))
    return BuiltModel(build(model, {"input_image": shapes}), reference_session(model), FP32_TOLERANCE)


def right_padded(mask: np.ndarray) -> None:
    mask[-1, (mask.shape[1] + 1) // 2 :] = 0


def left_padded(mask: np.ndarray) -> None:
    mask[0, : mask.shape[1] // 3] = 0


def holed(mask: np.ndarray) -> None:
    mask[:, 1::3] = 0


def wholly_masked(mask: np.ndarray) -> None:
    mask[0] = 0


MASKS: tuple[Callable[[np.ndarray], None], ...] = (right_padded, left_padded, holed, wholly_masked)


def text(shape: tuple[int, int], change_mask: Callable[[np.ndarray], None]) -> dict[str, np.ndarray]:
    mask = np.ones(shape, np.int64)
    change_mask(mask)
    return {"input_ids": np.random.default_rng(shape).integers(3, 30000, shape), "attention_mask": mask}


def expect_equal(result: dict[str, np.ndarray], model: BuiltModel, inputs: dict[str, np.ndarray]) -> None:
    (output,) = result.values()
    (expected,) = model.reference.run(None, inputs)
    assert output.shape == expected.shape
    difference = np.abs(np.asarray(output, np.float32) - expected).max()
    assert difference <= model.tolerance  # false for NaN too


def test_bert_equals_onnxruntime_and_replays(bert: BuiltModel) -> None:
    with Session(bert.engine) as session:
        for shape in TEXT_SHAPES:
            before = session.statistics
            for change_mask in MASKS:
                inputs = text(shape, change_mask)
                expect_equal(session.run(inputs), bert, inputs)
            assert session.statistics.captures == before.captures + 1
            assert session.statistics.replays == before.replays + len(MASKS) - 1
        assert session.statistics.fallbacks == 0


def test_bert_replay_is_the_plain_run_bit_for_bit(bert: BuiltModel) -> None:
    inputs = text((3, 128), left_padded)
    with Session(bert.engine, cuda_graph=False) as plain, Session(bert.engine) as replaying:
        replaying.run(text((3, 128), holed))
        (expected,), (result,) = plain.run(inputs).values(), replaying.run(inputs).values()
        assert (plain.statistics.replays, replaying.statistics.replays) == (0, 1)
    np.testing.assert_array_equal(result, expected)


def test_vit_equals_onnxruntime_and_replays(vit: BuiltModel) -> None:
    generator = np.random.default_rng(0)
    with Session(vit.engine) as session:
        for batch in (1, 3):
            for _ in range(3):
                inputs = {"input_image": generator.standard_normal((batch, 3, 224, 224), dtype=np.float32)}
                expect_equal(session.run(inputs), vit, inputs)
        assert session.statistics.captures == 2
        assert session.statistics.replays == 4
        assert session.statistics.fallbacks == 0

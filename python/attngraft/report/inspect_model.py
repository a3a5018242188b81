"""From a model file to an Inspection: read, match, choose, and ask TensorRT if that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from attngraft.engine.fusion import FusionReport, attribute_kernels, find_fusion
from attngraft.engine.inspector import fused_kernels_of_file
from attngraft.engine.shapes import ShapeRange
from attngraft.lower import Target
from attngraft.match.records import ModelSites
from attngraft.onnx_graph import load_model
from attngraft.report.records import Inspection
from attngraft.report.source_layers import source_layers
from attngraft.rewrite import plan_model

__all__ = ["FusionQuestion", "inspect_model"]


@dataclass(frozen=True)
class FusionQuestion:
    """How to find out what TensorRT fuses: from a built engine, else from a build of the model with `backend` and
    `shapes`."""

    engine: Path | None = None
    backend: str = "auto"
    shapes: Mapping[str, ShapeRange] | None = None


def inspect_model(
    path: Path,
    *,
    target: Target | None = None,
    question: FusionQuestion | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[ModelProto, Inspection]:
    """The model of a file, mended and inlined as a rewrite would, and all that there is to say about its attention
    sites.

    target: the TensorRT whose rules choose the lowerings; None for rules that hold for any. question: asks TensorRT too
    what it fuses, of the file as it is. Raises ModelError for the file; BuildError, EngineError and MissingDependency
    for the question.
    """
    given = load_model(path)
    plan = plan_model(given, path, "auto", target)
    fusion = None if question is None else _ask(given, path, plan.sites, question, progress)
    layers = source_layers(plan.model, plan.sites)
    return plan.model, Inspection(
        str(path), plan.sites, plan.choices, plan.reasons, target, layers, fusion, plan.repairs
    )


def _ask(
    model: ModelProto, path: Path, sites: ModelSites, question: FusionQuestion, progress: Callable[[str], None] | None
) -> FusionReport:
    if question.engine is None:
        return find_fusion(model, path, sites, backend=question.backend, shapes=question.shapes, progress=progress)
    made_by, kernels = fused_kernels_of_file(question.engine)
    return attribute_kernels(made_by, model, sites, kernels)

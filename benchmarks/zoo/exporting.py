"""One export: a model of the zoo and a variant in, an ONNX file and what is true of it out."""

from __future__ import annotations

import inspect
import json
import logging
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import torch

from benchmarks.zoo.entry import DTYPES, Entry, GraphEntry, Model, Size, Variant
from benchmarks.zoo.truth import count_softmaxes

__all__ = ["export_entry", "export_model", "export_name", "facts_path", "read_facts"]

SEED = 20


def export_name(entry: Entry | GraphEntry, attention: str, variant: Variant) -> str:
    """What an export is called, without suffix: `bert-eager-dynamo-op18-fp32`."""
    return f"{entry.name}-{attention}-{variant}"


def facts_path(path: Path) -> Path:
    """Where the true numbers of an export's softmaxes lie: beside it."""
    return path.with_suffix(".facts.json")


def read_facts(path: Path) -> dict[str, Any] | None:
    """`{"sites", "others", "family", "shapes"}` of an export, None where nobody counted.

    `shapes` are those of the inputs that it was made with, which are the only ones that some traced exports run with;
    empty for graphs made otherwise.
    """
    facts = facts_path(path)
    return json.loads(facts.read_text()) if facts.exists() else None


def export_entry(entry: Entry | GraphEntry, size: Size, attention: str, variant: Variant, folder: Path) -> Path:
    """Writes NAME.onnx and NAME.facts.json into `folder`, both or neither. Raises what the exporter raises."""
    path = folder / f"{export_name(entry, attention, variant)}.onnx"
    partial = path.with_suffix(".partial")
    torch.manual_seed(SEED)
    torch.backends.mha.set_fastpath_enabled(False)  # a fused operator of PyTorch's own that no exporter knows
    if isinstance(entry, GraphEntry):
        proto, sites, others = entry.make(size, variant)
        shapes: dict[str, list[int]] = {}
        onnx.save(proto, partial)
    else:
        model = _converted(entry.build(size, attention), variant.dtype)
        sites, others = count_softmaxes(model)
        shapes = {name: list(tensor.shape) for name, tensor in model.inputs.items()}
        export_model(model, variant, partial)
    facts = {"sites": sites, "others": others, "family": entry.family, "shapes": shapes}
    facts_path(path).write_text(json.dumps(facts) + "\n")
    os.replace(partial, path)
    return path


def _converted(model: Model, dtype: str) -> Model:
    to = DTYPES[dtype]
    inputs = {name: tensor.to(to) if tensor.is_floating_point() else tensor for name, tensor in model.inputs.items()}
    return replace(model, module=model.module.to(to), inputs=inputs)


def export_model(model: Model, variant: Variant, path: Path) -> None:
    """Writes the ONNX file, weights inside. Sizes that the exporter finds to be fixed stay fixed (Dim.AUTO)."""
    names = list(model.inputs)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        if variant.exporter == "torchscript":
            torch.onnx.export(
                model.module, tuple(model.inputs.values()), str(path), dynamo=False, opset_version=variant.opset,
                input_names=names, dynamic_axes={name: dict(axes) for name, axes in model.axes.items()},
                **_accepted(model.options, "do_constant_folding"),
            )  # fmt: skip
            return
        automatic = [dict.fromkeys(model.axes[name], torch.export.Dim.AUTO) for name in names]
        variadic = inspect.Parameter.VAR_POSITIONAL in {
            parameter.kind for parameter in inspect.signature(model.module.forward).parameters.values()
        }
        torch.onnx.export(
            model.module, tuple(model.inputs.values()), str(path), dynamo=True, opset_version=variant.opset,
            input_names=names, dynamic_shapes=(tuple(automatic),) if variadic else tuple(automatic),
            external_data=False, verbose=False, **_accepted(model.options, "optimize"),
        )  # fmt: skip


def _accepted(options: Any, *keywords: str) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key in keywords}

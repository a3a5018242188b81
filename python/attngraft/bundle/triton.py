"""A model repository for Triton Inference Server's TensorRT backend. In: an engine and its card. Out: its files.

The backend permits an engine's own code with `version-compatible=true` alone, and opens the libraries of `plugins=`
before it loads any engine. It finds the graphs of models without batching only since its pull request 125.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from attngraft.bundle.batching import Batching, decide_batching
from attngraft.bundle.folder import Content
from attngraft.bundle.graph_shapes import Shapes, batched_shapes, corner_shapes
from attngraft.bundle.source import BundleSource
from attngraft.bundle.text_format import Message, Word, format_message
from attngraft.engine.sidecar import EngineCard, TensorCard, card_path
from attngraft.errors import EngineError

__all__ = ["TritonModel", "triton_config", "triton_files", "triton_model"]

PLAN = "model.plan"
VERSION = "1"

DATA_TYPES = {
    "float32": "TYPE_FP32",
    "float16": "TYPE_FP16",
    "bfloat16": "TYPE_BF16",
    "int8": "TYPE_INT8",
    "uint8": "TYPE_UINT8",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "bool": "TYPE_BOOL",
}
"""Triton's words for the types of TensorRT that its backend serves."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""A model's name is a folder and a part of URLs."""


@dataclass(frozen=True)
class TritonModel:
    """One model of a repository."""

    name: str
    instances: int
    """Execution contexts on each GPU."""
    batching: Batching

    @property
    def plan_path(self) -> str:
        """The engine's path in the repository."""
        return f"{self.name}/{VERSION}/{PLAN}"


def triton_model(
    source: BundleSource, *, name: str | None = None, instances: int = 1, max_batch: int | None = None
) -> TritonModel:
    """name: by default the engine's file name, with `_` for what a model's name cannot hold.

    Raises EngineError for a TensorRT-RTX engine, which Triton cannot load, and for values that do not fit.
    """
    if source.header.backend != "tensorrt":
        raise EngineError(
            f"{source.engine}: is a TensorRT-RTX engine, which Triton's TensorRT backend cannot load; build it with "
            "--backend tensorrt, or bundle it with --format directory"
        )
    if instances < 1:
        raise EngineError(f"--instances {instances}: give 1 or more")
    if name is None:
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", source.engine.stem).lstrip(".-") or "model"
    if not _NAME.fullmatch(name):
        raise EngineError(
            f"--name {name!r}: a model's name is made of letters, digits, '_', '-' and '.', and begins with neither of "
            "the last two"
        )
    batching = decide_batching(source.card, max_batch)
    for tensor in (*source.card.inputs, *source.card.outputs):
        if not tensor.shape:
            raise EngineError(
                f"tensor {tensor.name!r}: is a scalar, which Triton does not serve; reshape it to [1] in the model"
            )
        if 0 in tensor.shape:
            raise EngineError(f"tensor {tensor.name!r}: has no elements, which Triton does not serve")
        if tensor.dtype not in DATA_TYPES:
            raise EngineError(f"tensor {tensor.name!r}: Triton has no type {tensor.dtype}; cast it in the model")
    return TritonModel(name, instances, batching)


def triton_files(source: BundleSource, model: TritonModel) -> dict[str, Content]:
    """Every file of the repository, by its path. All but the model's folder lie at the top as files, since Triton takes
    each folder there for a model."""
    files = {
        model.plan_path: Content(source.engine),
        card_path(model.plan_path).as_posix(): Content(card_path(source.engine)),
        f"{model.name}/config.pbtxt": Content(format_message(triton_config(source.card, model))),
    }
    if source.library is not None:
        files[str(source.library_name)] = Content(source.library)
    files["serve.sh"] = Content(_serve_script(source), executable=True)
    files["README.txt"] = Content(_readme(source, model))
    return files


def triton_config(card: EngineCard, model: TritonModel) -> Message:
    """The model's config.pbtxt, as nested values."""
    instance: dict[str, object] = {"count": model.instances, "kind": Word("KIND_GPU")}
    if len(card.profiles) > 1:  # left to itself the backend takes profile 0 alone
        instance["profile"] = [str(index) for index in range(len(card.profiles))]
    config: dict[str, object] = {
        "name": model.name,
        "platform": "tensorrt_plan",
        "default_model_filename": PLAN,
        "max_batch_size": model.batching.max_batch,
        "input": [_tensor(tensor, model.batching) for tensor in card.inputs],
        "output": [_tensor(tensor, model.batching) for tensor in card.outputs],
        "instance_group": [instance],
    }
    if model.batching.max_batch > 1:
        config["dynamic_batching"] = {}
    config["optimization"] = {"cuda": {"graphs": True, "graph_spec": _graph_specs(card, model.batching)}}
    return config  # type: ignore[return-value]


def _tensor(tensor: TensorCard, batching: Batching) -> Message:
    fields: dict[str, object] = {"name": tensor.name, "data_type": Word(DATA_TYPES[tensor.dtype])}
    dims = tensor.shape[1:] if batching.max_batch else tensor.shape
    if not dims:  # `dims` must not be empty: clients see [batch, 1], the engine [batch]
        return {**fields, "dims": [1], "reshape": {"shape": []}}
    return {**fields, "dims": list(dims)}


def _graph_specs(card: EngineCard, batching: Batching) -> list[Message]:
    """A graph may stand in for smaller batches: rows of one batch come from different clients anyway, and unused rows
    hold what an earlier request left or zeros. It may not for other dimensions: the outputs would be those of the
    longer input. Without batching the backend's lower bounds are of no use."""
    if not batching.max_batch:
        return [{"batch_size": 0, "input": _inputs(graph.shapes)} for graph in corner_shapes(card)]
    specs: list[Message] = []
    for graph in batched_shapes(card, batching.max_batch):
        spec: dict[str, object] = {"batch_size": graph.batch, "input": _inputs(graph.shapes)}
        if graph.smallest < graph.batch:
            spec["graph_lower_bound"] = {"batch_size": graph.smallest, "input": _inputs(graph.shapes)}
        specs.append(spec)
    return specs


def _inputs(shapes: Shapes) -> list[Message]:
    return [{"key": name, "value": {"dim": list(shape)}} for name, shape in shapes]


def _command(source: BundleSource) -> str:
    """What starts the server in the repository's folder; --backend-config holds for all its models."""
    command = "tritonserver --model-repository=."
    if source.library is not None:
        return f"{command} --backend-config=tensorrt,plugins=./{source.library_name}"
    if source.card.carries_code:
        return f"{command} --backend-config=tensorrt,version-compatible=true"
    return command


def _serve_script(source: BundleSource) -> str:
    return (
        "#!/bin/sh\n"
        "# Starts Triton Inference Server on this model repository; further options are handed on.\n"
        '# The paths are relative to this folder, since a path with ";" in it cannot be given.\n'
        'cd "$(dirname "$0")" || exit 1\n'
        f'exec {_command(source)} "$@"\n'
    )


def _readme(source: BundleSource, model: TritonModel) -> str:
    batching, card = model.batching, source.card
    where = f" on {card.gpu} (compute capability {card.compute_capability})" if card.gpu else ""
    lines = [
        f"A model repository for Triton Inference Server with one model, {model.name}.",
        "",
        "    ./serve.sh",
        "",
        "or, in this folder,",
        "",
        f"    {_command(source)}",
        "",
        *_plugin_lines(source),
        *_wrap(
            f"The engine was built by TensorRT {source.header.version_text}{where}. Take a Triton release with that "
            "version of TensorRT, and such a GPU."
        ),
        "",
        *_wrap(f"max_batch_size is {batching.max_batch}: {batching.reason}."),
        *_batching_lines(batching),
        "",
        "attngraft bundle --check FOLDER compares all files with manifest.json.",
    ]
    return "\n".join(lines) + "\n"


def _plugin_lines(source: BundleSource) -> list[str]:
    if source.library is not None:
        text = (
            f"The engine needs the plugin library {source.library_name}. The TensorRT backend loads it when it starts, "
            "where the option above names it; --backend-config holds for the whole server, and several libraries are "
            "separated by ';'. LD_PRELOAD does not do: the library registers its plugins in the TensorRT that is "
            "loaded by then, and the server loads TensorRT later."
        )
    elif source.card.carries_code:
        what, how = "The plugin library is inside the engine.", "build the engine with --no-embed"
        if not source.card.plugin_embedded:
            what, how = "TensorRT's lean runtime is inside the engine.", "build the engine without --version-compatible"
        text = (
            f"{what} The option above permits TensorRT to run code that an engine carries; it holds for all engines of "
            f"this server, so serve engines that you trust. To do without it, {how} and bundle it again."
        )
    else:
        return []
    return [*_wrap(text), ""]


def _batching_lines(batching: Batching) -> list[str]:
    if batching.max_batch:
        return _wrap(
            "The first dimension of every tensor is taken for a batch: requests are put together into one, and a CUDA "
            "graph serves batches that are a little smaller than its own too. That is right where no row depends on "
            "another, as with all batching in Triton; else make the bundle again with --max-batch 0."
        )
    return _wrap(
        "CUDA graphs are captured for the profiles' usual and largest shapes. Older TensorRT backends, of before their "
        "pull request 125, capture them but do not find them again where max_batch_size is 0, and run plainly."
    )


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, width=100, break_long_words=False, break_on_hyphens=False)

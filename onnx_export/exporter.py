"""`export_module`: a PyTorch module and example arguments in, an ONNX file out.

One notation for both exporters: `dynamic_axes={"input_ids": {0: "batch", 1: "sequence"}}`; axes of one name have one
size. The file, and its external data if it has any, is made in a folder beside the target and renamed: a failed export
leaves what was there.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngraft.contract import CONTRACT_VERSION, DOMAIN
from attngraft.errors import AttngraftError, ModelError
from attngraft.onnx_export.check import require_equal
from attngraft.onnx_export.dependencies import import_for_export
from attngraft.onnx_export.operators import add_functions, symbolics, translations

if TYPE_CHECKING:
    import torch

__all__ = ["DEFAULT_OPSET", "EXPORTERS", "EXTERNAL_DATA_BYTES", "export_module"]

EXPORTERS = ("dynamo", "torchscript")

DEFAULT_OPSET = {"dynamo": 18, "torchscript": 17}
"""18 is the lowest that the dynamo exporter writes without conversion; 17 is the first with LayerNormalization. Both
parse in TensorRT 10 and later. Opset 23 is no default: its Attention operator does not build everywhere."""

EXTERNAL_DATA_BYTES = 1 << 31
"""Weights of this many bytes or more go to a file of their own: a protobuf message ends at 2 GiB."""

GRAPH_BYTES = 64 << 20
"""Room left for the graph itself beside the weights in one protobuf message."""

DynamicAxes = Mapping[str, Mapping[int, str]]


def export_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    target: str | Path,
    *,
    exporter: str = "dynamo",
    opset: int | None = None,
    input_names: Sequence[str],
    output_names: Sequence[str],
    dynamic_axes: DynamicAxes | None = None,
    external_data: bool | None = None,
    check: bool = False,
) -> Path:
    """Exports `module`, called with the tensors `args`, to the ONNX file `target` and returns its path.

    Calls of attngraft.torch.masked_softmax and fused_attention become nodes of attngraft's operators, which TensorRT
    runs by the plugin and any other runtime by the functions that the file has for them.

    exporter: `dynamo` (torch.export) or `torchscript` (tracing).
    opset: of the default domain; DEFAULT_OPSET when None.
    dynamic_axes: for an input, the names of its axes of variable size; all others are fixed at the size in `args`.
    external_data: weights in `target` + ".data"; None: where they would not fit into one protobuf message.
    check: run the file in ONNX Runtime on `args` and compare with the module before it takes the target's place.

    Raises MissingDependency without PyTorch or onnxscript, ModelError when the exporter refuses the module, and
    VerificationError when the check fails.
    """
    target = Path(target).resolve()
    axes = {name: dict(names) for name, names in (dynamic_axes or {}).items()}
    _validate(exporter, args, input_names, axes, target)
    torch = import_for_export("torch")
    import_for_export("onnxscript")
    if external_data is None:
        external_data = _weight_bytes(module) + GRAPH_BYTES >= EXTERNAL_DATA_BYTES
    opset = opset or DEFAULT_OPSET[exporter]
    call = _Call(module, tuple(args), opset, tuple(input_names), tuple(output_names), axes, external_data)

    training = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            written = Path(folder) / target.name
            with torch.no_grad(), _quiet(torch):
                _export(exporter, call, written)
            add_functions(written)
            if check:
                require_equal(written, module, args)
            _move_into_place(written, target)
    finally:
        for part, mode in training:
            part.training = mode
    return target


@dataclass(frozen=True)
class _Call:
    """What is exported and how, without where to."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    opset: int
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    axes: DynamicAxes
    external_data: bool


def _validate(exporter: str, args: Sequence[Any], input_names: Sequence[str], axes: DynamicAxes, target: Path) -> None:
    if exporter not in EXPORTERS:
        raise ModelError(f"exporter: {exporter!r} is not one of {', '.join(EXPORTERS)}")
    if len(args) != len(input_names):
        raise ModelError(f"input_names: {len(input_names)} names for {len(args)} arguments; give one name for each")
    unknown = sorted(set(axes) - set(input_names))
    if unknown:
        raise ModelError(f"dynamic_axes: {unknown[0]!r} is no input; the inputs are {', '.join(input_names)}")
    if not target.parent.is_dir():
        raise ModelError(f"{target}: the folder does not exist; create it first")


def _weight_bytes(module: torch.nn.Module) -> int:
    tensors = {t.data_ptr(): t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers())}
    return sum(tensors.values())


def _export(exporter: str, call: _Call, path: Path) -> None:
    write = _write_dynamo if exporter == "dynamo" else _write_torchscript
    try:
        write(call, path)
    except Exception as error:  # whatever the exporter raises: a traceback of its insides helps nobody
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, AttngraftError):  # ours, and no fault of the exporter
            raise ModelError(f"{type(call.module).__name__}: {cause}") from error
        first_line = next((line.strip() for line in str(cause).splitlines() if line.strip()), "no message")
        raise ModelError(
            f"{type(call.module).__name__}: PyTorch cannot export it ({type(cause).__name__}: {first_line}); "
            "try the other exporter"
        ) from error


def _write_dynamo(call: _Call, path: Path) -> None:
    torch = import_for_export("torch")
    torch.onnx.export(
        call.module,
        call.args,
        str(path),
        dynamo=True,
        opset_version=call.opset,
        input_names=call.input_names,
        output_names=call.output_names,
        # Not for fixed sizes: a forward of *args would want one entry for all of them.
        dynamic_shapes=tuple(call.axes.get(name) for name in call.input_names) if call.axes else None,
        external_data=call.external_data,
        custom_translation_table=translations(),
        verbose=False,
    )


def _write_torchscript(call: _Call, path: Path) -> None:
    torch = import_for_export("torch")
    # Tracing writes weights above 2 GiB to one file a tensor; a folder of its own keeps them together.
    with tempfile.TemporaryDirectory(prefix="trace.", dir=path.parent) as folder, symbolics(call.opset):
        traced = Path(folder) / path.name
        torch.onnx.export(
            call.module,
            call.args,
            str(traced),
            dynamo=False,
            opset_version=call.opset,
            input_names=list(call.input_names),
            output_names=list(call.output_names),
            dynamic_axes=call.axes,
            custom_opsets={DOMAIN: CONTRACT_VERSION},
        )
        if call.external_data:
            import onnx

            onnx.save_model(onnx.load(traced), path, save_as_external_data=True, location=f"{path.name}.data")
        else:
            os.replace(traced, path)


def _move_into_place(written: Path, target: Path) -> None:
    data = written.with_name(f"{written.name}.data")
    if data.exists():
        os.replace(data, target.with_name(data.name))
    os.replace(written, target)


@contextmanager
def _quiet(torch: Any) -> Iterator[None]:
    """Silences the exporters' deprecation and tracer notes: they speak to PyTorch's developers, not to the caller."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning, UserWarning, torch.jit.TracerWarning):
            warnings.simplefilter("ignore", category)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)

"""External data: which files a model refers to, and whether they hold what it says."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from onnx import ModelProto, TensorProto

from attngraft.errors import ModelError
from attngraft.onnx_graph.dtypes import numpy_dtype
from attngraft.onnx_graph.walk import walk_tensors

__all__ = [
    "SMALL_TENSOR_BYTES",
    "check_external_data",
    "external_files",
    "external_tensors",
    "load_small_tensors",
    "rename_external_file",
    "stored_bytes",
]

SMALL_TENSOR_BYTES = 1024
"""Tensors up to this size are read when a model is loaded: they are scales, fills, axes and shapes, which matching
needs. onnx.save_model keeps tensors below the same size inside the model by default."""


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """The tensors whose values are in another file."""
    return (tensor for tensor in walk_tensors(model) if tensor.data_location == TensorProto.EXTERNAL)


def external_files(model: ModelProto) -> dict[str, list[TensorProto]]:
    """The external files by the name that the model gives them, each with the tensors in it."""
    files: dict[str, list[TensorProto]] = defaultdict(list)
    for tensor in external_tensors(model):
        files[_info(tensor).get("location", "")].append(tensor)
    return dict(files)


def check_external_data(model: ModelProto, path: Path) -> None:
    """Raises ModelError when a file is missing, too short for a tensor in it, or outside the model's folder."""
    for location, tensors in external_files(model).items():
        name = tensors[0].name
        pure = PurePosixPath(location)
        if not location or pure.is_absolute() or ".." in pure.parts:
            raise ModelError(
                f"{path}: tensor {name!r} refers to external data at {location!r}, which is not a file below the "
                "model's folder; save the model again with its data beside it"
            )
        file = path.parent / location
        if not file.is_file():
            raise ModelError(
                f"{path}: external data file {location!r} (tensor {name!r}) is missing; put it beside the model"
            )
        size = file.stat().st_size
        for tensor in tensors:
            offset, length = _extent(tensor)
            if offset + length > size:
                raise ModelError(
                    f"{file}: has {size} bytes, but tensor {tensor.name!r} ends at byte {offset + length}; "
                    "the file is truncated, copy it again"
                )


def load_small_tensors(model: ModelProto, folder: Path) -> None:
    """Brings external tensors of at most SMALL_TENSOR_BYTES into the model; the others are left unread."""
    for tensor in list(external_tensors(model)):
        offset, length = _extent(tensor)
        if length > SMALL_TENSOR_BYTES:
            continue
        # Not by onnx's own reader, which refuses files behind links, as model caches have them.
        with open(folder / _info(tensor)["location"], "rb") as file:
            file.seek(offset)
            tensor.raw_data = file.read(length)
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def rename_external_file(model: ModelProto, location: str, new_location: str) -> None:
    """Makes every tensor that is in `location` refer to `new_location`."""
    for tensor in external_tensors(model):
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value == location:
                entry.value = new_location


def _info(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _extent(tensor: TensorProto) -> tuple[int, int]:
    """Offset and length in bytes of an external tensor; without a stated length, what its shape and type need."""
    info = _info(tensor)
    try:
        offset = int(info.get("offset", 0))
        length = int(info["length"]) if "length" in info else stored_bytes(tensor)
    except ValueError:
        raise ModelError(
            f"tensor {tensor.name!r}: external data offset or length is not a number; export the model again"
        ) from None
    return offset, length


def stored_bytes(tensor: TensorProto) -> int:
    """The size of a tensor's values, from its shape and type: protobuf's own ByteSize would serialize them."""
    if tensor.data_type == TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    # Types below one byte are packed; rounding up is right for them too.
    bits = {TensorProto.INT4: 4, TensorProto.UINT4: 4}.get(tensor.data_type)
    count = math.prod(tensor.dims)
    return (count * bits + 7) // 8 if bits else count * numpy_dtype(tensor.data_type).itemsize

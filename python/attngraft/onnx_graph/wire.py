"""A model's bytes, one stored tensor at a time: what SerializeToString gives, without a second copy of the weights.

Protobuf's encoding (protobuf.dev/programming-guides/encoding): a message within another is its field's tag, its length
and its bytes, and fields may stand in any order. So the initializers can follow everything else, and the graph's length
is put in when they are written; until then its place holds a number of as many bytes as any length takes.
"""

from __future__ import annotations

from typing import BinaryIO

from onnx import GraphProto, ModelProto

from attngraft.onnx_graph.walk import copy_fields

__all__ = ["write_in_parts"]

LENGTH_DELIMITED = 2
"""Protobuf's wire type of messages."""

GRAPH_TAG = bytes([ModelProto.GRAPH_FIELD_NUMBER << 3 | LENGTH_DELIMITED])
INITIALIZER_TAG = bytes([GraphProto.INITIALIZER_FIELD_NUMBER << 3 | LENGTH_DELIMITED])


LENGTH_BYTES = 5
"""A length below 2^35 in seven bits a byte."""


def write_in_parts(model: ModelProto, file: BinaryIO) -> int:
    """Writes the model's serialized form to a file that can be sought in, and returns its size in bytes. One
    initializer at a time is in memory twice."""
    outer, graph = ModelProto(), GraphProto()
    copy_fields(model, outer, frozenset({"graph"}))
    copy_fields(model.graph, graph, frozenset({"initializer"}))
    file.write(outer.SerializeToString())
    file.write(GRAPH_TAG)
    place = file.tell()
    file.write(bytes(LENGTH_BYTES))
    start = file.tell()
    file.write(graph.SerializeToString())
    for tensor in model.graph.initializer:
        data = tensor.SerializeToString()
        file.write(INITIALIZER_TAG + _varint(len(data)))
        file.write(data)
    end = file.tell()
    file.seek(place)
    file.write(_varint(end - start, LENGTH_BYTES))
    file.seek(end)
    return end


def _varint(number: int, at_least: int = 1) -> bytes:
    """Seven bits a byte, lowest first, the top bit set in all but the last; zeros fill it up to `at_least` bytes."""
    parts = [number & 0x7F]
    while number > 0x7F or len(parts) < at_least:
        number >>= 7
        parts.append(number & 0x7F)
    return bytes([part | 0x80 for part in parts[:-1]] + parts[-1:])

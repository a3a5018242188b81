"""Triton's model configuration as a protocol buffer: the fields that a bundle may have, by name and type.

Field numbers are no matter in the text format; types and names are, and an unknown one is an error.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

Field = descriptor_pb2.FieldDescriptorProto

ENUMS = {
    "DataType": "TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_INT8 TYPE_INT32 TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_BF16",
    "Kind": "KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL",
}
MESSAGES = {
    "Reshape": {"shape": "int64*"},
    "Tensor": {"name": "string", "data_type": "DataType", "dims": "int64*", "reshape": "Reshape"},
    "Shape": {"dim": "int64*"},
    "LowerBound": {"batch_size": "int32", "input": "map Shape"},
    "GraphSpec": {"batch_size": "int32", "input": "map Shape", "graph_lower_bound": "LowerBound"},
    "Cuda": {"graphs": "bool", "graph_spec": "GraphSpec*"},
    "Optimization": {"cuda": "Cuda"},
    "InstanceGroup": {"count": "int32", "kind": "Kind", "profile": "string*"},
    "DynamicBatching": {},
    "ModelConfig": {
        "name": "string",
        "platform": "string",
        "max_batch_size": "int32",
        "input": "Tensor*",
        "output": "Tensor*",
        "instance_group": "InstanceGroup*",
        "default_model_filename": "string",
        "dynamic_batching": "DynamicBatching",
        "optimization": "Optimization",
    },
}
SCALARS = {"string": Field.TYPE_STRING, "int32": Field.TYPE_INT32, "int64": Field.TYPE_INT64, "bool": Field.TYPE_BOOL}


def _model_config() -> type:
    file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", package="triton", syntax="proto3")
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field_name, kind) in enumerate(fields.items(), start=1):
            _add_field(message, field_name, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("triton.ModelConfig"))


def _add_field(message: Any, name: str, number: int, kind: str) -> None:
    if kind.startswith("map "):
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, kind.removeprefix("map "))
        kind = f"{message.name}.{entry.name}*"
    bare = kind.removesuffix("*")
    field = message.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL)
    if kind != bare:
        field.label = Field.LABEL_REPEATED
    if bare in SCALARS:
        field.type = SCALARS[bare]
    else:
        field.type_name = f".triton.{bare}"
        field.type = Field.TYPE_ENUM if bare in ENUMS else Field.TYPE_MESSAGE


ModelConfig = _model_config()


def parse_config(text: str) -> Any:
    """A config.pbtxt, read by the protocol buffer library. Raises its ParseError."""
    return text_format.Parse(text, ModelConfig())

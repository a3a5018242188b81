"""ONNX files in and out, and the read-only view of their graphs that matching works on."""

from attngraft.onnx_graph.check import structure_fault
from attngraft.onnx_graph.dtypes import HALF_NAMES, HALF_TYPES, dtype_name, numpy_dtype, onnx_dtype
from attngraft.onnx_graph.external import external_files
from attngraft.onnx_graph.load import MIN_OPSET, load_model
from attngraft.onnx_graph.save import StagedModel, save_model, stage_model
from attngraft.onnx_graph.view import GraphView, without_weights
from attngraft.onnx_graph.walk import (
    copy_fields,
    default_opset,
    graph_attributes,
    inner_path,
    node_label,
    walk_graphs,
    walk_tensors,
)

__all__ = [
    "HALF_NAMES",
    "HALF_TYPES",
    "MIN_OPSET",
    "GraphView",
    "StagedModel",
    "copy_fields",
    "default_opset",
    "dtype_name",
    "external_files",
    "graph_attributes",
    "inner_path",
    "load_model",
    "node_label",
    "numpy_dtype",
    "onnx_dtype",
    "save_model",
    "stage_model",
    "structure_fault",
    "walk_graphs",
    "walk_tensors",
    "without_weights",
]

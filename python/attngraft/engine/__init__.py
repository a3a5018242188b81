"""Engines: an ONNX model in, a TensorRT or TensorRT-RTX engine and its card out."""

from attngraft.engine.builder import BuildResult, build_engine
from attngraft.engine.shapes import ShapeRange, parse_shape_option

__all__ = ["BuildResult", "ShapeRange", "build_engine", "parse_shape_option"]

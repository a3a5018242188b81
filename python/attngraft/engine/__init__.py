"""Engines: an ONNX model in, a TensorRT or TensorRT-RTX engine and its card out."""

from attngraft.engine.builder import BuildResult, Origin, build_engine
from attngraft.engine.profiles import profiles_of_options, read_profiles
from attngraft.engine.shapes import ShapeRange, parse_shape_option

__all__ = [
    "BuildResult",
    "Origin",
    "ShapeRange",
    "build_engine",
    "parse_shape_option",
    "profiles_of_options",
    "read_profiles",
]

"""From a PyTorch module to an ONNX file, by either of PyTorch's exporters, and models to try it on.

`export_module` writes the file; `SAMPLES` holds encoders and decoders of text, images and speech at real sizes with
random weights. Needs the extra `export`: PyTorch, onnxscript and, for the samples, transformers. Importing this package
imports none of them.
"""

from __future__ import annotations

from attngraft.onnx_export.check import compare_with_module
from attngraft.onnx_export.exporter import EXPORTERS, export_module
from attngraft.onnx_export.samples import SAMPLES, Sample, SampleModel

__all__ = ["EXPORTERS", "SAMPLES", "Sample", "SampleModel", "compare_with_module", "export_module"]

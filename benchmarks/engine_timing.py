"""A TensorRT engine as a call on PyTorch's current stream, for timing without the session's copies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tensorrt as trt
import torch

from attngraft.engine.backends import register_plugins
from attngraft.engine.layers import fused_attention, layers_of_inspector
from attngraft.engine.logger import process_logger
from attngraft.plugin_library import plugin_library

__all__ = ["LoadedEngine"]

TORCH_DTYPES = {
    trt.float32: torch.float32,
    trt.float16: torch.float16,
    trt.bfloat16: torch.bfloat16,
    trt.int64: torch.int64,
    trt.int32: torch.int32,
    trt.bool: torch.bool,
}


class LoadedEngine:
    """An engine with one context and fixed inputs; calling it enqueues one inference on PyTorch's current stream."""

    def __init__(self, path: Path, inputs: Mapping[str, torch.Tensor]) -> None:
        self._runtime = runtime = trt.Runtime(process_logger(trt))
        register_plugins(runtime.get_plugin_registry(), plugin_library())
        self._engine = runtime.deserialize_cuda_engine(path.read_bytes())
        self._context = self._engine.create_execution_context()
        self._inputs = {name: tensor.cuda().contiguous() for name, tensor in inputs.items()}
        for name, tensor in self._inputs.items():
            self._context.set_input_shape(name, tuple(tensor.shape))
            self._context.set_tensor_address(name, tensor.data_ptr())
        self.outputs = {name: self._output(name) for name in self._output_names()}

    def _output_names(self) -> list[str]:
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        return [name for name in names if self._engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT]

    def _output(self, name: str) -> torch.Tensor:
        shape, dtype = tuple(self._context.get_tensor_shape(name)), TORCH_DTYPES[self._engine.get_tensor_dtype(name)]
        output = torch.empty(shape, dtype=dtype, device="cuda")
        self._context.set_tensor_address(name, output.data_ptr())
        return output

    def fused_attention_kernels(self) -> list[str]:
        """Names of the kernels that TensorRT itself made of whole attention sites."""
        text = self._engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
        return sorted({layer.name for layer in fused_attention(layers_of_inspector(text))})

    def __call__(self) -> None:
        if not self._context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("TensorRT refused to enqueue the engine")

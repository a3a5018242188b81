"""The layers of a built engine. In: TensorRT's log or its engine inspector. Out: names, and the ONNX nodes inside.

TensorRT tells the layers in two places: in one verbose message at the end of a build (no GPU needed), and through the
engine inspector of a loaded engine (GPU needed). Both hold `[ONNX Layer: node]` entries when the engine was built with
detailed profiling verbosity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from attngraft.errors import EngineError

__all__ = ["LAYERS_MESSAGE", "EngineLayer", "fused_attention", "layers_of_inspector", "layers_of_message"]

LAYERS_MESSAGE = "Layers:"
"""How the verbose message that lists an engine's layers begins."""

_NODE_ENTRY = "[ONNX Layer: "

_FUSED_ATTENTION = re.compile(r"(?:^|_)f?mha(?:_|\d|$)")
"""In a kernel's name: Myelin's `_gemm_mha_v2`, and the `fmha` kernels before it."""


@dataclass(frozen=True)
class EngineLayer:
    """One kernel launch of an engine.

    kind    TensorRT's LayerType: "kgen" for generated kernels, "gemm", "PluginV3", ...
    tactic  name of the kernel, as far as TensorRT tells it.
    nodes   names of the ONNX nodes whose work it does; empty without detailed profiling verbosity.
    """

    name: str
    kind: str = ""
    tactic: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def is_fused_attention(self) -> bool:
        """Whether one kernel does both products and the softmax.

        A layer that is named after ONNX nodes, such as "/mha/query/MatMul", says nothing by its name.
        """
        if self.tactic:
            return bool(_FUSED_ATTENTION.search(self.tactic))
        return not any(node in self.name for node in self.nodes) and bool(_FUSED_ATTENTION.search(self.name))


def fused_attention(layers: Iterable[EngineLayer]) -> tuple[EngineLayer, ...]:
    """The layers that are whole attention sites in one kernel."""
    return tuple(layer for layer in layers if layer.is_fused_attention)


def layers_of_message(message: str) -> tuple[EngineLayer, ...]:
    """The layers of the verbose message that begins with LAYERS_MESSAGE, one a line."""
    return tuple(_layer_of_line(line) for line in message.splitlines() if line.startswith("Name: "))


def layers_of_inspector(text: str) -> tuple[EngineLayer, ...]:
    """The layers of the engine inspector's JSON.

    Raises EngineError when it is none, or when the engine was built without detailed profiling verbosity: then it has
    names at most, and no ONNX nodes.
    """
    try:
        entries = json.loads(text)["Layers"]
    except (ValueError, KeyError, TypeError):
        raise EngineError("the engine inspector's answer is not understood; use the TensorRT that built it") from None
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        raise EngineError(
            "the engine has no layer information; build it with profiling verbosity DETAILED (attngraft build does, "
            "trtexec takes --profilingVerbosity=detailed)"
        )
    return tuple(
        EngineLayer(
            str(entry.get("Name", "")),
            str(entry.get("LayerType", "")),
            str(entry.get("TacticName", "")),
            tuple(_nodes(str(entry.get("Metadata", "")))),
        )
        for entry in entries
    )


def _layer_of_line(line: str) -> EngineLayer:
    """`Name: N, LayerType: T, ..., TacticName: K, StreamId: 0, Metadata: [ONNX Layer: a][ONNX Layer: b]`."""
    facts, _, metadata = line.removeprefix("Name: ").partition(", Metadata: ")
    name, _, rest = facts.partition(", LayerType: ")
    tactic = re.search(r", TacticName: (\S*),", rest)
    return EngineLayer(name, rest.partition(",")[0], tactic.group(1) if tactic else "", tuple(_nodes(metadata)))


def _nodes(metadata: str) -> Iterator[str]:
    """Node names of a metadata text; entries follow each other directly or after a record separator (0x1e)."""
    for entry in metadata.split(_NODE_ENTRY)[1:]:
        yield entry.strip().rstrip("\x1e").removesuffix("]")

"""Attention fusions of other tools, on a file: how many fused attention nodes they leave, and how many softmaxes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
from onnx import ModelProto

from attngraft.onnx_graph import walk_graphs

__all__ = ["PEERS", "attention_nodes"]

FUSED_OPERATORS = frozenset(
    {
        "Attention",
        "DecoderMaskedMultiHeadAttention",
        "GroupQueryAttention",
        "MultiHeadAttention",
        "PackedMultiHeadAttention",
    }
)

OPTIMIZER_TYPES = ("bert", "gpt2", "bart", "unet", "clip", "vit")
"""Model types of ONNX Runtime's optimizer. Which fits, its user must know: the one that fuses most is counted."""


def attention_nodes(model: ModelProto) -> dict[str, int]:
    """Fused attention nodes, the standard operator included, and softmaxes, in all graphs."""
    types = [node.op_type for _, graph in walk_graphs(model.graph) for node in graph.node]
    types += [node.op_type for function in model.functions for node in function.node]
    return {"fused": sum(kind in FUSED_OPERATORS for kind in types), "softmaxes": types.count("Softmax")}


def _onnxruntime_optimizer(path: Path) -> Mapping[str, int]:
    """onnxruntime.transformers.optimizer with its own choice of level."""
    from onnxruntime.transformers.optimizer import optimize_model

    best: dict[str, int] | None = None
    failure: Exception | None = None
    for model_type in OPTIMIZER_TYPES:
        try:
            counts = attention_nodes(optimize_model(str(path), model_type=model_type).model)
        except Exception as error:  # whatever a fusion meets that it did not expect: the type does not fit
            failure = error
            continue
        if best is None or counts["fused"] > best["fused"]:
            best = counts
        if not counts["softmaxes"]:
            break
    if best is None:
        raise failure or RuntimeError("no model type was tried")
    return best


def _onnxruntime_session(path: Path) -> Mapping[str, int]:
    """What a session with every graph optimisation makes of the file."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return attention_nodes(onnx.load(options.optimized_model_filepath))


def _onnxscript(path: Path) -> Mapping[str, int]:
    """onnxscript.rewriter.ort_fusions."""
    import onnx_ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    model, _ = optimize_for_ort(onnx_ir.load(path))
    return attention_nodes(onnx_ir.to_proto(model))


def _onnxsim(path: Path) -> Mapping[str, int]:
    """onnxsim folds and simplifies."""
    import onnxsim

    model, _ = onnxsim.simplify(str(path), check_n=0)
    return attention_nodes(model)


PEERS: dict[str, Callable[[Path], Mapping[str, int]]] = {
    "onnxruntime-optimizer": _onnxruntime_optimizer,
    "onnxruntime-session": _onnxruntime_session,
    "onnxscript": _onnxscript,
    "onnxsim": _onnxsim,
}

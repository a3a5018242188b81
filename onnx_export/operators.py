"""attngraft.torch's operators in an exported file: nodes of attngraft's domain, with functions that any runtime runs.

`translations` and `symbolics` make the nodes while one or the other of PyTorch's exporters works; `add_functions`
completes the file that it wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from onnx.defs import OpSchema

from attngraft.contract import (
    CONTRACT_VERSION,
    DOMAIN,
    FUSED_ATTENTION,
    KEEP_DTYPES,
    MASKED_SOFTMAX,
    SCORE_DTYPES,
    FusedAttention,
    MaskedSoftmax,
)
from attngraft.errors import ModelError
from attngraft.lower.functions import FunctionTable
from attngraft.lower.onnx_function import PLUGIN_IDENTITY
from attngraft.onnx_export.dependencies import import_for_export
from attngraft.onnx_graph import dtype_name, node_label, walk_graphs

__all__ = ["add_functions", "symbolics", "translations"]

CONFIGURATIONS: Mapping[str, type[MaskedSoftmax | FusedAttention]] = {
    MASKED_SOFTMAX: MaskedSoftmax,
    FUSED_ATTENTION: FusedAttention,
}

ONNX_WORDS = {"float32": "float", "float64": "double"}
"""Types that have another name in ONNX's schemas."""

HEADS_DIM = 1
"""Of q [B,H,Sq,D] and k [B,Hk,Sk,D]."""


def translations() -> dict[Any, Callable[..., Any]]:
    """For torch.onnx.export(dynamo=True): what makes an operator's node of its arguments."""
    torch = import_for_export("torch")
    onnxscript = import_for_export("onnxscript")
    import_for_export("attngraft.torch")
    values, opset = onnxscript.values, onnxscript.values.Opset(DOMAIN, CONTRACT_VERSION)

    def masked_softmax(scores: Any, *rest: Any) -> Any:
        tensors, config = _softmax_node(scores, *rest)
        return values.Op(opset, MASKED_SOFTMAX, _schema(MASKED_SOFTMAX))(*tensors, **_attributes(config))

    def fused_attention(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        heads = [tensor.shape[HEADS_DIM] for tensor in (q, k)]
        tensors, config = _attention_node(q, k, v, *rest, heads=heads)
        context = values.Op(opset, FUSED_ATTENTION, _schema(FUSED_ATTENTION))(*tensors, **_attributes(config))
        return context, onnxscript.opset18.Constant(value_floats=[])  # no log-sum-exp, and nothing reads it

    operators = torch.ops.attngraft
    return {
        operators.masked_softmax.default: masked_softmax,
        operators.fused_attention.default: fused_attention,
    }


@contextmanager
def symbolics(opset: int) -> Iterator[None]:
    """The same for torch.onnx.export(dynamo=False), as long as the context lasts."""
    torch = import_for_export("torch")
    onnx_exporter = import_for_export("torch.onnx")
    import_for_export("attngraft.torch")
    parse = import_for_export("torch.onnx.symbolic_helper").parse_args

    @parse(*"vvvvv", *"fiiifi")
    def masked_softmax(
        graph: Any, scores: Any, bias: Any, keep: Any, lengths: Any, starts: Any,
        scale: float, causal: int, left: int, right: int, softcap: float, empty_rows: int,
    ) -> Any:  # fmt: skip
        masks = map(_given, (bias, keep, lengths, starts))
        tensors, config = _softmax_node(scores, *masks, scale, causal, left, right, softcap, empty_rows)
        return _made(graph, MASKED_SOFTMAX, tensors, config)

    @parse(*"vvvvvvv", *"fiiifi", *"bb")
    def fused_attention(
        graph: Any, q: Any, k: Any, v: Any, bias: Any, keep: Any, lengths: Any, starts: Any,
        scale: float, causal: int, left: int, right: int, softcap: float, empty_rows: int, exact: bool, with_sum: bool,
    ) -> Any:  # fmt: skip
        masks = map(_given, (bias, keep, lengths, starts))
        heads = [tensor.type().varyingSizes()[HEADS_DIM] for tensor in (q, k)]
        scalars = (scale, causal, left, right, softcap, empty_rows)
        tensors, config = _attention_node(q, k, v, *masks, *scalars, exact, with_sum, heads=heads)
        nothing = graph.op("Constant", value_t=torch.empty(0))
        return _made(graph, FUSED_ATTENTION, tensors, config), nothing

    functions = {"attngraft::masked_softmax": masked_softmax, "attngraft::fused_attention": fused_attention}
    for name, function in functions.items():
        onnx_exporter.register_custom_op_symbolic(name, function, opset)
    try:
        yield
    finally:
        for name in functions:
            onnx_exporter.unregister_custom_op_symbolic(name, opset)


def add_functions(path: Path) -> None:
    """Gives the operators' nodes in a file the functions of standard operators that they stand for, in place. External
    data is left alone. Raises ModelError for tensors that the operators do not take."""
    model = onnx.load(path, load_external_data=False)
    functions = FunctionTable(model)
    for _, graph in walk_graphs(model.graph):
        types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output)}
        for node in graph.node:
            if node.domain == DOMAIN:
                _complete(node, types[node.output[0]], functions)
    functions.add_to(model)
    path.write_bytes(model.SerializeToString())


def _complete(node: onnx.NodeProto, output: onnx.TypeProto.Tensor, functions: FunctionTable) -> None:
    """Scores and probabilities have one shape and type, and q and context one type: the node's output says both."""
    if (name := dtype_name(output.elem_type)) not in SCORE_DTYPES:
        raise ModelError(
            f"{node_label(node)}: {name} is not one of {', '.join(SCORE_DTYPES)}; export the module in one"
        )
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    config = CONFIGURATIONS[node.op_type].from_attributes(attributes)
    if overload := functions.overload(config, output.elem_type, len(output.shape.dim)):
        node.overload = overload


def _softmax_node(*arguments: Any) -> tuple[list[Any], MaskedSoftmax]:
    """Inputs and configuration of the node for the operator's arguments."""
    from attngraft.torch.arguments import OPERAND_COUNT, config_of, operands_of

    scores, masks, scalars = arguments[0], arguments[1 : 1 + OPERAND_COUNT], arguments[1 + OPERAND_COUNT :]
    config = config_of(MaskedSoftmax, operands_of(masks), scalars)
    return [scores, *(mask for mask in masks if mask is not None)], config


def _attention_node(*arguments: Any, heads: Sequence[Any]) -> tuple[list[Any], FusedAttention]:
    """The same; `heads` are q's and k's, where the exporter knows them."""
    from attngraft.torch.arguments import OPERAND_COUNT, config_of, operands_of

    tensors, masks = arguments[:3], arguments[3 : 3 + OPERAND_COUNT]
    *scalars, exact, with_log_sum_exp = arguments[3 + OPERAND_COUNT :]
    if with_log_sum_exp:
        raise ModelError("fused_attention: its node has no log-sum-exp; export the module without return_lse")
    known = all(isinstance(count, int) for count in heads)
    fields = {"heads": heads[0], "kv_heads": heads[1]} if known else {}
    config = config_of(FusedAttention, operands_of(masks), scalars, exact=int(exact), **fields)
    return [*tensors, *(mask for mask in masks if mask is not None)], config


def _attributes(config: MaskedSoftmax | FusedAttention) -> dict[str, str | float | int]:
    return {**config.attributes(), **PLUGIN_IDENTITY}


def _schema(name: str) -> OpSchema:
    """What onnxscript asks of an operator: tensors of any number and kind, and its attributes."""
    kinds = {str: OpSchema.AttrType.STRING, float: OpSchema.AttrType.FLOAT, int: OpSchema.AttrType.INT}
    types = [f"tensor({ONNX_WORDS.get(dtype, dtype)})" for dtype in (*SCORE_DTYPES, *KEEP_DTYPES, "float64")]
    attributes = _attributes(CONFIGURATIONS[name]())
    tensors = OpSchema.FormalParameter(
        "tensors", "T", param_option=OpSchema.FormalParameterOption.Variadic, is_homogeneous=False
    )
    return OpSchema(
        name,
        DOMAIN,
        CONTRACT_VERSION,
        inputs=[tensors],
        outputs=[OpSchema.FormalParameter("output", "T")],
        type_constraints=[("T", types, "")],
        attributes=[OpSchema.Attribute(key, kinds[type(value)], required=False) for key, value in attributes.items()],
    )


def _given(argument: Any) -> Any:
    """An argument of a symbolic function, with None where the module gave None."""
    return None if hasattr(argument, "node") and argument.node().mustBeNone() else argument


def _made(graph: Any, name: str, tensors: Sequence[Any], config: MaskedSoftmax | FusedAttention) -> Any:
    """The output of a new node of TorchScript's graph, with its type."""
    suffixes = {str: "s", float: "f", int: "i"}
    attributes = {f"{key}_{suffixes[type(value)]}": value for key, value in _attributes(config).items()}
    output = graph.op(f"{DOMAIN}::{name}", *tensors, **attributes)
    output.setType(_output_type(name, [tensor.type() for tensor in tensors]))
    return output


def _output_type(name: str, types: Sequence[Any]) -> Any:
    """The first tensor's; a context has as many columns as the values."""
    if name == MASKED_SOFTMAX:
        return types[0]
    return types[0].with_sizes([*types[0].varyingSizes()[:-1], types[2].varyingSizes()[-1]])

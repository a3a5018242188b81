"""Surgery: the right nodes go, everything else stays as it was, down to its metadata."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from chain_models import FORMS, LOWEST, MINUS_INFINITY, attention
from onnx import ModelProto, NodeProto

from attngraft.contract import DOMAIN, MASKED_SOFTMAX, MaskedSoftmax
from attngraft.errors import RewriteError
from attngraft.lower import choose_lowerings, lower_model, strip_functions
from attngraft.match import match_model
from attngraft.verify import verify_models


TWO_SITES = """
    s = MatMul(q, kt) r = Softmax<axis = -1>(s) u = MatMul(r, k) x = MatMul(u, kt) y = Mul(x, c)
    p = Softmax<axis = -1>(y)
"""
"""Attention whose result is the query of another."""


def lower_all(model: ModelProto) -> ModelProto:
    sites = match_model(model)
    return lower_model(model, sites, {site.name: "softmax" for site in sites.sites})


def softmax_nodes(model: ModelProto) -> list[NodeProto]:
    return [node for node in model.graph.node if node.op_type == MASKED_SOFTMAX]


def attributes(node: NodeProto) -> dict:
    return {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}


def test_node_carries_what_the_plugin_needs() -> None:
    (node,) = softmax_nodes(lower_all(FORMS["where -1e9"].model()))
    assert node.domain == DOMAIN
    found = attributes(node)
    assert found["plugin_version"] == b"1"
    assert found["plugin_namespace"] == b"attngraft"
    assert MaskedSoftmax.from_attributes(found) == MaskedSoftmax(operands=("keep",), scale=0.5, empty_rows="uniform")
    assert set(found) == {*MaskedSoftmax().attributes(), "plugin_version", "plugin_namespace"}


def test_untouched_parts_are_carried_over() -> None:
    model = FORMS["sqrt(scale) on query and key, guard"].model()
    model.producer_name, model.producer_version, model.model_version, model.domain = "maker", "7", 3, "some.domain"
    model.doc_string = "about the model"
    model.metadata_props.add(key="key", value="value")
    model.opset_import.add(domain="com.microsoft", version=1)
    model.graph.doc_string = "about the graph"
    model.graph.name = "its name"
    model.graph.metadata_props.add(key="graph", value="metadata")
    model.graph.quantization_annotation.add(tensor_name="q").quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="r"
    )
    model.graph.input[0].doc_string = "queries"
    model.graph.input[0].type.denotation = "TENSOR"
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("kt", 1, ["B", 2, 4, "T"]))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("p", 1, ["B", 2, "S", "T"]))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("n", 9, ["B", 2, "S", "T"]))
    transpose, values = model.graph.node[0], model.graph.node[-1]
    for node in (transpose, values):
        node.name, node.doc_string = f"named {node.op_type}", "about the node"
        node.metadata_props.add(key="node", value="metadata")
    before = model.SerializeToString()

    lowered = lower_all(model)

    assert model.SerializeToString() == before
    for field in ("producer_name", "producer_version", "model_version", "domain", "doc_string", "metadata_props"):
        assert getattr(lowered, field) == getattr(model, field)
    for field in ("name", "doc_string", "metadata_props", "quantization_annotation", "input", "output"):
        assert getattr(lowered.graph, field) == getattr(model.graph, field)
    assert lowered.graph.node[0] == transpose
    assert lowered.graph.node[-1] == values
    assert [value.name for value in lowered.graph.value_info] == ["kt", "p"]
    assert {entry.domain: entry.version for entry in lowered.opset_import} == {
        "": 17,
        "com.microsoft": 1,
        "attngraft": 1,
    }


def test_folded_scales_and_guard_are_gone() -> None:
    lowered = lower_all(FORMS["sqrt(scale) on query and key, guard"].model())
    assert [node.op_type for node in lowered.graph.node] == ["Transpose", "MatMul", "MaskedSoftmax", "MatMul"]
    assert not lowered.graph.initializer


def test_node_keeps_the_softmax_name_and_the_output_name() -> None:
    model = FORMS["bare"].model()
    model.graph.node[2].name = "encoder/attention/softmax"
    (node,) = softmax_nodes(lower_all(model))
    assert node.name == "encoder/attention/softmax"
    assert list(node.output) == ["p"]


def test_probabilities_that_are_an_output_stay_one() -> None:
    outputs = "float[B,2,S,4] out, float[B,2,S,T] p"
    model = attention(
        "s = MatMul(q, kt) t = Mul(s, c) p = Softmax<axis = -1>(t)", constants={"c": 0.5}, outputs=outputs
    )
    lowered = lower_all(model)
    assert [value.name for value in lowered.graph.output] == ["out", "p"]
    assert verify_models(model, lowered).passed


def test_scores_that_are_an_output_stay_one() -> None:
    outputs = "float[B,2,S,4] out, float[B,2,S,T] t"
    model = attention(
        "s = MatMul(q, kt) t = Mul(s, c) p = Softmax<axis = -1>(t)", constants={"c": 0.5}, outputs=outputs
    )
    lowered = lower_all(model)
    assert "Mul" in [node.op_type for node in lowered.graph.node]
    assert verify_models(model, lowered).passed


def test_inverted_condition_is_made_once() -> None:
    chain = """
        s = MatMul(q, kt) m = Where(padded, f, s) r = Softmax<axis = -1>(m) u = MatMul(r, k) x = MatMul(u, kt)
        y = Where(padded, f, x) p = Softmax<axis = -1>(y)
    """
    model = attention(chain, inputs=("padded",), constants={"f": MINUS_INFINITY})
    lowered = lower_all(model)
    operators = [node.op_type for node in lowered.graph.node]
    assert operators.count("MaskedSoftmax") == 2
    assert operators.count("Not") == 1
    assert verify_models(model, lowered).passed


def test_one_configuration_needs_no_overload() -> None:
    lowered = lower_all(FORMS["bare"].model())
    assert lowered.ir_version == 8
    assert [function.overload for function in lowered.functions] == [""]


def test_two_configurations_are_overloads() -> None:
    chain = """
        s = MatMul(q, kt) t = Mul(s, c) r = Softmax<axis = -1>(t) u = MatMul(r, k) x = MatMul(u, kt)
        y = Where(condition, x, f) p = Softmax<axis = -1>(y)
    """
    model = attention(chain, inputs=("condition",), constants={"c": 0.5, "f": LOWEST})
    lowered = lower_all(model)
    assert lowered.ir_version == 10
    assert [function.overload for function in lowered.functions] == ["", "variant2"]
    assert [node.overload for node in softmax_nodes(lowered)] == ["", "variant2"]
    onnx.checker.check_model(lowered)
    assert verify_models(model, lowered).passed


def test_old_ir_version_is_raised_for_functions() -> None:
    model = attention("s = MatMul(q, kt) p = Softmax<axis = -1>(s)", ir_version=6, opset=12)
    assert lower_all(model).ir_version == 8


def test_strip_functions_leaves_only_the_nodes() -> None:
    lowered = lower_all(attention(TWO_SITES, constants={"c": 0.5}))
    stripped = strip_functions(lowered)
    assert len(lowered.functions) == 2
    assert not stripped.functions
    assert len(softmax_nodes(stripped)) == 2
    assert all(not node.overload for node in softmax_nodes(stripped))


def test_lowering_again_adds_to_what_is_there() -> None:
    model = attention(TWO_SITES, constants={"c": 0.5})
    first, second = match_model(model).sites
    once = lower_model(model, match_model(model), {first.name: "softmax"})
    twice = lower_all(once)
    assert len(softmax_nodes(twice)) == 2
    assert verify_models(model, twice).passed
    assert len(match_model(twice).others) == 2


def test_sequences_and_optional_values_elsewhere_in_the_graph() -> None:
    model = FORMS["mul"].model()
    for node in (
        onnx.helper.make_node("SequenceConstruct", ["q", "k"], ["pair"]),
        onnx.helper.make_node("SequenceLength", ["pair"], ["length"]),
        onnx.helper.make_node("OptionalHasElement", ["maybe"], ["has"]),
    ):
        model.graph.node.append(node)
    element = onnx.helper.make_tensor_type_proto(1, None)
    sequence = onnx.helper.make_sequence_type_proto(element)
    model.graph.value_info.append(onnx.helper.make_value_info("pair", sequence))
    model.graph.input.append(onnx.helper.make_value_info("maybe", onnx.helper.make_optional_type_proto(element)))
    model.graph.output.append(onnx.helper.make_tensor_value_info("length", 7, []))
    model.graph.output.append(onnx.helper.make_value_info("has", onnx.helper.make_tensor_type_proto(9, [])))
    lowered = lower_all(model)
    assert len(softmax_nodes(lowered)) == 1
    assert lowered.graph.input == model.graph.input
    assert lowered.graph.value_info == model.graph.value_info
    onnx.checker.check_model(lowered)


def test_sparse_initializers_and_type_attributes_are_carried_over() -> None:
    model = FORMS["mul"].model()
    values = onnx.helper.make_tensor("sparse", 1, [1], [2.0])
    indices = onnx.helper.make_tensor("sparse_indices", 7, [1], [3])
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4]))
    model.graph.node.append(
        onnx.helper.make_node("Optional", [], ["nothing"], type=onnx.helper.make_tensor_type_proto(1, None))
    )
    model.graph.node.append(onnx.helper.make_node("OptionalHasElement", ["nothing"], ["has"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("has", 9, []))
    lowered = lower_all(model)
    assert lowered.graph.sparse_initializer == model.graph.sparse_initializer
    assert list(lowered.graph.node)[-2:] == list(model.graph.node)[-2:]


def test_nothing_chosen_changes_nothing() -> None:
    model = FORMS["mul"].model()
    assert lower_model(model, match_model(model), {}) == model


def test_sites_in_subgraphs() -> None:
    branch = """
        kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) t = Mul(s, c) m = Where(keep, t, f)
        p = Softmax<axis = -1>(m) {name} = MatMul(p, v)
    """
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (bool flag, float[B,2,S,4] q, float[B,2,T,4] k, float[B,2,T,4] v, bool[B,1,1,T] mask) => (float[B,2,S,4] out)
        {{
            keep = Identity(mask)
            out = If(flag) <
                then_branch = yes () => (float[B,2,S,4] y) {{ {branch.format(name="y")} }},
                else_branch = no () => (float[B,2,S,4] n) {{ n = Identity(q) }}
            >
        }}
    """)
    model.graph.node[1].name = "choice"
    for name, value in (("c", 0.5), ("f", MINUS_INFINITY)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(value), name))
    (site,) = match_model(model).sites
    assert site.graph == "choice/then_branch"
    assert site.config == MaskedSoftmax(operands=("keep",), scale=0.5)
    lowered = lower_all(model)
    onnx.checker.check_model(lowered)
    (choice,) = (node for node in lowered.graph.node if node.op_type == "If")
    inner = next(attribute.g for attribute in choice.attribute if attribute.name == "then_branch")
    assert [node.op_type for node in inner.node] == ["Transpose", "MatMul", "MaskedSoftmax", "MatMul"]
    assert verify_models(model, lowered).passed


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"nowhere": "softmax"}, "'nowhere' is not in the model"),
        ({"p": "faster"}, "'faster' is unknown"),
    ],
)
def test_wrong_choices(choices: dict, message: str) -> None:
    model = FORMS["bare"].model()
    with pytest.raises(RewriteError, match=message):
        lower_model(model, match_model(model), choices)


def test_a_site_that_cannot_be_lowered_is_refused_with_its_reason() -> None:
    model = attention("s = MatMul(q, kt) p = Softmax<axis = -1>(s)", dtype="double")
    for lowering in ("softmax", "attention"):
        with pytest.raises(RewriteError, match=f"{lowering}.*float64"):
            lower_model(model, match_model(model), {"p": lowering})


def test_choices() -> None:
    plain = match_model(FORMS["bare"].model())
    observed = match_model(
        attention("s = MatMul(q, kt) p = Softmax<axis = -1>(s)", outputs="float[B,2,S,4] out, float[B,2,S,T] p")
    )
    assert choose_lowerings(plain, "auto")[0] == {"p": "keep"}
    assert "makes the model slower" in choose_lowerings(plain, "auto")[1]["p"]
    assert choose_lowerings(observed, "auto")[0] == {"p": "softmax"}
    assert choose_lowerings(plain, "softmax") == ({"p": "softmax"}, {})
    assert choose_lowerings(plain, "keep")[0] == {"p": "keep"}
    assert choose_lowerings(plain, "native") == ({"p": "native"}, {})
    choices, reasons = choose_lowerings(plain, "attention")
    assert choices == {"p": "attention"} and "layout bhsd" in reasons["p"]
    with pytest.raises(RewriteError, match="unknown"):
        choose_lowerings(plain, "best")


def test_softmax_is_refused_where_no_site_can_take_it() -> None:
    doubles = match_model(attention("s = MatMul(q, kt) p = Softmax<axis = -1>(s)", dtype="double"))
    assert len(doubles.sites) == 1
    with pytest.raises(RewriteError, match="p: scores are float64; .* no attention site"):
        choose_lowerings(doubles, "softmax")
    assert choose_lowerings(doubles, "auto")[0] == {"p": "keep"}

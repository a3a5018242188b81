"""Editing graphs: nodes in order, left-overs gone, subgraphs and outer tensors included, the model itself unchanged."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto

from attngraft.errors import RewriteError
from attngraft.lower.surgery import Surgery

CHAIN = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N] x) => (float[N] out) {
        [first] a = Abs(x)
        [second] b = Neg(a)
        [third] c = Exp(b)
        [last] out = Sqrt(c)
    }
"""

BRANCHES = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (bool flag, float[N] x) => (float[N] out) {
        outer = Abs(x)
        kept = Neg(x)
        [choice] out = If(flag) <
            then_branch = yes () => (float[N] y) { z = Add(outer, factor) y = Mul(z, kept) },
            else_branch = no () => (float[N] n) { n = Identity(kept) }
        >
    }
"""


def parsed(text: str, **constants: float) -> ModelProto:
    model = onnx.parser.parse_model(text)
    for name, value in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(value), name))
    return model


def operators(graph: onnx.GraphProto) -> list[str]:
    return [node.op_type for node in graph.node]


def node(op_type: str, *inputs: str, output: str) -> NodeProto:
    return onnx.helper.make_node(op_type, inputs, [output])


def test_nothing_done_is_the_same_model() -> None:
    for text in (CHAIN, BRANCHES):
        model = parsed(text, factor=2.0)
        assert Surgery(model).to_proto() == model


def test_nodes_stand_in_the_order_in_which_they_were_put() -> None:
    model = parsed(CHAIN)
    before = model.SerializeToString()
    surgery = Surgery(model)
    graph = surgery.graph("")
    anchor = graph.maker("c")
    new = graph.insert_before(anchor, node("Ceil", "b", output="d"))
    graph.insert_before(anchor, node("Floor", "d", output="e"))
    graph.insert_before(new, node("Sin", "a", output="f"))
    graph.set_input(anchor, 0, "e")
    edited = surgery.to_proto()
    assert operators(edited.graph) == ["Abs", "Neg", "Sin", "Ceil", "Floor", "Exp", "Sqrt"]
    assert [n.proto.op_type for n in graph.nodes()] == operators(edited.graph)
    assert list(edited.graph.node[5].input) == ["e"]
    assert model.SerializeToString() == before


def test_a_released_output_is_made_by_another_node_and_the_rest_goes() -> None:
    model = parsed(CHAIN)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("b", 1, ["N"]))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("c", 1, ["N"]))
    surgery = Surgery(model)
    graph = surgery.graph("")
    old = graph.maker("c")
    graph.release(old)
    new = graph.insert_before(old, node("Tanh", "a", output="c"))
    assert graph.maker("c") is new
    graph.remove_if_dead(old)
    edited = surgery.to_proto()
    assert operators(edited.graph) == ["Abs", "Tanh", "Sqrt"]
    assert [value.name for value in edited.graph.value_info] == ["c"]
    onnx.checker.check_model(edited)


def test_what_is_read_or_an_output_stays() -> None:
    surgery = Surgery(parsed(CHAIN))
    graph = surgery.graph("")
    graph.remove_if_dead(graph.maker("b"))
    graph.remove_if_dead(graph.maker("out"))
    assert len(surgery.to_proto().graph.node) == 4


def test_a_tensor_read_twice_by_one_node_is_read_twice() -> None:
    model = parsed("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x) => (float[N] out) { a = Abs(x) out = Add(a, a) }
    """)
    surgery = Surgery(model)
    graph = surgery.graph("")
    graph.set_input(graph.maker("out"), 0, "x")
    graph.remove_if_dead(graph.maker("a"))
    assert operators(surgery.to_proto().graph) == ["Abs", "Add"]
    graph.set_input(graph.maker("out"), 1, "x")
    graph.remove_if_dead(graph.maker("a"))
    assert operators(surgery.to_proto().graph) == ["Add"]


def test_what_only_a_branch_read_goes_from_the_outer_graph() -> None:
    model = parsed(BRANCHES, factor=2.0)
    surgery = Surgery(model)
    branch = surgery.graph("choice/then_branch")
    maker = branch.maker("z")
    branch.set_input(branch.maker("y"), 0, "kept")
    branch.remove_if_dead(maker)
    edited = surgery.to_proto()
    assert operators(edited.graph) == ["Neg", "If"]
    assert not edited.graph.initializer
    (inner,) = (a.g for a in edited.graph.node[1].attribute if a.name == "then_branch")
    assert operators(inner) == ["Mul"]
    onnx.checker.check_model(edited)


def test_what_a_branch_still_reads_stays_in_the_outer_graph() -> None:
    surgery = Surgery(parsed(BRANCHES, factor=2.0))
    graph = surgery.graph("")
    graph.remove_if_dead(graph.maker("outer"))
    assert operators(surgery.to_proto().graph) == ["Abs", "Neg", "If"]


def test_an_outer_tensor_that_is_a_branch_s_output_stays() -> None:
    model = parsed(BRANCHES, factor=2.0)
    (inner,) = (a.g for a in model.graph.node[2].attribute if a.name == "else_branch")
    del inner.node[:]
    inner.output[0].name = "kept"
    surgery = Surgery(model)
    branch = surgery.graph("choice/then_branch")
    branch.set_input(branch.maker("y"), 1, "x")
    surgery.graph("").remove_if_dead(surgery.graph("").maker("kept"))
    assert "Neg" in operators(surgery.to_proto().graph)


def test_initializers_come_and_go() -> None:
    model = parsed(CHAIN.replace("Neg(a)", "Mul(a, old)"), old=2.0, other=3.0)
    surgery = Surgery(model)
    graph = surgery.graph("")
    name = surgery.free_name("old")
    assert name == "old_2"
    graph.add_initializer(onnx.numpy_helper.from_array(np.float32(5), name))
    graph.set_input(graph.maker("b"), 1, name)
    # `other` was read by nothing before either: it is not ours to remove.
    assert [tensor.name for tensor in surgery.to_proto().graph.initializer] == ["other", "old_2"]


def test_another_node_in_the_same_place() -> None:
    surgery = Surgery(parsed(CHAIN))
    graph = surgery.graph("")
    graph.set_node(graph.maker("c"), node("Mul", "a", "x", output="c"))
    graph.remove_if_dead(graph.maker("b"))
    edited = surgery.to_proto()
    assert operators(edited.graph) == ["Abs", "Mul", "Sqrt"]
    assert list(edited.graph.node[1].input) == ["a", "x"]


def test_names_are_free_everywhere() -> None:
    surgery = Surgery(parsed(BRANCHES, factor=2.0))
    assert surgery.free_name("z") == "z_2"
    assert surgery.free_name("z") == "z_3"
    assert surgery.free_name("choice") == "choice_2"
    assert surgery.free_name("new") == "new"


def test_branches_of_nodes_of_one_name_are_refused() -> None:
    model = parsed(BRANCHES, factor=2.0)
    second = model.graph.node.add()
    second.CopyFrom(model.graph.node[2])
    second.output[0] = "again"
    surgery = Surgery(model)
    assert surgery.to_proto() == model
    with pytest.raises(RewriteError, match="give them different names"):
        surgery.graph("choice/then_branch")


def test_lists_of_graphs_are_carried_over() -> None:
    model = parsed(CHAIN)
    inner = parsed(CHAIN).graph
    model.graph.node.append(
        onnx.helper.make_node("Several", ["a"], ["s"], "several", domain="custom", graphs=[inner] * 2)
    )
    surgery = Surgery(model)
    branch = surgery.graph("several/graphs[1]")
    branch.set_input(branch.maker("out"), 0, "x")
    branch.remove_if_dead(branch.maker("c"))
    first, second = surgery.to_proto().graph.node[-1].attribute[0].graphs
    assert first == inner
    assert operators(second) == ["Sqrt"]

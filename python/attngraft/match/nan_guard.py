"""What makes zeros of NaN behind a softmax: a Where on IsNaN, or torch.nan_to_num, which tests for infinities too.

A probability is never infinite, so the tests for infinities never hold and their Wheres change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import NodeProto

from attngraft.match.operators import is_standard
from attngraft.onnx_graph import GraphView

__all__ = ["NanGuard", "nan_guard"]

TESTS = ("IsNaN", "IsInf", "Greater", "Less", "And", "Cast", "Not", "Equal")
MAX_STEPS = 8
"""nan_to_num has three Wheres."""


@dataclass(frozen=True)
class NanGuard:
    """`tensor` equals the probabilities; `guard`: with zeros in place of NaN."""

    tensor: str
    guard: bool


def nan_guard(view: GraphView, probabilities: str) -> NanGuard | None:
    """The end of the chain of Wheres behind the probabilities, if nothing else reads what lies in between."""
    chain = _Chain(view, probabilities)
    found = None
    for _ in range(MAX_STEPS):
        if not chain.extend():
            break
        if chain.is_closed():
            found = NanGuard(chain.tensor, chain.guard)
    return found


class _Chain:
    """Wheres one behind the other, with the nodes that test the probabilities for them."""

    def __init__(self, view: GraphView, probabilities: str) -> None:
        self._view = view
        self.tensor = probabilities
        self.guard = False
        self._values = {probabilities}
        self._nodes: list[NodeProto] = []

    def extend(self) -> bool:
        """Goes on to the next Where that keeps the probabilities; False if there is none."""
        readers = [node for node in self._view.readers(self.tensor) if is_standard(node, "Where")]
        wheres = [node for node in readers if node.input[2] == self.tensor]
        if len(wheres) != 1:
            return False
        (where,) = wheres
        tests = self._tests(where.input[0])
        if tests is None:
            return False
        if _tests_nan_alone(tests):
            if self._view.scalar(where.input[1]) != 0:
                return False
            self.guard = True
        elif not self._never_holds(where.input[0]):
            return False
        self._nodes += [*tests, where]
        self.tensor = where.output[0]
        self._values.add(self.tensor)
        return True

    def is_closed(self) -> bool:
        """Whether everything before the last Where is read by the chain alone."""
        before = (self._values - {self.tensor}) | {name for node in self._nodes for name in node.output}
        return all(self._view.is_only_read_by(name, *self._nodes) for name in before - {self.tensor})

    def _tests(self, condition: str) -> list[NodeProto] | None:
        """The nodes between the probabilities and a condition; None if anything else goes into it."""
        found: list[NodeProto] = []
        pending = [condition]
        while pending:
            name = pending.pop()
            if name in self._values or self._view.is_constant(name):
                continue
            node = self._view.maker(name)
            if not is_standard(node, *TESTS) or len(found) > len(TESTS):
                return None
            found.append(node)
            pending += node.input
        return found

    def _never_holds(self, condition: str) -> bool:
        """IsInf of probabilities, alone or as part of an And."""
        node = self._view.maker(condition)
        if is_standard(node, "And"):
            return any(map(self._never_holds, node.input))
        if is_standard(node, "Cast"):
            return self._never_holds(node.input[0])
        return is_standard(node, "IsInf")


def _tests_nan_alone(tests: list[NodeProto]) -> bool:
    return any(node.op_type == "IsNaN" for node in tests) and all(node.op_type in ("IsNaN", "Cast") for node in tests)

"""Reads elements and dimensions of a graph's tensors as functions of indices and sizes.

From the top down: `element(mask, (b, h, i, j))` asks the node that makes the mask, which asks for elements of its
inputs at indices of its own. What no rule covers is an unknown element of that tensor, so every answer is true, if not
always useful.

One assumption is made, that of exporters and of shape inference: where two dimensions broadcast against each other and
neither is known to be 1, they are equal. An exact reader does without it, and without numbers that data decide.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

import numpy as np
from onnx import NodeProto

from attngraft.match.meaning import arithmetic, dimensions, positions
from attngraft.match.meaning.formulas import (
    AtLeastZero,
    IsZero,
    Junction,
    NonZero,
    NotReadable,
    Value,
    as_formula,
    with_source,
)
from attngraft.match.meaning.polynomials import ONE, ZERO, Element, Index, Polynomial, Size
from attngraft.match.meaning.tables import look_up, stored_table
from attngraft.match.operators import attribute
from attngraft.onnx_graph import GraphView, numpy_dtype

__all__ = ["Dims", "Reader"]

Dims = tuple[Polynomial, ...]

MAX_DEPTH = 90
"""Nested questions before a tensor is taken as unknown. Masks of real models nest 40 deep; Python's stack holds about
1000 frames and a question takes up to four."""

SEQUENCE_AXES = (-2, -1)
"""Axes of queries and keys. Sizes along them must be proved equal; along the batch a symbol may stand for another,
since exporters lose the equality of two inputs' batches where nothing checks it."""

MISFITS = (IndexError, ValueError, ZeroDivisionError)
"""What rules raise in a graph that is not valid, where ranks do not fit each other."""

ELEMENT_RULES = {**arithmetic.RULES, **positions.RULES}


class Reader:
    """Reads one graph, and the graphs around it. Answers are remembered, so that layers share them.

    exact   for answers on which more hangs than how a mask is written: nothing is assumed, and numbers are read from
            sizes and from constants alone. What needs anything else raises NotReadable.
    """

    def __init__(self, view: GraphView, exact: bool = False) -> None:
        self._view = weakref.ref(view)
        self._exact = exact
        self._dims: dict[str, Dims | None] = {}
        self._elements: dict[tuple[str, Dims], Value] = {}
        self._tables: dict[str, np.ndarray | None] = {}
        self._zero_one: set[str] = set()
        self._depth = 0
        self._fresh = 0

    def owner(self, name: str) -> tuple[GraphView, NodeProto | None]:
        """The view of the graph that makes `name`, with the node; without a node for inputs and initializers."""
        home = self._view()
        assert home is not None  # the caller holds it
        view: GraphView | None = home
        while view is not None:
            node = view.maker(name)
            if node is not None:
                return view, node
            view = view.outer
        return home, None

    def node(self, name: str) -> NodeProto | None:
        """The node of the standard domain that makes `name`."""
        _, node = self.owner(name)
        return node if node is not None and node.domain in ("", "ai.onnx") else None

    def kind(self, name: str) -> str:
        """NumPy's kind of the element type: "b", "i", "u", "f" (bfloat16 included), or "?"."""
        number = self.owner(name)[0].dtype(name)
        if number == 0:
            return "?"
        kind = numpy_dtype(number).kind
        return "f" if kind == "V" else kind

    def dtype(self, name: str) -> int:
        """ONNX's number of the element type."""
        return self.owner(name)[0].dtype(name)

    def declared_dims(self, name: str) -> Dims | None:
        """The dimensions as the model and shape inference state them."""
        shape = self.owner(name)[0].shape(name)
        if shape is None:
            return None
        return tuple(
            Polynomial.of(dim) if isinstance(dim, int) else _declared(dim or f"{name}[{axis}]")
            for axis, dim in enumerate(shape)
        )

    def dims(self, name: str) -> Dims | None:
        """The dimensions of a tensor; None when its rank is not known."""
        stack = [(name, False)]
        entered: set[str] = set()  # a graph that is not valid may have circles
        while stack:
            current, sources_are_known = stack.pop()
            if current in self._dims:
                continue
            if sources_are_known:
                self._dims[current] = self._compute_dims(current)
                continue
            # Inputs first, without recursion: hidden states hang on hundreds of nodes.
            entered.add(current)
            stack.append((current, True))
            stack += [(source, False) for source in self._shape_sources(current) if source not in entered]
        return self._dims[name]

    def _shape_sources(self, name: str) -> Iterator[str]:
        node = self.node(name)
        if node is not None:
            yield from dimensions.sources(node)

    def _compute_dims(self, name: str) -> Dims | None:
        declared = self.declared_dims(name)
        if declared is not None and all(dim.constant is not None for dim in declared):
            return declared
        node = self.node(name)
        own = None
        place = 0 if node is None else list(node.output).index(name)
        if node is not None and (place == 0 or node.op_type == "Split") and self._depth < MAX_DEPTH:
            self._depth += 1
            try:
                own = dimensions.output_dims(self, node, place)
            except (NotReadable, *MISFITS):
                own = None
            finally:
                self._depth -= 1
        if own is None or declared is None or len(own) != len(declared):
            return declared if own is None else own
        return tuple(
            known if known.constant is not None else computed for computed, known in zip(own, declared, strict=True)
        )

    def rank(self, name: str) -> int:
        """The rank. Raises NotReadable when it is not known."""
        return len(self.known_dims(name))

    def known_dims(self, name: str) -> Dims:
        """The dimensions. Raises NotReadable when the rank is not known."""
        dims = self.dims(name)
        if dims is None:
            raise NotReadable
        return dims

    def element(self, name: str, index: Dims) -> Value:
        """The element at an index, which has one entry for each axis."""
        key = (name, index)
        if key not in self._elements:
            self._elements[key] = self._read(name, index)
        return self._elements[key]

    def _read(self, name: str, index: Dims) -> Value:
        _, node = self.owner(name)
        try:
            if node is None or node.op_type == "Constant":
                table = self.table(name)
                if table is None:
                    return self.unknown(name, index)
                value: Value = look_up(table, index)
                return as_formula(value) if table.dtype.kind == "b" else value
            rule = ELEMENT_RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            if rule is None or self._depth >= MAX_DEPTH or name != node.output[0]:
                return self.unknown(name, index)
            self._depth += 1
            try:
                value = rule(self, node, index)
            finally:
                self._depth -= 1
        except (NotReadable, *MISFITS):
            return self.unknown(name, index)
        if isinstance(value, (AtLeastZero, IsZero, Junction)) and self.kind(name) == "b":
            if value.source is None or not self.is_plain(value.source.element):  # the innermost is the smallest
                return with_source(value, NonZero(Element(name, index, "b")))
            return value
        inner = _sole_element(value)
        if inner is None or (self.is_plain(inner) and inner.kind in "biu"):
            return value
        outer = Element(name, index, self.kind(name))
        return self.unknown(name, index) if self.is_plain(outer) and outer.kind in "biu" else value

    def is_plain(self, element: Element) -> bool:
        """Whether the element's tensor is read as a whole: each axis by one index that runs over all of it, or it has
        size 1. Rows beyond the batch that the model never reads are taken not to exist."""
        dims = self.dims(element.tensor)
        if dims is None:
            return False
        return all(_covers(position, dim) for position, dim in zip(element.index, dims, strict=True))

    def unknown(self, name: str, index: Dims) -> Value:
        """An element that is not looked into."""
        element = Element(name, index, self.kind(name))
        if element.kind == "b":
            return NonZero(element)
        self.assume()  # computing with numbers that are not known takes them for finite, and small enough
        return Polynomial.of(element)

    def assume(self) -> None:
        """Called where an answer rests on an assumption. Raises NotReadable in an exact reader."""
        if self._exact:
            raise NotReadable

    def assume_zero_one(self, name: str) -> None:
        """Notes that something was read under the assumption that a tensor holds 0 and 1 alone."""
        self._zero_one.add(name)

    def assumes_zero_one(self, name: str) -> bool:
        """Whether anything was."""
        return name in self._zero_one

    def table(self, name: str) -> np.ndarray | None:
        """The value of a stored tensor, read once; None where it is none, or too large."""
        if name not in self._tables:
            view, _ = self.owner(name)
            is_given = self._exact and view.is_input(name)  # an initializer that is an input may be replaced
            self._tables[name] = stored_table(view, name) if view.is_constant(name) and not is_given else None
        return self._tables[name]

    def broadcast(self, name: str, index: Dims) -> Value:
        """The element of an operand of a broadcasting node at the node's own index."""
        dims = self.known_dims(name)
        own = index[len(index) - len(dims) :]
        if len(own) != len(dims):
            raise NotReadable
        return self.element(
            name, tuple(ZERO if dim == ONE else position for dim, position in zip(dims, own, strict=True))
        )

    def vector(self, name: str) -> list[Polynomial]:
        """The elements of a 1-D tensor of known length (or a scalar), each a number that does not depend on cases."""
        dims = self.known_dims(name)
        if len(dims) > 1 or (dims and dims[0].constant is None):
            raise NotReadable
        length = int(dims[0].constant or 0) if dims else 1
        return [self.number(name, (Polynomial.of(k),) if dims else ()) for k in range(length)]

    def number(self, name: str, index: Dims) -> Polynomial:
        """An element that is a number which does not depend on cases. Raises NotReadable otherwise."""
        value = self.element(name, index)
        if not isinstance(value, Polynomial):
            raise NotReadable
        return value

    def integers(self, node: NodeProto, name: str, position: int) -> list[int] | None:
        """Whole numbers that a node has as an attribute (old opsets) or as a constant input; None if it has neither."""
        given = attribute(node, name)
        if given is not None:
            return [given] if isinstance(given, int) else list(given)
        if len(node.input) <= position or not node.input[position]:
            return None
        return _constants(self.vector(node.input[position]))

    def fresh_index(self, size: Polynomial) -> Polynomial:
        """A new index, for sums."""
        self._fresh += 1
        return Polynomial.of(Index(self._fresh, size))


def _declared(symbol: str) -> Polynomial:
    """The dimension that a symbol stands for. torch.export writes products into it ("16*s0")."""
    dim = ONE
    for part in symbol.split("*"):
        if not (part.isdecimal() or part.isidentifier()):
            return Polynomial.of(Size(symbol))
        dim = dim * Polynomial.of(int(part) if part.isdecimal() else Size(part))
    return dim


def _constants(numbers: Iterable[Polynomial]) -> list[int]:
    values = [number.constant for number in numbers]
    if any(value is None for value in values):
        raise NotReadable
    return [int(value) for value in values if value is not None]


def _sole_element(value: Value) -> Element | None:
    """The element that a value only passes on or tests."""
    if isinstance(value, NonZero):
        return value.element
    if isinstance(value, Polynomial) and len(value.terms) == 1:
        (atom,) = value.atoms() if len(value.atoms()) == 1 else (None,)
        return atom if isinstance(atom, Element) and value == Polynomial.of(atom) else None
    return None


def _covers(position: Polynomial, dim: Polynomial) -> bool:
    if position == ZERO and dim == ONE:
        return True
    atoms = position.atoms()
    atom = next(iter(atoms)) if len(atoms) == 1 else None
    if not isinstance(atom, Index) or position != Polynomial.of(atom):
        return False
    is_symbol = any(isinstance(part, Size) and dim == Polynomial.of(part) for part in dim.atoms())
    return atom.size == dim or (atom.axis not in SEQUENCE_AXES and is_symbol)

"""Sizes for symbolic dimensions: one symbol, one size in all inputs, and lengths that belong together agree.

Exporters name dimensions as they like: the length of a mask may have another symbol than that of the ids which it
masks. So sizes follow what an input is: a batch, an image's side, a cache's past, a sequence, or a mask, which is as
long as past and sequence together.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from onnx import ModelProto, TensorProto, ValueInfoProto

from attngraft.errors import VerificationError

__all__ = ["FLOAT_TYPES", "InputSpec", "Shapes", "input_specs", "size_plans"]

FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)

Shapes = dict[str, "tuple[int, ...]"]


@dataclass(frozen=True)
class InputSpec:
    """A model input: ONNX element type, and dimensions as numbers or symbols (unnamed ones are called by their
    axis)."""

    name: str
    dtype: int
    dims: tuple[int | str, ...]


@dataclass(frozen=True)
class SizePlan:
    """Sizes for batches, for the sides of images, and for sequences.

    distinct  whether independent lengths differ (queries and keys, encoder and decoder, height and width).
    square    whether a mask of rank 2 or 3 is [queries, keys] behind its heads, instead of [batch, keys].
    """

    batch: int
    image: int
    length: int
    distinct: bool = False
    square: bool = False


PLAN_GROUPS = (
    # An odd length: vectorised kernels have edges there.
    (SizePlan(3, 32, 7), SizePlan(1, 32, 7), SizePlan(3, 224, 7)),
    # Lengths that models with windows or patches divide.
    (SizePlan(1, 64, 16), SizePlan(2, 224, 8), SizePlan(1, 256, 64), SizePlan(1, 384, 12)),
    # One token, as when a model generates.
    (SizePlan(2, 32, 1), SizePlan(1, 32, 1)),
)
"""Of each group the first plan is taken that the model accepts."""

DISTINCT_STEP = 2
"""By how much a length differs from the one before it in a plan with distinct lengths."""

CACHE_NAME = re.compile(r"past|cache|(^|[._])(k|v|key|value)s?([._\d]|$)", re.IGNORECASE)

ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda first, second: first // max(second, 1),
}
"""What exporters compute dimensions with: "past + sequence", "2*s0"."""


def input_specs(model: ModelProto) -> tuple[InputSpec, ...]:
    """The inputs that a caller feeds: those that are no initializers. Raises VerificationError for one that is no
    tensor."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return tuple(_spec(value) for value in model.graph.input if value.name not in initializers)


def size_plans(
    specs: tuple[InputSpec, ...], given: Mapping[str, tuple[int, ...]] | None, masks: Collection[str] = ()
) -> list[list[Shapes]]:
    """Concrete shapes for all inputs, in groups of alternatives, none of them twice.

    `given` fixes the shapes of some inputs; the symbols in them are then known for the others too. `masks` are the
    inputs that are masks.
    """
    fixed = _symbols_of_given(specs, given or {})
    seen: list[Shapes] = []
    groups: list[list[Shapes]] = []
    for plans in PLAN_GROUPS:
        group: list[Shapes] = []
        for plan in _variations(plans):
            shapes = _shapes(specs, masks, plan, fixed) | dict(given or {})
            if shapes not in seen:
                seen.append(shapes)
                group.append(shapes)
        groups += [group] if group else []
    return groups


def _variations(plans: tuple[SizePlan, ...]) -> list[SizePlan]:
    """Distinct lengths first, which not every model accepts."""
    first = plans[0]
    return [replace(first, distinct=True), first, replace(first, square=True), *plans[1:]]


def _spec(value: ValueInfoProto) -> InputSpec:
    if not value.type.HasField("tensor_type"):
        raise VerificationError(f"input {value.name!r} is no tensor; such models cannot be verified, use --no-verify")
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or f"axis {axis}")
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
    )
    return InputSpec(value.name, value.type.tensor_type.elem_type, dims)


def _symbols_of_given(specs: tuple[InputSpec, ...], given: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    by_name = {spec.name: spec for spec in specs}
    symbols: dict[str, int] = {}
    for name, shape in given.items():
        if name not in by_name:
            raise VerificationError(f"shape for {name!r}: the model has no such input, only {', '.join(by_name)}")
        dims = by_name[name].dims
        agrees = len(dims) == len(shape) and all(
            size == dim if isinstance(dim, int) else symbols.setdefault(dim, size) == size
            for dim, size in zip(dims, shape, strict=True)
        )
        if not agrees:
            raise VerificationError(f"shape {'x'.join(map(str, shape))} for {name!r} contradicts the model's {dims}")
    return symbols


def _shapes(
    specs: tuple[InputSpec, ...], masks: Collection[str], plan: SizePlan, fixed: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    has_ids = any(_is_ids(spec) and spec.name not in masks for spec in specs)
    sizes = _Sizes(plan, dict(fixed), has_ids)
    for spec in specs:
        if spec.name not in masks:
            sizes.add_input(spec)
    for spec in specs:
        if spec.name in masks:
            sizes.add_mask(spec)
    return {spec.name: tuple(sizes.of(dim) for dim in spec.dims) for spec in specs}


class _Sizes:
    """Symbols as they get their sizes, inputs first and then the masks that belong to them."""

    def __init__(self, plan: SizePlan, symbols: dict[str, int], has_ids: bool) -> None:
        """`has_ids`: whether ids are among the inputs; without them, keys and values are no caches."""
        self._plan = plan
        self._has_caches = has_ids
        self._symbols = symbols
        self._number = 0
        self._past = 0
        self._lengths: dict[str, int] = {}  # of sequences, by the prefix of their input's name

    def of(self, dim: int | str) -> int:
        """A dimension's size; symbols that only occur in expressions are lengths."""
        if isinstance(dim, int):
            return dim
        expression = _expression(dim)
        if expression is not None:
            return _evaluate(expression, lambda name: self._known(name, self._plan.length))
        return self._known(dim, self._plan.length)

    def add_input(self, spec: InputSpec) -> None:
        for axis, dim in _symbols(spec):
            if axis == 0:
                self._known(dim, self._plan.batch)
            elif _is_image(spec) and axis >= len(spec.dims) - 2:
                doubled = self._plan.distinct and axis == len(spec.dims) - 1
                self._known(dim, self._plan.image * (2 if doubled else 1))
            elif self._has_caches and _is_cache(spec):
                self._past = self._known(dim, self._plan.length)
            else:
                self._add_length(spec, dim)
        self._number += self._plan.distinct and not _is_ids(spec)

    def add_mask(self, spec: InputSpec) -> None:
        """A mask's last axis counts keys; the one before it queries, or the batch in a mask of rank 2."""
        keys = self._lengths.get(_prefix(spec.name), next(iter(self._lengths.values()), self._plan.length))
        last = len(spec.dims) - 1
        for axis, dim in _symbols(spec):
            if axis == last:
                self._known(dim, keys + self._past)
            elif axis == last - 1 and (last >= 3 or self._plan.square):
                self._known(dim, keys)
            else:
                self._known(dim, self._plan.batch)

    def _add_length(self, spec: InputSpec, dim: str) -> None:
        """Ids whose names begin alike are of one length; other sequences go by their symbols."""
        prefix = _prefix(spec.name)
        if _is_ids(spec) and prefix in self._lengths:
            self._known(dim, self._lengths[prefix])
            return
        if _is_ids(spec):
            self._number += self._plan.distinct and bool(self._lengths)
        size = self._known(dim, self._plan.length + DISTINCT_STEP * self._number)
        self._lengths.setdefault(prefix, size)

    def _known(self, symbol: str, size: int) -> int:
        return self._symbols.setdefault(symbol, size)


def _symbols(spec: InputSpec) -> list[tuple[int, str]]:
    return [(axis, dim) for axis, dim in enumerate(spec.dims) if isinstance(dim, str) and _expression(dim) is None]


def _is_ids(spec: InputSpec) -> bool:
    return spec.dtype not in FLOAT_TYPES


def _is_image(spec: InputSpec) -> bool:
    """Height and width are both free, behind the channels."""
    free = [isinstance(dim, str) for dim in spec.dims[-2:]]
    return spec.dtype in FLOAT_TYPES and len(spec.dims) >= 4 and all(free)


def _is_cache(spec: InputSpec) -> bool:
    """[batch, heads, past, head size] or [batch, past, heads, head size], by its name."""
    return spec.dtype in FLOAT_TYPES and len(spec.dims) == 4 and CACHE_NAME.search(spec.name) is not None


def _prefix(name: str) -> str:
    """Whose sequence an input belongs to: "decoder_input_ids" and "decoder_attention_mask" are one."""
    return next((side for side in ("decoder", "encoder") if name.lower().startswith(side)), "")


def _expression(dim: str) -> ast.BinOp | None:
    """A dimension that is computed from others; None for a symbol, and for what is no plain arithmetic."""
    try:
        parsed = ast.parse(dim, mode="eval").body
    except SyntaxError:
        return None
    return parsed if isinstance(parsed, ast.BinOp) and _is_arithmetic(parsed) else None


def _is_arithmetic(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in ARITHMETIC and _is_arithmetic(node.left) and _is_arithmetic(node.right)
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and isinstance(node.value, int))


def _evaluate(node: ast.expr, size_of: Callable[[str], int]) -> int:
    if isinstance(node, ast.BinOp):
        return ARITHMETIC[type(node.op)](_evaluate(node.left, size_of), _evaluate(node.right, size_of))
    return size_of(node.id) if isinstance(node, ast.Name) else int(ast.literal_eval(node))

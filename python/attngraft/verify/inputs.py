"""Inputs drawn from a model's own description: ids within their tables, masks in every pattern, normal floats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from attngraft.contract import CausalMode, Role
from attngraft.match import Site
from attngraft.onnx_graph import HALF_TYPES, numpy_dtype
from attngraft.verify.masks import EMPTY_ROWS, LEFT_PADDED, MASK_PATTERNS, attend_pattern
from attngraft.verify.shapes import FLOAT_TYPES, InputSpec, input_specs

__all__ = ["InputCase", "InputKinds", "draw_inputs", "input_kinds"]

SAFE_ID_RANGE = 2
"""Ids below 2 are valid in every table with more than one row: segments, languages, positions of two tokens."""

ADDITIVE_FILL = -500.0
"""What masked places of an additive fp32 mask get: exp(-500) is 0, and a score added to it keeps 4 decimals, so that
a row in which everything is masked is still the same row. Half types get -inf: there, any number low enough to mask
rounds the scores."""

FOLLOWED = frozenset(
    {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Slice", "Flatten", "Transpose", "Clip"}
)
"""Operators through which an id stays an id, or a mask a mask."""

NOT_FOLLOWED = frozenset({"MatMul", "Gemm", "Einsum", "Conv", "Shape", "Size", "LayerNormalization"})
"""Above these are the activations, or nothing but sizes."""


Makers = Mapping[str, NodeProto]
"""The node of the main graph that makes a tensor."""


@dataclass(frozen=True)
class InputCase:
    """One set of inputs, by name, and what it is in words.

    has_empty_rows  whether a mask leaves all rows of a sequence without a key.
    has_early_rows  whether rows come before their sequence's first key, and may attend to no later one.
    """

    label: str
    feeds: Mapping[str, np.ndarray]
    has_empty_rows: bool = False
    has_early_rows: bool = False


@dataclass(frozen=True)
class InputKinds:
    """What the inputs are: masks (those in `additive` hold 0 and a large negative number, those in `inverted` are true
    where masked), the exclusive upper bound of each integer or boolean input that is no mask, and whether attention is
    causal."""

    specs: tuple[InputSpec, ...]
    masks: frozenset[str]
    additive: frozenset[str]
    inverted: frozenset[str]
    id_bounds: Mapping[str, int]
    is_causal: bool = False


def input_kinds(model: ModelProto, sites: Sequence[Site]) -> InputKinds:
    """Reads names, types and the graph: an id's bound is the size of the table that it indexes. `sites` are the
    model's."""
    specs = input_specs(model)
    masks = {spec.name for spec in specs if "mask" in spec.name.lower() or spec.dtype == TensorProto.BOOL}
    masks -= {spec.name for spec in specs if not spec.dims}
    makers = {output: node for node in model.graph.node for output in node.output if output}
    additive = _additive_inputs(makers, sites) & {spec.name for spec in specs if spec.dtype in FLOAT_TYPES}
    tables = _table_rows(model.graph, [spec.name for spec in specs])
    above = _tensors_above_softmaxes(makers, sites)
    masks |= additive | {name for name, rows in tables.items() if name in above and rows is None}
    polarities = _mask_polarities(makers, sites)
    return InputKinds(
        specs=specs,
        masks=frozenset(masks),
        additive=frozenset(additive),
        inverted=frozenset(name for name in masks if polarities.get(name, "padding" in name.lower())),
        id_bounds={
            spec.name: tables[spec.name] or SAFE_ID_RANGE
            for spec in specs
            if spec.dtype not in FLOAT_TYPES and spec.name not in masks
        },
        is_causal=any(_is_causal(site) for site in sites),
    )


def _is_causal(site: Site) -> bool:
    stated = [site.config, site.whole]
    return any(part is not None and part.causal != CausalMode.NONE for part in stated)


def draw_inputs(kinds: InputKinds, shapes: Mapping[str, tuple[int, ...]], seed: int) -> Iterator[InputCase]:
    """One case for each mask pattern, or two random ones for a model without a mask. The same seed gives the same."""
    for number, pattern in enumerate(MASK_PATTERNS if kinds.masks else ("random", "random again")):
        generator = np.random.default_rng((seed, number))
        feeds = {spec.name: _draw(kinds, spec, shapes[spec.name], pattern, generator) for spec in kinds.specs}
        # One shape says which sizes were used: that of the largest input.
        largest = max(shapes.values(), key=np.prod, default=())
        label = f"{pattern} {'x'.join(map(str, largest))}"
        has_early_rows = kinds.is_causal and pattern == LEFT_PADDED
        yield InputCase(label, feeds, pattern == EMPTY_ROWS, has_early_rows)


def _draw(
    kinds: InputKinds, spec: InputSpec, shape: tuple[int, ...], pattern: str, generator: np.random.Generator
) -> np.ndarray:
    dtype = numpy_dtype(spec.dtype)
    if spec.name in kinds.masks:
        attend = attend_pattern(pattern, shape, generator)
        if spec.name in kinds.additive:
            fill = -np.inf if spec.dtype in HALF_TYPES else ADDITIVE_FILL
            return np.where(attend, 0.0, fill).astype(dtype)
        return (attend != (spec.name in kinds.inverted)).astype(dtype)
    if spec.dtype in FLOAT_TYPES:
        return np.asarray(generator.standard_normal(shape)).astype(dtype)
    return np.asarray(generator.integers(0, kinds.id_bounds[spec.name], shape)).astype(dtype)


def _additive_inputs(makers: Makers, sites: Sequence[Site]) -> set[str]:
    """The inputs that a site adds to its scores, followed up through shape operators."""
    parts = [mask for site in sites for mask in (*site.masks, *site.source_masks) if mask.form == "add"]
    return {_origin(makers, name, False)[0] for mask in parts for name in mask.tensors}


def _mask_polarities(makers: Makers, sites: Sequence[Site]) -> dict[str, bool]:
    """For the inputs that a site takes as a condition, whether they are true where masked."""
    parts = [mask for site in sites for mask in (*site.masks, *site.source_masks) if mask.role == Role.KEEP]
    return dict(_origin(makers, name, mask.invert) for mask in parts for name in mask.tensors)


def _origin(makers: Makers, name: str, invert: bool) -> tuple[str, bool]:
    """What a tensor is made from by shape operators, and whether it is the inverse of what it was after all."""
    while name in makers and makers[name].op_type in (*FOLLOWED, "Not"):
        invert ^= makers[name].op_type == "Not"
        name = makers[name].input[0]
    return name, invert


def _tensors_above_softmaxes(makers: Makers, sites: Sequence[Site]) -> set[str]:
    """What reaches the scores other than through Q and K: inputs among it are masks, whatever their names are."""
    pending = [makers[site.node].input[0] for site in sites if site.node in makers and site.scores]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        node = makers.get(name)
        if node is not None and node.op_type not in NOT_FOLLOWED:
            pending += [read for read in node.input if read]
    return seen


def _table_rows(graph: GraphProto, names: Iterable[str]) -> dict[str, int | None]:
    """For each input the number of rows of the smallest table that it indexes through a Gather; None if there is
    none."""
    tables = {tensor.name: tensor for tensor in graph.initializer}
    readers: dict[str, list[NodeProto]] = defaultdict(list)
    for node in graph.node:
        for read in node.input:
            readers[read].append(node)
    return {name: _smallest_table(name, readers, tables) for name in names}


def _smallest_table(
    name: str, readers: Mapping[str, Sequence[NodeProto]], tables: Mapping[str, TensorProto]
) -> int | None:
    rows: list[int] = []
    pending, seen = [name], set()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in readers.get(current, ()):
            if node.op_type == "Gather" and node.input[1] == current and node.input[0] in tables:
                axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
                rows.append(tables[node.input[0]].dims[axis])
            elif node.op_type in FOLLOWED and node.input[0] == current:
                pending.append(node.output[0])
    return max(min(rows), 1) if rows else None

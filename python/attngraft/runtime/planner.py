"""What one set of inputs needs. In: views. Out: profile, padded shapes, addresses, what is cut back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from attngraft.errors import EngineError
from attngraft.runtime.arrays import ArrayView
from attngraft.runtime.bindings import Bindings
from attngraft.runtime.buckets import BucketPlan
from attngraft.runtime.buffers import Region
from attngraft.runtime.contexts import Contexts, Layout
from attngraft.runtime.graph_cache import GraphCache, GraphKey
from attngraft.runtime.profiles import Profile, choose_profile
from attngraft.runtime.tensors import TensorSpec, check_types_and_ranks

__all__ = ["Plan", "Planner", "Work"]

_type_and_shape = attrgetter("dtype", "shape")

KEPT_PLANS = 4096
"""Shapes whose plans are remembered: some kB each, on the host. When they are full, all are forgotten."""


@dataclass(frozen=True)
class Work:
    """One run of the engine at fixed shapes and addresses."""

    key: GraphKey
    outputs: tuple[Region, ...]
    """Where the outputs are, for comparison."""
    uncapturable: str | None = None
    """Why no graph can do it."""


@dataclass(frozen=True)
class Plan:
    """How inputs of certain types and shapes are run."""

    profile: int
    layout: Layout
    cuts: Mapping[str, tuple[int, ...]]
    """The part to keep of outputs with padded axes."""
    is_padded: bool
    generation: int
    """Of the buffers whose addresses `work` has."""
    work: Work


class Planner:
    """Plans, remembered by types and shapes."""

    def __init__(
        self,
        specs: tuple[TensorSpec, ...],
        profiles: tuple[Profile, ...],
        buckets: BucketPlan | None,
        contexts: Contexts,
        bindings: Bindings,
        cache: GraphCache,
    ) -> None:
        self._specs = specs
        self._profiles = profiles
        self._buckets = buckets
        self._contexts = contexts
        self._bindings = bindings
        self._cache = cache
        self._plans: dict[tuple[tuple[str, tuple[int, ...]], ...], Plan] = {}

    def plan(self, views: Mapping[str, ArrayView]) -> Plan:
        """The plan for these inputs, in the engine's order, with buffers that hold them. Graphs that use buffers which
        had to move are gone. Raises EngineError for types and shapes that the engine does not take."""
        signature = tuple(map(_type_and_shape, views.values()))
        plan = self._plans.get(signature)
        if plan is None:
            plan = self._new_plan(views)
        self._make_room(plan.layout)
        if plan.generation != self._bindings.generation:
            plan = self._place(plan)
            if len(self._plans) >= KEPT_PLANS:
                self._plans.clear()
            self._plans[signature] = plan
        return plan

    def describe(self, views: Mapping[str, ArrayView]) -> tuple[Profile, Layout]:
        """The profile and all shapes for inputs that are run as they are, without buckets. Raises as `plan`."""
        check_types_and_ranks(self._specs, views)
        return self._describe({name: view.shape for name, view in views.items()})

    def _describe(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Profile, Layout]:
        profile = choose_profile(self._profiles, shapes)
        return profile, self._contexts.of(profile.index).describe(shapes)

    def _new_plan(self, views: Mapping[str, ArrayView]) -> Plan:
        check_types_and_ranks(self._specs, views)
        shapes = {name: view.shape for name, view in views.items()}
        padding = None if self._buckets is None else self._buckets.pad(shapes)
        profile, layout = self._describe(shapes if padding is None else padding.shapes)
        cuts: dict[str, tuple[int, ...]] = {}
        if padding is not None:
            outputs = {s.name: shape for s, shape in zip(self._specs, layout.shapes) if not s.is_input}
            if layout.unknown:
                raise EngineError(
                    f"output {self._specs[layout.unknown[0]].name!r}: its shape depends on the input's values, so "
                    "padding cannot be cut off; open the session without buckets"
                )
            cuts = self._buckets.cuts(padding, outputs)
        nothing = Work(GraphKey(profile.index, (), ()), ())
        return Plan(profile.index, layout, cuts, padding is not None, -1, nothing)

    def _make_room(self, layout: Layout) -> None:
        try:
            gone = self._bindings.take(layout)
        except EngineError:
            self._cache.evict_all()  # some buffers may have moved
            raise
        if gone:
            self._cache.evict_users(gone)

    def _place(self, plan: Plan) -> Plan:
        """The plan with the addresses that the buffers have now."""
        inputs = tuple(shape for spec, shape in zip(self._specs, plan.layout.shapes) if spec.is_input)
        addresses = self._bindings.addresses
        reason = None
        if 0 in addresses:
            name = self._specs[addresses.index(0)].name
            reason = f"the shape of output {name!r} depends on the input's values"
        work = Work(GraphKey(plan.profile, inputs, addresses), self._bindings.outputs, reason)
        return replace(plan, generation=self._bindings.generation, work=work)

"""An engine's execution contexts, one for each profile. In: shapes and addresses. Out: contexts that are set to them.

A context has one set of shapes at a time. What it was last set to is remembered, so that nothing is set twice and a
replay can tell whether its context has served other shapes since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attngraft.engine.shapes import format_shape
from attngraft.errors import EngineError
from attngraft.runtime.arrays import numpy_dtype
from attngraft.runtime.buffers import region_bytes
from attngraft.runtime.cuda import Stream
from attngraft.runtime.graph_cache import GraphKey
from attngraft.runtime.tensors import TensorSpec

__all__ = ["Contexts", "ExecutionContext", "Layout"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Every tensor's shape and bytes at one set of input shapes, in the engine's order."""

    shapes: tuple[Shape, ...]
    nbytes: tuple[int, ...]
    """0 for an output whose shape depends on the inputs' values: its shape has -1 where TensorRT does not know."""

    @property
    def unknown(self) -> tuple[int, ...]:
        """Places of the outputs whose shapes depend on the inputs' values."""
        return tuple(place for place, shape in enumerate(self.shapes) if any(dim < 0 for dim in shape))


@dataclass
class ExecutionContext:
    """One of TensorRT's contexts and what it is set to."""

    context: Any
    specs: tuple[TensorSpec, ...]
    allocator: Callable[[str], Any] | None = None
    """Makes the allocator of an output whose shape depends on the inputs' values."""
    served: GraphKey | None = None
    """What it last ran, or was about to run; None after an error."""
    _shapes: dict[str, Shape] | None = None
    _allocators: dict[str, Any] = field(default_factory=dict)

    def describe(self, shapes: Mapping[str, Shape]) -> Layout:
        """Sets these input shapes; returns those of all tensors.

        Raises EngineError when TensorRT refuses a shape or shapes contradict each other.
        """
        self._set_shapes(shapes)
        found = tuple(shapes[spec.name] if spec.is_input else self._output_shape(spec.name) for spec in self.specs)
        nbytes = tuple(
            0 if any(dim < 0 for dim in shape) else region_bytes(shape, numpy_dtype(spec.dtype))
            for spec, shape in zip(self.specs, found)
        )
        return Layout(found, nbytes)

    def prepare(self, key: GraphKey) -> None:
        """Sets input shapes and all addresses, unless the last run had the same. Raises EngineError as `describe`."""
        if self.served == key:
            return
        names = (spec.name for spec in self.specs if spec.is_input)
        self.served = None  # an error below must not leave half of the old addresses in force
        self._set_shapes(dict(zip(names, key.shapes)))
        for spec, address in zip(self.specs, key.addresses):
            self._set_address(spec.name, address)
        self.served = key

    def _set_shapes(self, shapes: Mapping[str, Shape]) -> None:
        if shapes == self._shapes:
            return
        self.served = self._shapes = None  # nor half of the old shapes
        for name, shape in shapes.items():
            if not self.context.set_input_shape(name, shape):
                raise EngineError(f"input {name!r}: TensorRT refuses shape {format_shape(shape)}")
        self._shapes = dict(shapes)

    def _output_shape(self, name: str) -> Shape:
        """Not by infer_shapes: TensorRT 10.6's binding raises its error without the interpreter's lock, and crashes."""
        try:
            return tuple(self.context.get_tensor_shape(name))
        except ValueError:  # the shape's rank is -1, which is how TensorRT says that it has none
            self._shapes = None
            raise EngineError(f"output {name!r}: has no shape; the inputs' shapes do not fit together") from None

    def _set_address(self, name: str, address: int) -> None:
        """An address of 0 is that of an output whose memory TensorRT asks for while it runs."""
        if address:
            if not self.context.set_tensor_address(name, address):
                raise EngineError(f"tensor {name!r}: TensorRT refuses its buffer")
        elif name not in self._allocators:
            assert self.allocator is not None
            self._allocators[name] = self.allocator(name)
            if not self.context.set_output_allocator(name, self._allocators[name]):
                raise EngineError(f"output {name!r}: TensorRT refuses an allocator for it")


class Contexts:
    """One context for each profile, made when it is first needed: each holds memory for the whole profile.

    Raises EngineError from `of` when TensorRT cannot make one. `reason` gives TensorRT's last words.
    """

    def __init__(
        self,
        engine: Any,
        specs: tuple[TensorSpec, ...],
        stream: Stream,
        reason: Callable[[], str],
        allocator: Callable[[str], Any] | None = None,
    ) -> None:
        self._engine = engine
        self._specs = specs
        self._stream = stream
        self._allocator = allocator
        self._reason = reason
        self._made: dict[int, ExecutionContext] = {}

    def of(self, profile: int) -> ExecutionContext:
        """The context of that profile."""
        if profile not in self._made:
            self._made[profile] = ExecutionContext(self._make(profile), self._specs, self._allocator)
        return self._made[profile]

    def _make(self, profile: int) -> Any:
        context = self._engine.create_execution_context()
        if context is None:
            raise EngineError(f"TensorRT cannot prepare the engine to run with profile {profile}: {self._reason()}")
        if context.active_optimization_profile != profile:
            if not context.set_optimization_profile_async(profile, self._stream.handle):
                raise EngineError(f"TensorRT refuses profile {profile} of the engine: {self._reason()}")
            self._stream.wait()
        return context

    def release(self) -> None:
        """Lets go of the contexts, which TensorRT wants gone before their engine. Exceptions that somebody keeps may
        keep these objects, since tracebacks hold the frames that they passed."""
        for context in self._made.values():
            context.context = None
            context._allocators.clear()
        self._made.clear()
        self._engine = None

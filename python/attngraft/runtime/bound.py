"""Runs on the caller's own device memory. In: arrays, once. Out: a run that copies nothing, again and again."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

from attngraft.engine.shapes import format_shape
from attngraft.errors import EngineError
from attngraft.runtime.arrays import ArrayView, Producers, view_array
from attngraft.runtime.contexts import Layout
from attngraft.runtime.graph_cache import GraphKey
from attngraft.runtime.planner import Work
from attngraft.runtime.tensors import TensorSpec

if TYPE_CHECKING:
    from attngraft.runtime.session import Session

__all__ = ["BoundRun", "bound_work", "view_outputs"]

ALIGNMENT = 256
"""Bytes that TensorRT wants tensor addresses aligned to (IExecutionContext::setTensorAddress)."""


class BoundRun:
    """What `Session.bind` gives: the engine on fixed arrays, which it keeps alive.

    `run` reads the inputs' values of that moment from where they are and overwrites the outputs where they are.
    """

    def __init__(self, session: Session, work: Work, arrays: object, outputs: Mapping[str, Any]) -> None:
        self._session = session
        self._work = work
        self._arrays = arrays  # alive as long as their addresses are used
        self.outputs = outputs
        """The output arrays by name: those that were given, or DeviceArrays that the session made."""

    def run(self, *, stream: Any = None) -> Mapping[str, Any]:
        """Runs once; returns `outputs`. The first run is plain and captured, as in `Session.run`.

        stream: an int handle or an object with `__cuda_stream__`; the run takes its turn in that stream, and `run`
        returns before the work is done. Without it, the run comes after the work of the default stream, and `run` waits
        for it. Raises as `Session.run`.
        """
        self._session.run_bound(self._work, stream)
        return self.outputs


def view_outputs(
    specs: tuple[TensorSpec, ...], outputs: Mapping[str, Any], device: int, producers: Producers
) -> dict[str, ArrayView]:
    """Where the outputs are to go. Raises EngineError unless exactly the engine's outputs are given, as arrays."""
    names = [spec.name for spec in specs if not spec.is_input]
    odd = [name for name in outputs if name not in names] + [name for name in names if name not in outputs]
    if odd:
        is_missing = odd[0] in names
        raise EngineError(
            f"output {odd[0]!r}: {'is not given' if is_missing else 'the engine has no such output'}; "
            f"its outputs are {', '.join(names)}"
        )
    return {
        name: view_array(name, outputs[name], device, producers.stream, False, producers, kind="output")
        for name in names
    }


def bound_work(
    specs: tuple[TensorSpec, ...],
    profile: int,
    layout: Layout,
    inputs: Mapping[str, ArrayView],
    outputs: Mapping[str, ArrayView],
) -> Work:
    """The run on these arrays. Raises EngineError for arrays that cannot be used in place: on the host, of another
    shape or type, badly aligned, or an output that shares memory with another array."""
    regions = []
    for spec, shape, nbytes in zip(specs, layout.shapes, layout.nbytes):
        what = f"{'input' if spec.is_input else 'output'} {spec.name!r}"
        if any(dim < 0 for dim in shape):
            raise EngineError(f"{what}: its shape depends on the input's values, so no array can be bound; use run")
        view = (inputs if spec.is_input else outputs)[spec.name]
        if view.host is not None:
            raise EngineError(f"{what}: is on the host; bind takes device arrays only")
        if (view.dtype, view.shape) != (spec.dtype, shape):
            raise EngineError(
                f"{what}: is {view.dtype} {format_shape(view.shape)}, but the engine gives {spec.dtype} "
                f"{format_shape(shape)} for these inputs"
            )
        if not view.address or view.address % ALIGNMENT:
            raise EngineError(f"{what}: begins at no multiple of {ALIGNMENT} bytes, which TensorRT wants; copy it")
        regions.append((what, view.address, nbytes, spec.is_input))
    for (first, at, length, is_input), (second, where, extent, both) in combinations(regions, 2):
        if at < where + extent and where < at + length and not (is_input and both):
            raise EngineError(f"{first} and {second}: share memory, so the run would overwrite what it reads; copy one")
    shapes = tuple(view.shape for view in inputs.values())
    key = GraphKey(profile, shapes, tuple(address for _, address, _, _ in regions))
    return Work(key, tuple((address, nbytes) for _, address, nbytes, is_input in regions if not is_input))

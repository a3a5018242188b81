"""What runs of an engine are fed. In: files, shapes, the engine's card. Out: arrays by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from attngraft.engine.sidecar import EngineCard
from attngraft.errors import EngineError
from attngraft.runtime.arrays import numpy_dtype
from attngraft.runtime.tensors import TensorSpec, check_names

__all__ = ["input_sets", "made_up_array", "made_up_inputs", "read_input_option"]


def made_up_inputs(card: EngineCard | None, given: Mapping[str, object], seed: int) -> dict[str, np.ndarray]:
    """Random values, at the first profile's usual shapes, for the inputs that no file was given for; none without a
    card. Raises EngineError for bfloat16, which NumPy has not."""
    generator = np.random.default_rng(seed)
    drawn: dict[str, np.ndarray] = {}
    for tensor in card.inputs if card is not None else ():
        if tensor.name in given:
            continue
        shape = card.profiles[0][tensor.name].opt
        if tensor.dtype == "bfloat16":
            raise EngineError(f"input {tensor.name!r} is bfloat16; give it with --input {tensor.name}=FILE.npy")
        drawn[tensor.name] = made_up_array(shape, tensor.dtype, generator)
    return drawn


def made_up_array(shape: tuple[int, ...], dtype: str, generator: np.random.Generator) -> np.ndarray:
    """Normal values of a floating type, by which a GPU is as fast as it will be (with zeros it would be faster); else
    ones, which are legal as ids and in masks. `dtype` by NumPy's name."""
    kind = numpy_dtype(dtype)
    if np.issubdtype(kind, np.integer) or kind == np.bool_:
        return np.ones(shape, dtype=kind)
    return np.asarray(generator.standard_normal(shape)).astype(kind)


def input_sets(
    specs: tuple[TensorSpec, ...], given: Mapping[str, Any] | Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One set of inputs or several, with values made up where a shape stands in place of an array.

    Raises EngineError for names that are not the engine's.
    """
    generator = np.random.default_rng(0)
    dtypes = {spec.name: spec.dtype for spec in specs}
    sets = []
    for one in [given] if isinstance(given, Mapping) else given:
        check_names(specs, one)
        sets.append(
            {
                name: made_up_array(tuple(value), dtypes[name], generator) if _is_shape(value) else value
                for name, value in one.items()
            }
        )
    return sets


def _is_shape(value: object) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(dim, int) and dim >= 0 for dim in value)


def read_input_option(option: str) -> tuple[str, np.ndarray]:
    """`NAME=FILE.npy`. Raises EngineError for another form, a missing file, and one that is no array."""
    name, separator, path = option.rpartition("=")
    if not separator or not name:
        raise EngineError(f"input {option!r}: no input name; write NAME=FILE.npy")
    try:
        return name, np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise EngineError(f"{path}: no such file; give input {name!r} as a NumPy .npy file") from None
    except ValueError:
        raise EngineError(f"{path}: is not a NumPy .npy file; save input {name!r} with numpy.save") from None

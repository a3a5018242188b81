"""What one run of an engine is fed. In: files named on the command line, and the engine's card. Out: arrays by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attngraft.engine.sidecar import EngineCard
from attngraft.errors import EngineError

__all__ = ["made_up_inputs", "read_input_option"]


def made_up_inputs(card: EngineCard | None, given: Mapping[str, object], seed: int) -> dict[str, np.ndarray]:
    """Random values, at the profile's usual shapes, for the inputs that no file was given for; none without a card.
    Raises EngineError for bfloat16, which NumPy has not."""
    generator = np.random.default_rng(seed)
    drawn: dict[str, np.ndarray] = {}
    for tensor in card.inputs if card is not None else ():
        if tensor.name in given:
            continue
        shape = card.profile[tensor.name].opt
        if tensor.dtype == "bfloat16":
            raise EngineError(f"input {tensor.name!r} is bfloat16; give it with --input {tensor.name}=FILE.npy")
        if np.dtype(tensor.dtype).kind == "f":
            drawn[tensor.name] = np.asarray(generator.standard_normal(shape), dtype=tensor.dtype)
        else:  # ids and masks: 1 is legal in both
            drawn[tensor.name] = np.ones(shape, dtype=tensor.dtype)
    return drawn


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

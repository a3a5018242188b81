"""Picking without a GPU: TensorRT-RTX builds engines; what they compute and how long they take is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from native_models import BLOCKS, HIDDEN

from attngraft.engine import ShapeRange
from attngraft.engine.sidecar import read_card
from attngraft.pick import Recipe, make_recipe

Arrays = Mapping[str, np.ndarray]

BLOCK = "roots, added -inf, guard"
"""One fp16 site that every lowering can take."""

SHAPES = {
    "x": ShapeRange.parse(f"1x1x{HIDDEN}:2x6x{HIDDEN}:2x8x{HIDDEN}"),
    "keep": ShapeRange.parse("1x1x1x1:2x1x6x6:2x1x8x8"),
}


def save_block(folder: Path, name: str = BLOCK) -> Path:
    path = folder / "model.onnx"
    onnx.save(BLOCKS[name].model(), path)
    return path


def recipe_of(model: Path, profiles: Sequence[Mapping[str, ShapeRange]] = (SHAPES,), **options: Any) -> Recipe:
    return make_recipe(model, model.with_name("picked.engine"), profiles=tuple(profiles), backend="rtx", **options)


@dataclass
class Runner:
    """Stands for engines: ONNX Runtime over the model that they were made of. `wrong` changes the outputs of engines
    with `wrong_plugins` plugin layers, `error` is raised in place of an answer."""

    model: Path
    wrong: Callable[[np.ndarray], np.ndarray] | None = None
    wrong_plugins: int = 1
    error: Exception | None = None
    opened: list[int] = field(default_factory=list)

    @contextmanager
    def __call__(self, engine: Path) -> Iterator[Callable[[Arrays], Arrays]]:
        card = read_card(engine)
        self.opened.append(card.plugin_layers)
        if self.error is not None:
            raise self.error
        session = onnxruntime.InferenceSession(self.model, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        change = self.wrong if self.wrong is not None and card.plugin_layers == self.wrong_plugins else lambda x: x

        def compute(inputs: Arrays) -> Arrays:
            values = session.run(names, dict(inputs))
            return {name: change(value) for name, value in zip(names, values, strict=True)}

        yield compute


@dataclass
class Timer:
    """Stands for time_engines: microseconds by the number in an engine's name, that of its candidate; else 100. Every
    round has its own drift, the same for all engines, and `jitter` of each engine's own."""

    us: Mapping[int, float] = field(default_factory=dict)
    jitter: float = 0.0
    calls: list[tuple[list[int], dict[str, tuple[int, ...]]]] = field(default_factory=list)

    def __call__(
        self, engines: Sequence[Path], inputs: Arrays, *, rounds: int, runs: int, progress: object = None
    ) -> list[SimpleNamespace]:
        numbers = [int(engine.stem) for engine in engines]
        self.calls.append((numbers, {name: value.shape for name, value in inputs.items()}))
        rng = np.random.default_rng(0)
        drift = np.repeat(rng.uniform(0, 20, rounds), runs)
        samples = []
        for number in numbers:
            own = np.repeat(rng.uniform(-self.jitter, self.jitter, rounds), runs)
            samples.append(self.us.get(number, 100.0) + drift + own)
        return [
            SimpleNamespace(engine=engine, mode="graph", samples_us={"gpu": tuple(values)})
            for engine, values in zip(engines, samples, strict=True)
        ]

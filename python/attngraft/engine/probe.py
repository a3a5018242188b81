"""What the TensorRT at hand does with attention. In: cases. Out: whether each builds, and whether it is fused."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from attngraft.engine.backends import Backend, find_backend
from attngraft.engine.default_profile import default_profile
from attngraft.engine.inspector import layers_of_plan
from attngraft.engine.layers import fused_attention
from attngraft.engine.logger import MessageLog
from attngraft.engine.plan import BuildRequest, build_plan, reason_of
from attngraft.engine.probe_models import ProbeCase, all_cases, one_site_model, usual_cases
from attngraft.engine.progress import BuildProgress
from attngraft.engine.shapes import resolve_profile
from attngraft.errors import BuildError

__all__ = ["ProbeAnswer", "ProbeReport", "probe"]

MODEL_NAME = Path("one-site model")
"""Stands for the path in TensorRT's errors: the models exist in memory only."""


@dataclass(frozen=True)
class ProbeAnswer:
    """`fused` is None where the model does not parse or build, for the `reason` that TensorRT gives."""

    case: ProbeCase
    fused: bool | None
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class ProbeReport:
    """All answers of one TensorRT, which `made_by` names with its version."""

    made_by: str
    answers: tuple[ProbeAnswer, ...]


def probe(
    *, backend: str = "auto", everything: bool = False, progress: Callable[[str], None] | None = None
) -> ProbeReport:
    """Builds one-site models, about a second each, and reads from the engines what became of their site.

    everything: all combinations, some hundreds, instead of one change at a time. progress: called with one-line
    reports. Raises MissingDependency when there is no TensorRT that can build here.
    """
    chosen = find_backend(backend)
    cases = list(all_cases() if everything else usual_cases())
    answers = []
    for number, case in enumerate(cases, start=1):
        answers.append(_ask(chosen, case))
        if progress is not None:
            progress(f"probe: {number} of {len(cases)}, {case.form} {case.dtype} {case.head_size} {case.mask}")
    return ProbeReport(chosen.label, tuple(answers))


def _ask(backend: Backend, case: ProbeCase) -> ProbeAnswer:
    model = one_site_model(case)
    profile = resolve_profile(model, default_profile(model, {}))
    request = BuildRequest(backend=backend, model=model, model_path=MODEL_NAME, profiles=(profile,), library=None)
    started = time.monotonic()
    try:
        with MessageLog() as messages, _quiet_stderr():
            plan = build_plan(request, messages, BuildProgress(None))
            layers = layers_of_plan(backend, plan, messages)
    except BuildError as error:
        return ProbeAnswer(case, None, reason_of(error), time.monotonic() - started)
    fused = bool(fused_attention(layers))
    return ProbeAnswer(case, fused, seconds=time.monotonic() - started)


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """TensorRT prints a failed build's reason to standard error too, past its logger; here failures are answers."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)

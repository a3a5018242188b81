"""What is measured of one export: one function a step, each a file in and a small dictionary out."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attngraft.engine import ShapeRange
from attngraft.engine.fusion import FusionReport, find_fusion
from attngraft.engine.shapes import model_inputs
from attngraft.errors import BuildError, RewriteError, VerificationError
from attngraft.lower import Target, parse_target
from attngraft.match import match_model
from attngraft.onnx_graph import load_model
from attngraft.rewrite import rewrite_model
from benchmarks.rewriter_peers import PEERS
from benchmarks.zoo.exporting import read_facts

__all__ = ["FORMS", "STEPS"]

RTX = parse_target("rtx")

FORMS: dict[str, tuple[str, Target | None]] = {
    "softmax": ("softmax", None),
    "native": ("native", None),
    "native for rtx": ("native", RTX),
    "auto for rtx": ("auto", RTX),
}
"""What is compared with the original: lowerings, `native` in both its forms."""


def _match(path: Path) -> dict[str, Any]:
    """Sites recognised, softmaxes said to be none, and for each lowering how many sites may take it."""
    found = match_model(load_model(path))
    reasons = Counter(
        f"{lowering}: {reason}" for site in found.sites for lowering, reason in site.lowerings.items() if reason
    )
    return {
        "sites": len(found.sites),
        "others": len(found.others),
        "possible": {
            lowering: sum(site.lowerings[lowering] is None for site in found.sites)
            for lowering in ("softmax", "native")
        },
        "reasons": dict(reasons),
        "others_reasons": dict(Counter(other.reason for other in found.others)),
    }


def _rewrite(lower: str, target: Target | None) -> Callable[[Path], dict[str, Any]]:
    """Sites lowered, and the verdict of the comparison in ONNX Runtime: `equal`, `differs`, `not comparable`, or
    `nothing to do`."""

    def step(path: Path) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = rewrite_model(path, Path(folder) / "rewritten.onnx", lower=lower, target=target)
            except VerificationError as error:
                return {"lowered": 0, "verdict": "not comparable", "reason": str(error)}
            except RewriteError as error:
                return {"lowered": 0, "verdict": "nothing to do", "reason": str(error)}
        if result.taken_back:
            reason = "; ".join(f"{site}: {why}" for site, why in result.taken_back.items())
            return {"lowered": result.lowered, "verdict": "differs", "reason": reason}
        verdict = "equal" if result.report is not None else "nothing to do"  # a repair alone is a change as well
        return {"lowered": result.lowered, "verdict": verdict, "reason": ""}

    return step


def _build(lower: str) -> Callable[[Path], dict[str, Any]]:
    """How many kernels are fused attention in what TensorRT-RTX builds of the export after that lowering (`keep`: as it
    is). Raises BuildError where it refuses."""

    def step(path: Path) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            source = path
            if lower != "keep":
                source = Path(folder) / "rewritten.onnx"
                try:
                    rewrite_model(path, source, lower=lower, target=RTX, verify=False)
                except RewriteError:  # no site can take it, and what the message advises is auto
                    rewrite_model(path, source, lower="auto", target=RTX, verify=False)
            report = _built(source, read_facts(path))
        if report.failure:
            raise BuildError(report.failure)
        return {"fused": report.kernels}

    return step


def _built(source: Path, facts: Mapping[str, Any] | None) -> FusionReport:
    """Built for a range of shapes, or, where tracing has fixed sizes, for those that the export was made with."""
    model = load_model(source)
    sites = match_model(model)
    report = find_fusion(model, source, sites, backend="rtx")
    if report.failure and facts and facts.get("shapes"):
        shapes = {
            name: ShapeRange.fixed(tuple(facts["shapes"][name]))
            for name in model_inputs(model)
            if name in facts["shapes"]
        }
        report = find_fusion(model, source, sites, backend="rtx", shapes=shapes)
    return report


def _peer(fuse: Callable[[Path], Mapping[str, int]]) -> Callable[[Path], dict[str, Any]]:
    return lambda path: dict(fuse(path))


STEPS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "match": _match,
    **{f"peer {name}": _peer(fuse) for name, fuse in PEERS.items()},
    **{f"rewrite {form}": _rewrite(*how) for form, how in FORMS.items()},
    **{f"build {lower}": _build(lower) for lower in ("keep", "native", "auto")},
}
"""By name, in the order in which they run. Each runs in a process of its own."""

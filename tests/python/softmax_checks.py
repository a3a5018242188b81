"""Runs of the softmax kernels' source on the emulated device, checked against the float64 oracle."""

from __future__ import annotations

import numpy as np
from mask_abi import DTYPES
from softmax_abi import Emulated, emulated_softmax
from softmax_cases import Case, assert_matches

from attngraft.contract import MaskedSoftmax, Role
from attngraft.verify import oracle

NONE, KEEP, BIAS, ANY = range(4)  # kinds of masks: which tensors a kernel reads beside the scores
VECTORS, ELEMENTS, PASSES, LONG, EVEN, UNEVEN = range(6)  # strategies


def normal(shape: tuple[int, ...], dtype: str = "float16", seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 3).astype(DTYPES[dtype])


def check(case: Case, **options: object) -> Emulated:
    run = emulated_softmax(case.scores, case.config, case.operands, **options)
    assert_matches(run.probabilities, oracle.masked_softmax(case.scores, case.config, **case.operands), case)
    return run


def masked_case(shape: tuple[int, ...], dtype: str, tensors: int, **config: object) -> Case:
    """Scores with a mask of a kind, one row of which allows no key."""
    rng = np.random.default_rng(shape[-1])
    keep = rng.random((*shape[:-2], 1, shape[-1])) < 0.7
    keep[0, ..., 0] = True
    operands = {
        NONE: {},
        KEEP: {Role.KEEP: keep},
        BIAS: {Role.BIAS: rng.standard_normal((1, *shape[1:])).astype(DTYPES[dtype])},
        ANY: {Role.KEEP: keep.astype(np.int32), Role.BIAS: rng.standard_normal(shape[-1:]).astype(np.float32)},
    }[tensors]
    return Case(normal(shape, dtype), MaskedSoftmax(operands=tuple(operands), **{"scale": 0.25, **config}), operands)

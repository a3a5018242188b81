"""Proof that a rewritten model computes what the original computes, and the oracle of the contract."""

from attngraft.verify.compare import TOLERANCES, compare_with, verify_models
from attngraft.verify.oracle import masked_softmax
from attngraft.verify.original import OriginalRun, run_original
from attngraft.verify.outputs import compare_outputs, usual_distances
from attngraft.verify.results import OutputResult, VerificationReport
from attngraft.verify.take_back import take_back

__all__ = [
    "TOLERANCES",
    "OriginalRun",
    "OutputResult",
    "VerificationReport",
    "compare_outputs",
    "compare_with",
    "masked_softmax",
    "run_original",
    "take_back",
    "usual_distances",
    "verify_models",
]

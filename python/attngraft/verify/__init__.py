"""Proof that a rewritten model computes what the original computes, and the oracle of the contract."""

from attngraft.verify.compare import TOLERANCES, verify_models
from attngraft.verify.oracle import masked_softmax
from attngraft.verify.results import OutputResult, VerificationReport

__all__ = ["TOLERANCES", "OutputResult", "VerificationReport", "masked_softmax", "verify_models"]

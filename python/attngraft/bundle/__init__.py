"""Deployment: an engine in, a folder that runs elsewhere out, for Triton Inference Server or by itself."""

from attngraft.bundle.manifest import check_bundle
from attngraft.bundle.write import FORMATS, BundleResult, write_bundle

__all__ = ["FORMATS", "BundleResult", "check_bundle", "write_bundle"]

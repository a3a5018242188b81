"""Measurements against the peers. Run from the top of the source tree: `python -m benchmarks.softmax_kernel`."""

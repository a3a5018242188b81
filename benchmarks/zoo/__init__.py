"""A zoo of small attention models and their exports, with random weights, made on demand: `python -m benchmarks.zoo`.

Every entry is a module of a real library or an idiom from real code; every export knows how many of its softmaxes are
attention, counted in PyTorch or stated by hand, never by the matcher that is measured with it. Needs the extra
`benchmarks`.
"""

"""Command line: `python -m attngraft.onnx_export bert-base -o bert.onnx`."""

from __future__ import annotations

import argparse
import sys

from attngraft.errors import AttngraftError
from attngraft.onnx_export.exporter import EXPORTERS
from attngraft.onnx_export.samples import ATTENTIONS, DTYPES, SAMPLES

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Exports one sample. Returns the exit status: 0, or 1 after a one-line error."""
    options = _parser().parse_args(argv)
    try:
        print(
            f"exporting {options.sample} ({options.dtype}, {options.attention} attention, {options.exporter})",
            file=sys.stderr,
        )
        sample = SAMPLES[options.sample].build(small=options.small, dtype=options.dtype, attention=options.attention)
        path = sample.export(options.output, exporter=options.exporter, opset=options.opset, check=options.check)
    except AttngraftError as error:
        print(f"attngraft: error: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m attngraft.onnx_export",
        description="Exports a sample model with random weights to ONNX.",
        epilog="samples: " + "; ".join(f"{name}: {sample.description}" for name, sample in SAMPLES.items()),
    )
    parser.add_argument("sample", choices=sorted(SAMPLES), metavar="SAMPLE", help=", ".join(sorted(SAMPLES)))
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the ONNX file to write")
    parser.add_argument("--exporter", choices=EXPORTERS, default="dynamo", help="PyTorch's exporter (default: dynamo)")
    parser.add_argument("--opset", type=int, help="ONNX opset (default: 18 with dynamo, 17 with torchscript)")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="fp32", help="type of weights (default: fp32)")
    parser.add_argument("--attention", choices=ATTENTIONS, default="eager", help="attention's form (default: eager)")
    parser.add_argument("--small", action="store_true", help="two layers of hidden size 64 instead of the real sizes")
    parser.add_argument("--check", action="store_true", help="compare with the module in ONNX Runtime")
    return parser


if __name__ == "__main__":
    sys.exit(main())

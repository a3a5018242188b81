"""docs/measurements.md from results/*.json. `--check` writes nothing and exits 1 when the file is out of date."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.make_plots import FOLDER, PICTURES
from benchmarks.results_file import CountRow, read_results

__all__ = ["DOCUMENT", "counts_table", "render"]

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "measurements.md"

INTRODUCTION = """\
# Measurements

Made by `python -m benchmarks.make_tables` and `make_plots` from the files in `benchmarks/results/`; nothing here is
typed by hand. Times are microseconds of GPU time: medians over rounds of CUDA-graph replays in which all candidates of
a row take turns. `limit` is what the hardware allows for that work: bytes over measured streaming bandwidth, or
operations over the rate measured for a large matrix product.
"""

SECTIONS = {
    "softmax-kernel": (
        "The kernel alone",
        "Scale, mask and softmax of the scores, `B8 H32 2048x2048` meaning scores [8, 32, 2048, 2048]; the mask is a "
        "boolean padding mask over the keys, the same as an additive mask, or none (`plain`). `torch-softmax`, "
        "`liger-softmax` and `quack-softmax` neither scale nor mask; `triton-one-row` is a Triton program a row. "
        "Measured by `python -m benchmarks.softmax_kernel`.",
    ),
    "softmax-profile": (
        "What the softmax kernels are busy with",
        "One launch under Nsight Compute, as for attention below; `memory` is the share of what the memory's own clock "
        "and width allow. Measured by `python -m benchmarks.softmax_profile`.",
    ),
    "softmax-backward-kernel": (
        "The backward kernel alone",
        "From probabilities and their gradient that of the scores, `B8 H32 1024x2048` meaning tensors [8, 32, 1024, "
        "2048]: `plain`, under a `softcap`, which takes the scores too, or with the gradient of a `bias` [32, 1024, "
        "2048] beside it. `torch-softmax-backward` is PyTorch's own kernel, which neither scales nor caps nor sums. "
        "Measured by `python -m benchmarks.softmax_backward_kernel`.",
    ),
    "attention-kernel": (
        "The attention kernel alone",
        "`B8 H12 S384 d64` means queries, keys and values [8, 12, 384, 64], laid out as projections give them ([B, S, "
        "H, D]); `1x65536` is one query over so many keys, `H32/8` eight key heads for 32 query heads. `lengths` are "
        "lengths of 128 to 384 of eight sequences, `keep` the same as a boolean mask. fp32 is TF32, for "
        "`torch-sdpa-math` too. `ours` is the kernel that the table chooses, `best` the fastest of all that serve the "
        "work. Measured by `python -m benchmarks.attention_kernel`.",
    ),
    "attention-profile": (
        "What the attention kernels are busy with",
        "One launch under Nsight Compute, which runs nothing beside it and empties the caches before. `tensor`, "
        "`issue`, `xu` (exponentials), `alu` (maxima, comparisons, conversions) and `fma` are shares of the cycles in "
        "which a multiprocessor had work; the waits are shares of samples of warps: `selected` issued, `not_selected` "
        "could have, `wait` is the latency of an instruction before, `barrier` a meeting of warps, `long_scoreboard` "
        "memory or a counting barrier. Measured by `python -m benchmarks.attention_profile`.",
    ),
    "attention-in-tensorrt": (
        "Attention in whole models in TensorRT",
        "`plain` is the model as it was given, `native` and `ours` have lowerings `native` and `attention`. `fused` "
        "counts TensorRT's own fused attention kernels, `speed-up` is over the faster of plain and native, "
        "`difference` is the largest from the float32 model in ONNX Runtime; an empty cell is a form that TensorRT "
        "refuses or that the rewriter does not have. Measured by `python -m benchmarks.attention_in_tensorrt`.",
    ),
    "pick-fastest": (
        "The fastest engine that is right",
        "What `attngraft build --pick fastest` finds: every lowering built, compared with ONNX Runtime, and timed in "
        "turns. `plain` is the model as it was given, `mixes` the fastest of those that lower classes of sites "
        "differently; an empty cell is a form that fails or is the same model as another. `gain` is plain over picked, "
        "`noise` up to where a gain over plain would have been a tie, which goes to fewer plugins. Measured by `python "
        "-m benchmarks.pick_fastest`.",
    ),
    "softmax-in-tensorrt": (
        "Whole models in TensorRT",
        "`ours` has every attention softmax lowered to the plugin, `tensorrt-plain` is the model as it was given. The "
        "plugin cuts the graph in two, so that TensorRT's own fused attention no longer applies: `auto` therefore "
        "keeps such sites. Measured by `python -m benchmarks.models_in_tensorrt`.",
    ),
    "session": (
        "Serving, with CUDA graphs and without",
        "Wall time of a run, p50 / p99. *Host to host*: inputs from page-locked memory and outputs back into it, the "
        "work enqueued plainly (`plain`) or replayed (`graph`). *Device to device*: `Session.run` on tensors that are "
        "on the GPU, with its graph and without, and `Session.bind`, which copies nothing (`bound`), beside a loop "
        "that launches the same graph and waits for it (`launch`), and one that also copies inputs and outputs as the "
        "session does (`and copies`). `adds` is what the session's median has over that of `launch`, `of it Python` "
        "over that of `and copies`, and `bound adds` that of `bound` over that of `launch`. `host` is how long the CPU "
        "is busy until the work is in a stream of the caller's: of the session, a bound run, and launch and copies. "
        "`limit` is for the transformer layers' products alone. Measured by `python -m benchmarks.session_latency`.",
    ),
    "rewriter-zoo": (
        "The rewriter over a zoo of exports",
        "Exports of small models with random weights (`python -m benchmarks.zoo`), each with its true number of "
        "softmaxes, counted in PyTorch. *Recognition*: attention softmaxes found, beside those that ONNX Runtime's "
        "optimizer, its session, onnxscript's and onnxsim's rewriting turn into a fused attention node (nodes of the "
        "standard Attention operator that are in the export already count for all); `others` are no attention, and are "
        "not to be touched. *Lowerings*: what became of the sites, and whether the outputs stay the original's in ONNX "
        "Runtime, masks in all patterns. *TensorRT-RTX*: exports that build, and fused attention kernels in them, as "
        "they are (`keep`), with lowering `native`, and with `auto`. Measured by `python -m benchmarks.rewriter_zoo`.",
    ),
    "rewriter-zoo-fusable": (
        "The same with heads that TensorRT can fuse",
        "Head size 64, hidden size 256, one layer: a sample of the exports in fp16 (`python -m benchmarks.zoo --size "
        "fusable --filter 'fp16$' --sample 100`; some of them no exporter makes), for the counts of fused sites. "
        "TensorRT's fused kernels take no float32, and no heads as small as those of the zoo above. Measured by "
        "`python -m benchmarks.rewriter_zoo --exports .zoo/fusable --results rewriter-zoo-fusable`.",
    ),
    "rewriter-native": (
        "Lowering `native` in TensorRT",
        "Two layers of real size, fp16, in one interleaved run per architecture: each export as it is, and rewritten "
        "to plain ONNX with lowering `native`. `fused` counts TensorRT's own fused attention kernels; `difference` is "
        "the largest from the float32 model in ONNX Runtime; an empty cell is an export that TensorRT refuses. "
        "Measured by `python -m benchmarks.rewriter_native`.",
    ),
    "rewriter-speed": (
        "Speed of rewriting",
        "Without verification, each in a process of its own: milliseconds, and peak memory of the process beside what "
        "it was before. The weights of the 2 GB model are in a file of their own. Measured by "
        "`python -m benchmarks.rewriter_speed`.",
    ),
}

LEFT_OUT_UNTIL_MEASURED = (
    "softmax-backward-kernel", "softmax-profile", "attention-profile", "session", "pick-fastest",
)  # fmt: skip
"""Sections that the document has only once there are results."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the file is up to date")
    options = parser.parse_args()
    text = render()
    if not options.check:
        DOCUMENT.write_text(text)
        return 0
    if DOCUMENT.read_text() == text:
        return 0
    print(f"{DOCUMENT} is out of date; run python -m benchmarks.make_tables", file=sys.stderr)
    return 1


def render() -> str:
    """The whole document."""
    parts = [INTRODUCTION]
    for name, (title, explanation) in SECTIONS.items():
        results = read_results(name)
        if results is None and name in LEFT_OUT_UNTIL_MEASURED:
            continue
        body = _pictures(name) + _body(name, results) if results else "Not measured yet."
        parts.append(f"## {title}\n\n{explanation}\n\n{body}\n")
    return "\n".join(parts)


def _pictures(name: str) -> str:
    shown = {file: picture for file, picture in PICTURES.items() if picture.results == name}
    return "".join(f"![{picture.shows}]({FOLDER.name}/{file})\n\n" for file, picture in shown.items())


def _body(name: str, results: dict[str, Any]) -> str:
    if "sections" in results:
        return _counts(results)
    tables = {
        "rewriter-native": _native,
        "attention-kernel": _kernels,
        "attention-in-tensorrt": _forms,
        "pick-fastest": _picks,
        "softmax-profile": _shares,
        "attention-profile": _shares,
        "session": _sessions,
    }
    return tables.get(name, _section)(results)


def _counts(results: dict[str, Any]) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in results["packages"].items() if version)
    parts = [f"{versions}; commit {_commit(results)}, {results['date'][:10]}."]
    for section, rows in results["sections"].items():
        title = [f"*{section.capitalize()}*"] if len(results["sections"]) > 1 else []
        parts += [*title, counts_table([CountRow(**row) for row in rows])]
    return "\n\n".join(parts)


def _native(results: dict[str, Any]) -> str:
    columns = ["fused before", "fused after", "before", "after", "speed-up", "limit", "difference before",
               "difference after"]  # fmt: skip
    lines = _head(["work"], columns)
    for row in results["rows"]:
        before, after, notes = row["peers_us"].get("tensorrt-plain"), row["ours_us"], row["notes"]
        fused = [_length(notes.get(f"{label} fused")) for label in ("tensorrt-plain", "ours")]
        gaps = [_difference(notes.get(f"{label} difference")) for label in ("tensorrt-plain", "ours")]
        ratio = f"{before / after:.2f}" if before and after else ""
        times = [_microseconds(value) for value in (before, after)]
        lines.append(_line([row["work"], *fused, *times, ratio, _microseconds(row["bound_us"]), *gaps]))
    return _header(results) + "\n\n" + "\n".join(lines)


def _kernels(results: dict[str, Any]) -> str:
    peers = list(dict.fromkeys(peer for row in results["rows"] for peer in row["peers_us"]))
    lines = _head(["work", "type"], ["ours", "best", "limit", "of limit", *peers])
    for row in results["rows"]:
        times = row["notes"].get("variants_us", {})
        best = min(times, key=times.__getitem__, default=None)
        shown = "" if best is None else f"{_microseconds(times[best])} ({best.removeprefix('variant ')})"
        share = f"{row['bound_us'] / row['ours_us']:.0%}" if row["ours_us"] else "wrong"
        cells = [row["work"], row["dtype"], _microseconds(row["ours_us"]), shown, _microseconds(row["bound_us"]), share]
        lines.append(_line([*cells, *(_microseconds(row["peers_us"].get(peer)) for peer in peers)]))
    return _header(results) + "\n\n" + "\n".join(lines)


def _shares(results: dict[str, Any]) -> str:
    busy = list(dict.fromkeys(key for row in results["rows"] for key in row["notes"]["shares"] if ":" not in key))
    lines = _head(["work", "type", "waits of warps"], ["us", *busy])
    for row in results["rows"]:
        found = row["notes"]["shares"]
        waits = [f"{key.removeprefix('waits: ')} {share:.0%}" for key, share in found.items() if ":" in key]
        cells = [row["work"], row["dtype"], ", ".join(waits), _microseconds(row["ours_us"])]
        lines.append(_line([*cells, *(f"{found[key]:.0%}" if key in found else "" for key in busy)]))
    return _header(results) + "\n\n" + "\n".join(lines)


SERVED = {
    "plain": "host to host, plain",
    "graph": "graph",
    "session-plain": "device to device, without graph",
    "session": "session",
    "session-bound": "bound",
    "bare-graph": "launch",
    "bare-graph-and-copies": "and copies",
}
"""What was timed in results of the session, and its column."""

HOST = {"session": "host: session", "session-bound": "host: bound", "bare-graph-and-copies": "host: and copies"}
"""The same for the CPU's time."""


def _sessions(results: dict[str, Any]) -> str:
    lines = _head(["work", "type"], [*SERVED.values(), "adds", "of it Python", "bound adds", *HOST.values(), "limit"])
    for row in results["rows"]:
        found, notes = row["notes"]["percentiles_us"], row["notes"]
        times = [
            f"{_microseconds(found[name]['p50'])} / {_microseconds(found[name]['p99'])}" if name in found else ""
            for name in SERVED
        ]
        keys = ("session_adds_us", "python_adds_us", "bound_adds_us")
        added = [f"{notes[key]:.1f}" if key in notes else "" for key in keys]
        on_host = notes.get("host_us", {})
        added += [f"{on_host[name]['p50']:.1f}" if name in on_host else "" for name in HOST]
        lines.append(_line([row["work"], row["dtype"], *times, *added, _microseconds(row["bound_us"] or None)]))
    return _header(results) + "\n\n" + "\n".join(lines)


FORMS = {"tensorrt-plain": "plain", "tensorrt-native": "native", "ours": "ours"}
"""Labels of the forms of a model in results, and in the table."""


def _forms(results: dict[str, Any]) -> str:
    names = list(FORMS.values())
    columns = [*names, "speed-up", "limit", "fused plain", "fused native"]
    lines = _head(["work", "type"], [*columns, *(f"difference {name}" for name in names)])
    for row in results["rows"]:
        times = {**row["peers_us"], "ours": row["ours_us"]}
        others = [us for label, us in times.items() if label != "ours" and us]
        ratio = f"{min(others) / row['ours_us']:.2f}" if others and row["ours_us"] else ""
        limit = _microseconds(row["bound_us"] or None)
        fused = [_length(row["notes"].get(f"{label} fused")) for label in FORMS if label != "ours"]
        gaps = [_difference(row["notes"].get(f"{label} difference")) for label in FORMS]
        shown = [_microseconds(times.get(label)) for label in FORMS]
        lines.append(_line([row["work"], row["dtype"], *shown, ratio, limit, *fused, *gaps]))
    return _header(results) + "\n\n" + "\n".join(lines)


PICKED_FORMS = {"tensorrt-plain": "plain", "tensorrt-native": "native", "attention": "attention", "softmax": "softmax"}


def _picks(results: dict[str, Any]) -> str:
    lines = _head(["work", "type", "picked"], [*PICKED_FORMS.values(), "mixes", "ours", "limit", "gain", "noise"])
    for row in results["rows"]:
        times, notes = row["peers_us"], row["notes"]
        mixes = [us for label, us in times.items() if label not in PICKED_FORMS]
        shown = [*(times.get(label) for label in PICKED_FORMS), min(mixes, default=None), row["ours_us"]]
        gain = f"{notes['over_plain']:.3f}" if notes["over_plain"] else ""
        noise = "" if notes["noise_us"] is None else f"{notes['noise_us'] / row['ours_us']:.1%}"
        limit = _microseconds(row["bound_us"] or None)
        cells = [row["work"], row["dtype"], notes["picked"], *map(_microseconds, shown), limit, gain, noise]
        lines.append(_line(cells))
    return _header(results) + "\n\n" + "\n".join(lines)


def _head(texts: list[str], numbers: list[str]) -> list[str]:
    """The first two lines of a table: columns of texts, and columns of numbers to the right of them."""
    return [_line([*texts, *numbers]), _line(["---"] * len(texts) + ["---:"] * len(numbers))]


def _length(names: list[str] | None) -> str:
    return "" if names is None else str(len(names))


def _difference(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _commit(results: dict[str, Any]) -> str:
    return (results["commit"] or "unknown")[:12]


def _header(results: dict[str, Any]) -> str:
    versions = ", ".join(f"{key} {results[key]}" for key in ("driver", "cuda", "tensorrt", "torch") if results[key])
    runs = Counter((_commit({**results, **row}), {**results, **row}["date"][:10]) for row in results["rows"])
    if len(runs) == 1:
        ((commit, date),) = runs
        return f"{results['device']}, {versions}; commit {commit}, {date}."
    parts = [f"{commit} ({count} works), {date}" for (commit, date), count in runs.items()]
    return f"{results['device']}, {versions}; commits {'; '.join(parts)}."


def counts_table(rows: Sequence[CountRow]) -> str:
    """Counts as a table in Markdown: a line a group, a column a thing counted."""
    columns = list(dict.fromkeys(column for row in rows for column in row.counts))
    lines = _head([""], columns)
    lines += [_line([row.work, *(str(row.counts.get(column, "")) for column in columns)]) for row in rows]
    return "\n".join(lines)


def _section(results: dict[str, Any]) -> str:
    peers = list(dict.fromkeys(peer for row in results["rows"] for peer in row["peers_us"]))
    lines = _head(["work", "type"], ["ours", "limit", "of limit", *peers])
    for row in results["rows"]:
        share = f"{row['bound_us'] / row['ours_us']:.0%}"
        times = [_microseconds(row["peers_us"].get(peer)) for peer in peers]
        lines.append(
            _line(
                [
                    row["work"],
                    row["dtype"],
                    _microseconds(row["ours_us"]),
                    _microseconds(row["bound_us"]),
                    share,
                    *times,
                ]
            )
        )
    return _header(results) + "\n\n" + "\n".join(lines)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _microseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())

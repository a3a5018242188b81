"""What `inspect` prints: one line a site, equal sites together, with a numbered note for each reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from attngraft.engine.fusion import SiteFusion
from attngraft.match.records import ModelSites, Site
from attngraft.report.grouping import group_by, name_pattern
from attngraft.report.phrases import describe_site, possible_lowerings, refused_lowerings
from attngraft.report.records import Inspection
from attngraft.report.table import format_table

__all__ = ["distinct_sites", "fused_text", "inspection_lines", "other_lines", "repair_lines", "summary_lines"]


@dataclass
class _Notes:
    """Reasons by number, each text once."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """`[2]`, the number of a text; a new text gets the next number."""
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"

    def lines(self) -> list[str]:
        return [f"[{number}] {text}" for number, text in enumerate(self.texts, start=1)]


def inspection_lines(inspection: Inspection, *, verbose: bool = False) -> list[str]:
    """The report for a terminal: the table of sites, its notes, the softmaxes that are no attention, and the counts.

    verbose: every site has its own line; otherwise sites that differ in name only share one.
    """
    lines: list[str] = []
    if inspection.sites.sites:
        notes = _Notes()
        table = _sites_table(inspection, notes, verbose)
        lines += [*table.splitlines(), *notes.lines(), ""]
    lines += other_lines(inspection.sites, verbose=verbose)
    lines += repair_lines("to be repaired", inspection.repairs)
    lines += summary_lines(inspection.sites, inspection.choices, {})
    lines.append(f"lowerings chosen for {inspection.target or 'any TensorRT (none found here, and no --target)'}")
    if inspection.fusion is not None:
        lines.append(_fusion_line(inspection))
    return lines


def distinct_sites(inspection: Inspection) -> list[list[Site]]:
    """Sites in groups whose members differ in nothing that a report shows but their names."""
    fused = _fused_texts(inspection)
    return group_by((_key(inspection, site, fused), site) for site in inspection.sites.sites)


def other_lines(sites: ModelSites, *, verbose: bool = False) -> list[str]:
    """The softmaxes that are no attention, and why they were taken for none; those with one reason together."""
    grouped = group_by(((other.reason, other.name if verbose else "", other.graph), other) for other in sites.others)
    return [_other_line(group) for group in grouped]


def repair_lines(title: str, repairs: Sequence[str]) -> list[str]:
    """Repairs, `node: what was done` each; those that differ in the node only together."""
    split = [(*repair.partition(": ")[::2],) for repair in repairs]
    groups = group_by((what, node) for node, what in split)
    whats = dict.fromkeys(what for _, what in split)
    return [
        f"{title}: {_times(len(nodes))}{name_pattern(nodes)}: {what}" for nodes, what in zip(groups, whats, strict=True)
    ]


def summary_lines(sites: ModelSites, choices: Mapping[str, str], reasons: Mapping[str, str]) -> list[str]:
    """How many sites become what, and each reason for it once, with the number of sites that it holds for."""
    counts = Counter(choices.values())
    parts = [f"{count} {lowering}" for lowering, count in sorted(counts.items(), reverse=True)]
    head = f"{_counted(len(sites.sites), 'attention site')}" + (f" ({', '.join(parts)})" if parts else "")
    lines = [f"{head}, {_counted(len(sites.others), 'other softmax', 'other softmaxes')}"]
    lines += [f"{count} x {reason}" for reason, count in Counter(reasons.values()).items()]
    return lines


def fused_text(fusion: SiteFusion) -> str:
    """`yes`, `no`, or that names do not tell."""
    return f"not known: {fusion.note}" if fusion.fused is None else "yes" if fusion.fused else "no"


def _counted(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _times(number: int) -> str:
    return f"{number} x " if number > 1 else ""


def _key(inspection: Inspection, site: Site, fused: Mapping[str, str]) -> tuple[object, ...]:
    return (
        site.graph,
        tuple(describe_site(site)),
        tuple(site.lowerings.items()),
        inspection.choices[site.name],
        inspection.reasons.get(site.name),
        fused.get(site.name),
    )


def _fused_texts(inspection: Inspection) -> dict[str, str]:
    found = inspection.fusion.sites if inspection.fusion else ()
    return {fusion.site: fused_text(fusion) for fusion in found}


def _sites_table(inspection: Inspection, notes: _Notes, verbose: bool) -> str:
    groups = [[site] for site in inspection.sites.sites] if verbose else distinct_sites(inspection)
    fused = _fused_texts(inspection)
    rows = [list(_row(inspection, group, notes, fused)) for group in groups]
    header = ["sites", "node", "layer", "recognised", "becomes", "can be", "cannot be", "fused"]
    hidden = {"fused"} if inspection.fusion is None else set()
    hidden |= {"layer"} if not _layers_tell_more(inspection) else set()
    hidden |= {"sites"} if all(len(group) == 1 for group in groups) else set()
    shown = [index for index, title in enumerate(header) if title not in hidden]
    return format_table([header[i] for i in shown], [[row[i] for i in shown] for row in rows])


def _row(inspection: Inspection, group: list[Site], notes: _Notes, fused: Mapping[str, str]) -> Iterator[str]:
    first = group[0]
    chosen, reason = inspection.choices[first.name], inspection.reasons.get(first.name)
    yield f"{len(group)} x"
    yield name_pattern([site.name for site in group])
    yield name_pattern([inspection.layers.get(site.name, "") for site in group])
    yield ", ".join(describe_site(first))
    yield chosen if reason is None else f"{chosen} {notes.mark(reason)}"
    yield " ".join(possible_lowerings(first))
    yield " ".join(f"{name} {notes.mark(why)}" for name, why in refused_lowerings(first).items()) or "-"
    yield fused.get(first.name, "")


def _layers_tell_more(inspection: Inspection) -> bool:
    """False where the layers are but the nodes' names once more, as the older exporter of torch.onnx makes them."""
    return any(layer and layer not in name.replace("/", ".") for name, layer in inspection.layers.items())


def _other_line(group: list) -> str:
    first = group[0]
    where = f" in {first.graph}" if first.graph else ""
    return f"{_times(len(group))}{name_pattern([other.name for other in group])}{where}: left alone, {first.reason}"


def _fusion_line(inspection: Inspection) -> str:
    fusion = inspection.fusion
    if fusion.failure:
        return f"{fusion.made_by} does not build the model: {fusion.failure}"
    line = f"{fusion.made_by} fuses {fusion.fused} of {_counted(len(fusion.sites), 'site')}"
    if fusion.elsewhere:
        line += f", and has {_counted(fusion.elsewhere, 'fused attention kernel')} that names lead to none of them"
    return line

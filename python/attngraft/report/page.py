"""`inspect --html`: one page that needs nothing beside itself. In: a model and its inspection. Out: an HTML file."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from pathlib import Path

from onnx import GraphProto, ModelProto

import attngraft
from attngraft.engine.files import write_atomically
from attngraft.lower import lower_model
from attngraft.match.records import Site
from attngraft.onnx_graph import default_opset, walk_graphs
from attngraft.report.drawing import draw_graph
from attngraft.report.grouping import name_pattern
from attngraft.report.inspection import distinct_sites, fused_text, summary_lines
from attngraft.report.page_style import STYLE
from attngraft.report.phrases import describe_site, possible_lowerings, refused_lowerings
from attngraft.report.records import Inspection
from attngraft.report.site_graph import site_graph

__all__ = ["page_html", "write_page"]

LEGEND = (
    ("product", "matrix product"),
    ("scale", "scale"),
    ("mask", "mask"),
    ("softmax", "softmax"),
    ("layout", "moves data"),
    ("attention", "Attention operator"),
    ("plugin", "attngraft plugin"),
)


WIDEST_BESIDE_ANOTHER = 800
"""Pixels: two wider pictures side by side would be scaled down until nobody can read them."""


def write_page(path: Path, model: ModelProto, inspection: Inspection) -> None:
    """Writes the page; the file appears whole or not at all. Raises BuildError when it cannot be written."""
    write_atomically({path: page_html(model, inspection).encode()})


def page_html(model: ModelProto, inspection: Inspection) -> str:
    """The whole page. `model` is the one that was inspected; it is lowered in memory, for the pictures only."""
    name = html.escape(Path(inspection.model).name)
    body = [
        f"<h1>{name}</h1>",
        f'<p class="quiet">{html.escape(". ".join(summary_lines(inspection.sites, inspection.choices, {})))}</p>',
        _facts(model, inspection),
        *_pictures(model, inspection),
        *_sites_table(inspection),
        *_others_table(inspection),
        *_repairs_list(inspection),
        f'<footer class="quiet">attngraft {html.escape(attngraft.__version__)}</footer>',
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Attention in {name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _facts(model: ModelProto, inspection: Inspection) -> str:
    nodes = sum(len(graph.node) for _, graph in walk_graphs(model.graph))
    exporter = " ".join(filter(None, (model.producer_name, model.producer_version)))
    facts = [
        ("attention sites", str(len(inspection.sites.sites))),
        ("distinct ones", str(len(distinct_sites(inspection)))),
        ("other softmaxes", str(len(inspection.sites.others))),
        ("nodes", str(nodes)),
        ("opset", str(default_opset(model))),
        ("exported by", exporter or "not told"),
        ("lowerings for", str(inspection.target or "any TensorRT")),
    ]
    if inspection.fusion is not None:
        fusion = inspection.fusion
        answer = f"{fusion.fused} of {len(fusion.sites)}"
        facts.append((fusion.made_by, "not built") if fusion.failure else (f"fused by {fusion.made_by}", answer))
    items = (f"<li><b>{html.escape(value)}</b>{html.escape(title)}</li>" for title, value in facts)
    failure = inspection.fusion.failure if inspection.fusion else ""
    told = f'<p class="quiet">{html.escape(f"{inspection.fusion.made_by}: {failure}")}</p>' if failure else ""
    return f'<ul class="facts">{"".join(items)}</ul>{told}'


def _pictures(model: ModelProto, inspection: Inspection) -> Iterator[str]:
    groups = distinct_sites(inspection)
    if not groups:
        return
    before = dict(walk_graphs(model.graph))
    changed = any(choice != "keep" for choice in inspection.choices.values())
    after = dict(walk_graphs(_lowered(model, inspection).graph)) if changed else before
    yield "<h2>Distinct sites</h2>"
    yield f'<p class="legend">{"".join(f"<span class={kind}>{words}</span>" for kind, words in LEGEND)}</p>'
    for group in groups:
        yield _site_section(inspection, group, before, after)


def _lowered(model: ModelProto, inspection: Inspection) -> ModelProto:
    return lower_model(model, inspection.sites, inspection.choices, inspection.target)


def _site_section(
    inspection: Inspection, group: list[Site], before: dict[str, GraphProto], after: dict[str, GraphProto]
) -> str:
    site = group[0]
    chosen = inspection.choices[site.name]
    reason = inspection.reasons.get(site.name, "")
    names = html.escape(name_pattern([member.name for member in group]))
    count = f"{len(group)} \u00d7 " if len(group) > 1 else ""
    titles = ("as the model has it",) if chosen == "keep" else ("before", f"after, lowering {chosen}")
    graphs = (before, after)[: len(titles)]
    drawings = [draw_graph(site_graph(made[site.graph], site), title) for title, made in zip(titles, graphs)]
    alone = len(drawings) == 1 or max(drawing.width for drawing in drawings) > WIDEST_BESIDE_ANOTHER
    single = " single" if alone else ""
    pictures = "".join(
        f'<div class="picture"><h4>{title}</h4>{drawing.svg}</div>' for title, drawing in zip(titles, drawings)
    )
    return (
        f'<section class="site"><h3>{count}{names}</h3><p>{html.escape(", ".join(describe_site(site)))}</p>'
        f'<p><span class="badge {chosen}">{chosen}</span> <span class="quiet">{html.escape(reason)}</span></p>'
        f'<div class="pictures{single}">{pictures}</div></section>'
    )


def _sites_table(inspection: Inspection) -> Iterator[str]:
    if not inspection.sites.sites:
        return
    fused = {found.site: fused_text(found) for found in inspection.fusion.sites} if inspection.fusion else {}
    header = ["node", "layer", "recognised", "becomes", "can be", "cannot be, since"] + (["fused"] if fused else [])
    rows = []
    for site in inspection.sites.sites:
        refused = (f"<li><b>{name}</b>: {html.escape(why)}</li>" for name, why in refused_lowerings(site).items())
        chosen, reason = inspection.choices[site.name], inspection.reasons.get(site.name, "")
        row = [
            ("name", html.escape(site.name)),
            ("name", html.escape(inspection.layers.get(site.name, ""))),
            ("words", html.escape(", ".join(describe_site(site)))),
            ("words", f'<span class="badge {chosen}">{chosen}</span> {html.escape(reason)}'),
            ("short", html.escape(", ".join(possible_lowerings(site)))),
            ("words", f'<ul class="reasons">{"".join(refused)}</ul>'),
        ]
        rows.append(row + ([("short", html.escape(fused[site.name]))] if fused else []))
    yield "<h2>All sites</h2>"
    yield _table(header, rows)


def _others_table(inspection: Inspection) -> Iterator[str]:
    if not inspection.sites.others:
        return
    rows = (
        [("name", html.escape(other.name)), ("name", html.escape(other.graph)), ("words", html.escape(other.reason))]
        for other in inspection.sites.others
    )
    yield "<h2>Softmaxes left alone</h2>"
    yield _table(["node", "graph", "reason"], rows)


def _repairs_list(inspection: Inspection) -> Iterator[str]:
    if inspection.repairs:
        yield "<h2>To be repaired beside the sites</h2>"
        yield f"<ul>{''.join(f'<li>{html.escape(repair)}</li>' for repair in inspection.repairs)}</ul>"


def _table(header: Iterable[str], rows: Iterable[Iterable[tuple[str, str]]]) -> str:
    head = "".join(f"<th>{title}</th>" for title in header)
    lines = (f"<tr>{''.join(f'<td class={kind}>{cell}</td>' for kind, cell in row)}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'

"""`bench --html`: one page with the plots and the table, which needs nothing beside itself."""

from __future__ import annotations

import html

import attngraft
from attngraft.report.bench import BenchReport, bench_rows, explanation
from attngraft.report.latency_plot import latency_plots, latency_svg
from attngraft.report.page_style import STYLE

__all__ = ["bench_page"]


def bench_page(report: BenchReport) -> str:
    """The whole page; without plots where nothing is swept."""
    plots = latency_plots(report)
    body = [
        "<h1>Latency</h1>",
        *(f'<p class="quiet">{html.escape(line)}</p>' for line in explanation(report)),
        *([latency_svg(plots)] if plots else []),
        "<h2>All measurements</h2>",
        _table(*bench_rows(report)),
        f'<footer class="quiet">attngraft {html.escape(attngraft.__version__)}</footer>',
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Latency</title>\n<style>{STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(title)}</th>" for title in header)
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

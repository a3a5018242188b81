"""Where a site stands in the source of the model. In: the model and its sites. Out: the path of a module, or a line.

torch.onnx writes the modules around every node into its metadata; its older exporter names nodes after them, and older
versions put the line of source into the doc string.
"""

from __future__ import annotations

import ast
import re

from onnx import ModelProto, NodeProto

from attngraft.match.records import ModelSites
from attngraft.onnx_graph import walk_graphs

__all__ = ["source_layers"]

NAME_SCOPES = "pkg.torch.onnx.name_scopes"
NAMESPACE = "namespace"

_SOURCE_LINE = re.compile(r"(?:.*/)?([^/\s]+\.py)\((\d+)\)")
"""`/path/modeling_bert.py(192): forward`, a line of the doc strings that torch.onnx.export wrote."""


def source_layers(model: ModelProto, sites: ModelSites) -> dict[str, str]:
    """For each site the module that holds it, `encoder.layer.0.attention.self`, by site name; "" if nothing tells."""
    nodes = {
        (path, output): node
        for path, graph in walk_graphs(model.graph)
        for node in graph.node
        for output in node.output
    }
    return {site.name: _layer(nodes[key]) if (key := (site.graph, site.node)) in nodes else "" for site in sites.sites}


def _layer(node: NodeProto) -> str:
    metadata = {entry.key: entry.value for entry in node.metadata_props}
    return (
        _from_scopes(metadata.get(NAME_SCOPES, ""))
        or _from_namespace(metadata.get(NAMESPACE, ""))
        or _from_doc_string(node.doc_string)
        or node.name.rpartition("/")[0].strip("/").replace("/", ".")
    )


def _from_scopes(text: str) -> str:
    """`['', 'encoder', 'encoder.layer.0', 'softmax']`: the last entry is the call itself."""
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return ""
    if not isinstance(scopes, list) or len(scopes) < 2:
        return ""
    return str(scopes[-2])


def _from_namespace(text: str) -> str:
    """`: Model/encoder: Encoder/softmax: aten.softmax`, the same with classes."""
    entries = text.split("/")
    return entries[-2].partition(":")[0].strip() if len(entries) > 1 else ""


def _from_doc_string(text: str) -> str:
    found = _SOURCE_LINE.search(text)
    return f"{found.group(1)}:{found.group(2)}" if found else ""

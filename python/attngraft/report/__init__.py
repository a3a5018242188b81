"""What people and programs read: text tables, one-line summaries of sites, and the JSON schema."""

from attngraft.report.table import format_table

__all__ = ["format_table"]

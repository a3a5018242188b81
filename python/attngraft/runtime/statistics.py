"""What a session has done and what it holds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Statistics"]


@dataclass(frozen=True)
class Statistics:
    """What a session has done so far and what it holds; a snapshot."""

    plain_runs: int = 0
    """Runs that gave their answer without a graph: the first at each shape, confirmations and fallbacks included."""
    captures: int = 0
    replays: int = 0
    """Runs that gave their answer from a graph. Replays that check or confirm one are not counted."""
    confirmations: int = 0
    """Plain runs that checked a graph after its context had served other shapes; one for each graph at most."""
    evictions: int = 0
    """Graphs let go before the session was closed: for room, or because a buffer that they used has moved."""
    fallbacks: int = 0
    """Plain runs because the work could not be captured; they are plain runs too."""
    fallback_reasons: tuple[str, ...] = ()
    """Why, each reason once."""
    one_graph_reason: str | None = None
    """Why the session keeps one graph at a time; None if it keeps several."""
    padded_runs: int = 0
    """Runs whose inputs were padded to a bucket."""
    graphs: int = 0
    """Graphs held now."""
    graph_bytes: int = 0
    """Device memory that they hold, as measured when they were instantiated and uploaded."""
    buffer_bytes: int = 0
    """Device memory of the session's buffers; not TensorRT's weights and activations."""
    staging_bytes: int = 0
    """Page-locked host memory."""

    @property
    def fallback_reason(self) -> str | None:
        """The first reason for a fallback; None if there was none."""
        return self.fallback_reasons[0] if self.fallback_reasons else None

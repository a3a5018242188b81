"""Every entry of the zoo, and every export that is made of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.zoo import (
    control_flow,
    decoders,
    diffusion,
    encoder_decoders,
    idioms,
    image_libraries,
    negatives,
    speech,
    text_encoders,
    torch_native,
    vision,
)
from benchmarks.zoo.entry import Entry, GraphEntry, Size, Variant
from benchmarks.zoo.exporting import export_name

__all__ = ["ENTRIES", "Job", "jobs"]

ENTRIES: tuple[Entry | GraphEntry, ...] = (
    *text_encoders.ENTRIES,
    *decoders.ENTRIES,
    *encoder_decoders.ENTRIES,
    *vision.ENTRIES,
    *speech.ENTRIES,
    *diffusion.ENTRIES,
    *torch_native.ENTRIES,
    *idioms.ENTRIES,
    *negatives.ENTRIES,
    *control_flow.ENTRIES,
    *control_flow.GRAPH_ENTRIES,
    *image_libraries.ENTRIES,
)


@dataclass(frozen=True)
class Job:
    """One export to make."""

    entry: Entry | GraphEntry
    attention: str
    variant: Variant

    @property
    def name(self) -> str:
        return export_name(self.entry, self.attention, self.variant)


def jobs(size: Size, pattern: str | re.Pattern[str] = "") -> Iterator[Job]:
    """The exports whose names the regular expression finds; models that have one size only appear as `small`."""
    wanted = re.compile(pattern)
    for entry in ENTRIES:
        if size.name != "small" and not entry.sized:
            continue
        for attention in entry.attentions:
            for variant in entry.variants:
                job = Job(entry, attention, variant)
                if wanted.search(job.name):
                    yield job

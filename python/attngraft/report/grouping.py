"""Equal lines shown once. In: names and a key for each. Out: groups, each with one pattern for all of its names."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from typing import TypeVar

__all__ = ["group_by", "name_pattern"]

_NUMBERS = re.compile(r"(\d+)")

Item = TypeVar("Item")


def group_by(items: Iterable[tuple[Hashable, Item]]) -> list[list[Item]]:
    """Items with equal keys together, in the order in which the keys first appear."""
    groups: dict[Hashable, list[Item]] = {}
    for key, item in items:
        groups.setdefault(key, []).append(item)
    return list(groups.values())


def name_pattern(names: list[str]) -> str:
    """One text for several names: `layer.{0..11}.attn` where a number counts on, `node_{3,7}` where two numbers differ,
    `node_*` where more do, `first name, ...` where the names differ in more than numbers."""
    pieces = [_NUMBERS.split(name) for name in names]
    if len({tuple(piece[::2]) for piece in pieces}) > 1:
        return f"{names[0]}, ..."
    return "".join(_one_text([piece[index] for piece in pieces]) for index in range(len(pieces[0])))


def _one_text(texts: list[str]) -> str:
    distinct = list(dict.fromkeys(texts))
    if len(distinct) == 1:
        return distinct[0]
    numbers = [int(text) for text in distinct]
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))) and len(numbers) > 2:
        return f"{{{numbers[0]}..{numbers[-1]}}}"
    return f"{{{','.join(distinct)}}}" if len(distinct) == 2 else "*"

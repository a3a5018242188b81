"""Which of several changes spoil a result: found by trying parts of them, all others kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["take_back"]


def take_back(
    names: Sequence[str], failure_of: Callable[[tuple[str, ...]], str | None]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Splits `names` into those that can be kept together, and those to be taken back with the failure of each.

    `failure_of` tries a set of changes and says what is wrong with it, or None. Whatever is kept was tried as one set
    (except the empty set), so changes that fail only together are found too. One bad change among n takes about
    2 log2(n) trials. All of `names` together are known to fail.
    """
    reasons: dict[str, str] = {}

    def extend(kept: tuple[str, ...], group: Sequence[str], known_failure: bool) -> tuple[str, ...]:
        if not group:
            return kept
        failure = None
        if not known_failure or len(group) == 1:
            failure = failure_of((*kept, *group))
            if failure is None:
                return (*kept, *group)
        if len(group) == 1:
            reasons[group[0]] = failure or ""
            return kept
        half = len(group) // 2
        first = extend(kept, group[:half], False)
        # With the whole first half kept, the second is what makes the group fail.
        return extend(first, group[half:], len(first) - len(kept) == half)

    return extend((), tuple(names), True), reasons

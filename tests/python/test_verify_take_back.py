"""Bad changes among good ones are found, in few trials, and everything else is kept."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from attngraft.verify import take_back


class Trials:
    """Sets in which one of `bad`, or all of a group in `clashes`, makes the result wrong."""

    def __init__(self, bad: set[str], clashes: list[set[str]]) -> None:
        self.bad = bad
        self.clashes = clashes
        self.count = 0

    def __call__(self, names: tuple[str, ...]) -> str | None:
        self.count += 1
        wrong = self.bad & set(names) or next((clash for clash in self.clashes if clash <= set(names)), set())
        return f"wrong: {', '.join(sorted(wrong))}" if wrong else None


@settings(max_examples=200)
@given(st.data())
def test_what_is_kept_passes_and_nothing_else_could_be(data: st.DataObject) -> None:
    names = tuple(f"site{i}" for i in range(data.draw(st.integers(1, 12))))
    some = st.sets(st.sampled_from(names), min_size=1)
    trials = Trials(data.draw(st.sets(st.sampled_from(names))), data.draw(st.lists(some, max_size=3)))
    if trials(names) is None:
        return
    kept, reasons = take_back(names, trials)
    assert sorted((*kept, *reasons)) == sorted(names)
    assert list(kept) == [name for name in names if name in kept]
    assert not kept or trials(kept) is None
    for name, reason in reasons.items():
        assert trials((*kept, name)) is not None
        assert reason.startswith("wrong: ")


def test_one_bad_site_takes_few_trials() -> None:
    for bad in ("site0", "site500", "site1023"):
        trials = Trials({bad}, [])
        kept, reasons = take_back(tuple(f"site{i}" for i in range(1024)), trials)
        assert list(reasons) == [bad]
        assert len(kept) == 1023
        assert trials.count <= 2 * math.log2(1024) + 1

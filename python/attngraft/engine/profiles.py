"""Several optimization profiles. In: `--shape` options, or a JSON file. Out: for each profile a range by input name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attngraft.engine.shapes import ShapeRange, parse_shape_option
from attngraft.errors import BuildError

__all__ = ["Profiles", "profiles_of_options", "read_profiles"]

Profiles = Sequence[Mapping[str, ShapeRange]]


def profiles_of_options(options: Iterable[str]) -> tuple[dict[str, ShapeRange], ...]:
    """The profiles of `name=min:opt:max` options: an input that is given n times has its n ranges in n profiles, in
    their order; one that is given once has its range in all of them.

    Raises BuildError for an option that is not understood, and for inputs that are given more than once but not equally
    often.
    """
    ranges: dict[str, list[ShapeRange]] = {}
    for option in options:
        name, shapes = parse_shape_option(option)
        ranges.setdefault(name, []).append(shapes)
    counts = {name: len(given) for name, given in ranges.items() if len(given) > 1}
    number = max(counts.values(), default=1)
    for name, count in counts.items():
        if count != number:
            first = next(other for other, most in counts.items() if most == number)
            raise BuildError(
                f"shapes of {first!r} are given {number} times, those of {name!r} {count} times; give each input one "
                "range, or one for each profile"
            )
    return tuple(
        {name: given[profile if len(given) > 1 else 0] for name, given in ranges.items()} for profile in range(number)
    )


def read_profiles(path: str | Path) -> tuple[dict[str, ShapeRange], ...]:
    """The profiles of a JSON file, `[{"input": "min:opt:max", ...}, ...]`. Raises BuildError for anything else."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BuildError(f"profiles {path}: cannot be read ({error.strerror}); give a JSON file") from None
    except ValueError as error:
        raise BuildError(f"profiles {path}: is not JSON ({error})") from None
    form = 'write a list of profiles, [{"input": "min:opt:max"}, ...]'
    if not isinstance(content, list) or not content:
        raise BuildError(f"profiles {path}: holds no list of profiles; {form}")
    for entry in content:
        if not isinstance(entry, dict) or not all(isinstance(text, str) for text in entry.values()):
            raise BuildError(f"profiles {path}: {json.dumps(entry)[:80]} is no profile; {form}")
    try:
        return tuple({name: ShapeRange.parse(text) for name, text in entry.items()} for entry in content)
    except BuildError as error:
        raise BuildError(f"profiles {path}: {error}") from None

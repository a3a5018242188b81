"""Prints requirements of pyproject.toml, one a line, so that they can be installed apart from the package itself.

`requirements.py --build`: what the build needs; `requirements.py EXTRA...`: what the package and those extras need.
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10: pip carries the module that became tomllib
    from pip._vendor import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(names: list[str]) -> list[str]:
    """Of the build for ["--build"], else of the package and the extras of those names."""
    contents = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))
    if names == ["--build"]:
        return contents["build-system"]["requires"]
    project = contents["project"]
    return project["dependencies"] + [line for name in names for line in project["optional-dependencies"][name]]


if __name__ == "__main__":
    print(*requirements(sys.argv[1:]), sep="\n")

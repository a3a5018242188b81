"""Types of command-line arguments that the scripts share."""

from __future__ import annotations

import argparse
import re

__all__ = ["pattern"]


def pattern(text: str) -> re.Pattern[str]:
    """A regular expression, for argparse."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None

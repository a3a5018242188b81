"""Protocol buffers' text format, as much of it as a configuration needs. In: nested values. Out: the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Union

__all__ = ["Message", "Value", "Word", "format_message"]


class Word(str):
    """An enumeration's value, which is written without quotes."""


Value = Union[str, int, bool, Word, "Message", Sequence["Value"]]
Message = Mapping[str, Value]

INDENT = "  "


def format_message(message: Message, indent: str = "") -> str:
    """One field a line; lists of numbers in one line, a list of messages as the field repeated."""
    return "".join(_field(name, value, indent) for name, value in message.items())


def _field(name: str, value: Value, indent: str) -> str:
    if isinstance(value, Mapping):
        inside = format_message(value, indent + INDENT)
        return f"{indent}{name} {{\n{inside}{indent}}}\n" if inside else f"{indent}{name} {{ }}\n"
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, Mapping) for item in value):
            return "".join(_field(name, item, indent) for item in value)
        return f"{indent}{name}: [{', '.join(_scalar(item) for item in value)}]\n"
    return f"{indent}{name}: {_scalar(value)}\n"


def _scalar(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, Word)):
        return str(value)
    assert isinstance(value, str)
    return f'"{"".join(_escaped(character) for character in value)}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if ord(character) < ord(" ") or ord(character) == 0x7F:
        return f"\\{ord(character):03o}"  # three octal digits, so that a digit behind it is not taken in
    return character

"""How the files are called that a model in parts is in: NAME-00001-of-00003.gguf and so on."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["part_paths", "parts_pattern"]

_PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})(?P<end>\.gguf)", re.IGNORECASE)


def part_paths(path: Path) -> list[Path]:
    """All parts of the model that a file is one of, by its name, in order; the file alone where it is called otherwise.

    Whether they are there is not looked at.
    """
    name = _PART.fullmatch(path.name)
    if name is None or int(name["part"]) not in range(1, int(name["parts"]) + 1):
        return [path]
    numbers = range(1, int(name["parts"]) + 1)
    return [path.with_name(f"{name['stem']}-{i:05}-of-{name['parts']}{name['end']}") for i in numbers]


def parts_pattern(file: str) -> str:
    """A pattern that all parts match, of one of their names; any other name is its own."""
    name = _PART.fullmatch(file)
    return file if name is None else f"{name['stem']}-?????-of-{name['parts']}{name['end']}"

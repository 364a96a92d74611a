"""Names of the files of a model in several parts: NAME-00001-of-00003.gguf and so on."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["part_paths", "parts_pattern"]

_PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})(?P<end>\.gguf)", re.IGNORECASE)


def part_paths(path: Path) -> list[Path]:
    """Paths of all parts of a file's model, in order, by the file's name; the file alone if its name is not a part's.

    Does not check that they exist.
    """
    name = _PART.fullmatch(path.name)
    if name is None or int(name["part"]) not in range(1, int(name["parts"]) + 1):
        return [path]
    numbers = range(1, int(name["parts"]) + 1)
    return [path.with_name(f"{name['stem']}-{i:05}-of-{name['parts']}{name['end']}") for i in numbers]


def parts_pattern(file: str) -> str:
    """A glob pattern that matches all parts of a part's name; other names unchanged."""
    name = _PART.fullmatch(file)
    return file if name is None else f"{name['stem']}-?????-of-{name['parts']}{name['end']}"

"""Files in parts, which are told by their names."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["part_paths"]

_PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})(?P<end>\.gguf)", re.IGNORECASE)


def part_paths(path: Path) -> list[Path]:
    """Where all parts of the file must lie that `path` is a part of; none where it is called as no part."""
    name = _PART.fullmatch(path.name)
    if name is None:
        return []
    count = name["parts"]
    return [path.with_name(f"{name['stem']}-{i + 1:05}-of-{count}{name['end']}") for i in range(int(count))]

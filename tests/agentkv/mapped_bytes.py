"""What this process has of a mapped file in memory, by the system's own account."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path


def mapped_bytes(path: str | PathLike[str]) -> tuple[int, int]:
    """Bytes of the file's pages that are resident here, and its share of them where others map them too (PSS)."""
    resident = proportional = 0
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = line.endswith(f" {path}")
        elif ours and line.startswith("Rss:"):
            resident += 1024 * int(line.split()[1])
        elif ours and line.startswith("Pss:"):
            proportional += 1024 * int(line.split()[1])
    return resident, proportional

"""What becomes of the cells of branches that wait, where others need them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from .checks import A_PLACE, checked_count, checked_path
from .errors import InvalidInput
from .show import preview

MOST_BYTES = 2**62
MOST_PRIORITY = 2**62


@dataclass(frozen=True, kw_only=True)
class Offload:
    """Which branches give up their cells where others need them, and where these go until their branch goes on.

    A branch of an agent's turn gives up its cells whenever nothing runs on it: while a tool runs or a person is asked,
    while the turn is paused, and while it waits for cells itself. The branches that take least time to come back for
    the cells that they free go first, and those that have waited longest; those with the lowest `Branch.priority`
    before all others.

    Attributes:
        memory_bytes: maximum bytes of cells that are kept in memory. What has waited longest goes on to the folder when
            there is no more room.
        folder: folder of unnamed temporary files for what does not fit into memory; made where there is none. With
            None, or beyond `disk_bytes`, cells are computed again when their branch goes on.
        disk_bytes: maximum bytes of cells in that folder.
        ttl: seconds after which cells that are kept are let go, to be computed again; None for never.
        idle: seconds without a running method after which a branch outside of turns gives up its cells as well; None
            for never. With it, every method waits for cells that others are using, as turns do.

    Raises InvalidInput for anything out of range.
    """

    memory_bytes: int = 1 << 30
    folder: str | Path | None = None
    disk_bytes: int = 16 << 30
    ttl: float | None = None
    idle: float | None = None

    def __post_init__(self) -> None:
        checked_count(self.memory_bytes, "memory_bytes", 0, MOST_BYTES)
        checked_count(self.disk_bytes, "disk_bytes", 0, MOST_BYTES)
        if self.folder is not None:
            object.__setattr__(self, "folder", checked_path(self.folder, "folder", A_PLACE))
        for name, value in (("ttl", self.ttl), ("idle", self.idle)):
            if value is not None and not _is_duration(value):
                raise InvalidInput(f"{name} is {preview(value)}, but it must be a number of seconds from 0, or None")


DEFAULT_OFFLOAD = Offload()


def checked_offload(policy: object) -> Offload | None:
    """Returns a valid policy. Raises InvalidInput."""
    if policy is not None and not isinstance(policy, Offload):
        raise InvalidInput(
            f"offload is {preview(policy)}, but it must be a kv.Offload, or None where cells stay in the cache"
        )
    return policy


def checked_priority(value: object) -> float:
    """Returns a valid priority of a branch. Raises InvalidInput."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(max(-MOST_PRIORITY, min(value, MOST_PRIORITY)))
    if not isinstance(value, float) or math.isnan(value):
        raise InvalidInput(
            f"priority is {preview(value)}, but it must be a number; math.inf for a branch that keeps its cells"
        )
    return value


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf

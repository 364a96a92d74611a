"""What a chat forgets, said to who chats."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from ..overflow import DropOldest, Room


@dataclass(frozen=True, slots=True)
class ForgetsAloud:
    """Lets the oldest tokens go, as `kv.overflow.DropOldest` does, and says how many.

    Attributes:
        console: says it.
    """

    console: Console

    async def make_room(self, room: Room) -> bool:
        """A chat goes on, though the oldest of it is forgotten."""
        before = _held(room)
        made = await DropOldest().make_room(room)
        if gone := before - _held(room):
            self.console.print(Text(f"(too long: its oldest {gone} tokens are forgotten; --capacity)", "dim"))
        return made


def _held(room: Room) -> int:
    return room.length - sum(p1 - p0 for p0, p1 in room.forgotten)

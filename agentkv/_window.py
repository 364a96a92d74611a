"""How far back the layers of a model look, and what that leaves of a history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Window(NamedTuple):
    """Of all layers together: nothing but the newest `length` positions and the first `sinks` is looked at by any.

    `reach`: so many positions before it, over all layers, make the keys and values of a position. All 0 where a layer
    looks at everything; `groups` are then the windows of the layers that have one, the shortest first.
    """

    length: int = 0
    sinks: int = 0
    reach: int = 0
    groups: tuple[int, ...] = ()
    states: bool = False
    """Some layers keep states, which hold all that came before."""


def window_of(own: Sequence[int], window: int | None, sinks: int, linear: Sequence[bool] = ()) -> Window:
    """Of layers with these windows of their own (0 for none), in a cache with a window of its own, or none.

    `linear`: which layers are linear attention: their states come from all that was before, whatever their window.
    """
    seen = [min(size or window, window) if window else size for size in own]
    if not all(seen) or any(linear):
        groups = tuple(sorted({size for size in seen if size}))
        return Window(groups=groups, states=any(linear))
    return Window(max(seen), sinks if window else 0, sum(size - 1 for size in seen))

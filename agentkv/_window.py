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
    unsaved: int = 0
    """The first so many groups have layers with states, which are not saved."""


def window_of(own: Sequence[int], window: int | None, sinks: int, linear: Sequence[bool] = ()) -> Window:
    """Of layers with these windows of their own (0 for none), in a cache with a window of its own, or none.

    `linear`: which layers are linear attention: their states come from all that was before, whatever their window.
    """
    seen = [min(size or window, window) if window else size for size in own]
    if not all(seen) or any(linear):
        groups = tuple(sorted({size for size in seen if size}))
        states = [size for size, has_states in zip(seen, linear, strict=False) if has_states]
        return Window(groups=groups, unsaved=groups.index(max(states)) + 1 if states else 0)
    return Window(max(seen), sinks if window else 0, sum(size - 1 for size in seen))

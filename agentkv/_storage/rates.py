"""What work takes on this machine, as measured."""

from __future__ import annotations

from typing import Literal, TypeAlias

Way: TypeAlias = Literal["memory", "disk", "prefill"]
"""From where cells come back; "prefill" computes them again."""


class WorkRate:
    """Seconds per unit of work; what was measured last counts as much as all before it."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._units = 0.0

    def add(self, seconds: float, units: int) -> None:
        """Adds a measurement."""
        self._seconds = self._seconds / 2 + seconds
        self._units = self._units / 2 + units

    def seconds(self, units: int) -> float | None:
        """Expected duration of so much work; None before the first measurement."""
        return self._seconds / self._units * units if self._units else None


class ReturnTimes:
    """Seconds until cells are back, by way and length: fixed costs weigh more on few cells, attention on many."""

    def __init__(self) -> None:
        self._rates: dict[tuple[Way, int], WorkRate] = {}

    def add(self, way: Way, cells: int, seconds: float) -> None:
        """Adds a measured return."""
        if cells > 0:
            self._rates.setdefault((way, cells.bit_length()), WorkRate()).add(seconds, cells)

    def seconds(self, way: Way, cells: int) -> float | None:
        """Expected duration of a return, by those of the nearest length; None before the first one this way."""
        lengths = [length for known, length in self._rates if known == way]
        if not lengths:
            return None
        nearest = min(lengths, key=lambda length: abs(length - cells.bit_length()))
        return self._rates[way, nearest].seconds(cells)

    def pays(self, way: Way, cells: int) -> bool:
        """Whether cells are likely back this way before they could be computed again; True where that is not known."""
        back, computed = self.seconds(way, cells), self.seconds("prefill", cells)
        return back is None or computed is None or back < computed

"""What reading and computing take here, as measured."""

from __future__ import annotations


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

"""Servers of a remote Context, as they are now: `ctx.servers`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One server of a remote Context, as of the moment that it was asked for; frozen.

    Attributes:
        url: as it was given to `Context.connect`.
        answers: is it given requests now? One that failed is left alone for a while.
        running: requests of this Context that it has now.
        requests: that it was given since the Context was opened.
        failed: of these, those that it did not answer, broke off, or had no room for.
        seconds: that requests which have ended took together, in seconds.
        error: what the last of `failed` came to; None where the one after it came to its end.
    """

    url: str
    answers: bool
    running: int
    requests: int
    failed: int
    seconds: float
    error: str | None

    @property
    def mean_seconds(self) -> float:
        """Of a request that has ended, streams included; 0 before the first one."""
        ended = self.requests - self.running
        return self.seconds / ended if ended else 0.0

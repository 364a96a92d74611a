"""Speculation is the server's: it drafts as it was started to."""

from __future__ import annotations

from .._errors import InvalidInput
from .._speculation import INHERIT, Speculation


class ServersOwn(Speculation):
    """Of a Context in which nothing is drafted here."""

    def __init__(self) -> None:
        pass

    def resolve(self, speculative: object) -> None:
        """Raises InvalidInput for a strategy."""
        if speculative is not None and speculative is not INHERIT:
            raise InvalidInput(
                "speculative was given, but a server draws the tokens, and drafts as it was started to; leave it out"
            )

    def drafter(self, strategy: object) -> None:
        """None."""

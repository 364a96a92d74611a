"""The place where speculation strategies are passed in."""

from __future__ import annotations

from enum import Enum

from ._errors import InvalidInput


class Inherit(Enum):
    """What a call does that says nothing of speculation: as the Context does."""

    INHERIT = "as the Context"


INHERIT = Inherit.INHERIT


def check_speculation(speculative: object) -> None:
    """Refuses strategies: this version has none."""
    if speculative is not None and speculative is not INHERIT:
        raise InvalidInput(
            f"speculative is a {type(speculative).__name__}, but this version has no speculation strategies; "
            "leave it out or pass None"
        )

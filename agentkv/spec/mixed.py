"""Speculation by several strategies at once."""

from __future__ import annotations

from dataclasses import dataclass

from .._types.errors import InvalidInput
from .._types.show import preview
from ._built_in import BuiltIn
from ._checked import checked_single
from .strategy import Strategy


@dataclass(frozen=True, init=False)
class Mixed:
    """Drafts by several strategies: of what they guess, as much is verified as makes the most tokens per second.

    The guesses of all become one tree, in which a token is as likely as the surest strategy says, by how often it was
    right of late. Strategies that cost nothing, such as `Suffix`, draft first; one that runs a program, such as `Eagle`
    or `DraftModel`, drafts only where the others leave enough to be gained for its time.

    Attributes:
        strategies: two or more, each once. Equal ones elsewhere in the Context share what they have learnt.
    """

    strategies: tuple[BuiltIn | Strategy, ...]

    def __init__(self, *strategies: BuiltIn | Strategy) -> None:
        if len(strategies) < 2:
            raise InvalidInput(f"Mixed takes two strategies or more, as Mixed(one, other), but got {len(strategies)}")
        for place, strategy in enumerate(strategies):
            if strategy is None or isinstance(strategy, Mixed):
                raise InvalidInput(f"Mixed takes strategies that are not mixed, but got {preview(strategy)}")
            checked_single(strategy)
            if any(_is_same(strategy, other) for other in strategies[:place]):
                raise InvalidInput(f"Mixed takes each strategy once, but got {preview(strategy)} twice")
        object.__setattr__(self, "strategies", strategies)


def _is_same(one: BuiltIn | Strategy, other: BuiltIn | Strategy) -> bool:
    return one is other or (isinstance(one, BuiltIn) and isinstance(other, BuiltIn) and one == other)

"""Drafters of a Context: resolves the strategy of a call, and opens a drafter for it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from .._types.checks import truth_of
from .._types.errors import AgentKVError, InvalidInput, opening_error
from .._types.show import preview, safe_str
from ..spec import Mixed, Strategy
from ..spec._built_in import BuiltIn, DraftTarget, close_drafter
from ..spec._checked import checked, checked_single

if TYPE_CHECKING:
    from agentkv_runtime.speculation import Drafter

Speculative: TypeAlias = BuiltIn | Mixed | Strategy
Key: TypeAlias = "BuiltIn | int | tuple[Key, ...]"


class Inherit(Enum):
    """Type of the `speculative` default: use the Context's strategy."""

    INHERIT = "as the Context"


INHERIT = Inherit.INHERIT


def checked_strategy(speculative: object) -> Speculative | None:
    """Returns a strategy, or None. Raises InvalidInput for anything else."""
    if speculative is None or isinstance(speculative, Mixed):
        return speculative
    return checked_single(speculative)


class Speculation:
    """The strategies of one Context. `resolve` runs on the event loop, all else on the step loop's thread."""

    def __init__(self, default: Speculative | None, target: DraftTarget) -> None:
        self._default = default
        self._target = target
        self._drafters: dict[Key, Drafter] = {}

    def resolve(self, speculative: object) -> Speculative | None:
        """The strategy for a call's `speculative` argument. Raises InvalidInput."""
        return self._default if speculative is INHERIT else checked_strategy(speculative)

    def drafter(self, strategy: Speculative | None) -> Drafter | None:
        """The drafter of a strategy; equal built-in strategies share one. Opens it on first use.

        Raises ModelError, DraftMismatch.
        """
        return None if strategy is None else self._opened(strategy)

    def _opened(self, strategy: Speculative) -> Drafter:
        key = _key(strategy)
        if key not in self._drafters:
            self._drafters[key] = self._open(strategy)
        return self._drafters[key]

    def open_default(self) -> Drafter | None:
        """The drafter of the Context's own strategy. Raises as `drafter`."""
        return self.drafter(self._default)

    def close(self) -> None:
        """Frees all drafters, on the thread that made them."""
        for key, drafter in self._drafters.items():
            close_drafter(drafter, key, self._target)
        self._drafters.clear()

    def _open(self, strategy: Speculative) -> Drafter:
        try:
            from agentkv_runtime.speculation import MixedDrafter, PythonDrafter

            if isinstance(strategy, Mixed):
                return MixedDrafter([self._opened(part) for part in strategy.strategies])
            if isinstance(strategy, BuiltIn):
                drafter: Drafter = strategy._open(self._target)
            else:
                drafter = PythonDrafter(checked(strategy, self._target.vocab_size), self._target.vocab_size)
        except AgentKVError:
            raise
        except Exception as error:
            raise opening_error(error, preview(strategy)) from error
        drafter.adaptive = _is_adaptive(strategy)
        return drafter


def _is_adaptive(strategy: BuiltIn | Strategy) -> bool:
    of = f"adaptive of {type(strategy).__name__}"
    try:
        answer = getattr(strategy, "adaptive", True)
    except Exception as error:
        raise InvalidInput(f"{of} raised {type(error).__name__}: {safe_str(error)}") from error
    return truth_of(answer, of)


def _key(strategy: Speculative) -> Key:
    """What one drafter is kept by. An object with `propose` is itself alone: its drafter keeps it alive."""
    if isinstance(strategy, Mixed):
        return tuple(map(_key, strategy.strategies))
    return strategy if isinstance(strategy, BuiltIn) else id(strategy)

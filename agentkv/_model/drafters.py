"""Drafters of a Context: resolves the strategy of a call, and opens a drafter for it."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, cast

from .._types.checks import truth_of
from .._types.errors import AgentKVError, InvalidInput, opening_error
from ..spec import Strategy
from ..spec._built_in import BuiltIn, DraftTarget, close_drafter
from ..spec._checked import checked

if TYPE_CHECKING:
    from agentkv_runtime.speculation import Drafter

Speculative: TypeAlias = BuiltIn | Strategy


class Inherit(Enum):
    """Type of the `speculative` default: use the Context's strategy."""

    INHERIT = "as the Context"


INHERIT = Inherit.INHERIT


def checked_strategy(speculative: object) -> Speculative | None:
    """Returns a strategy, or None. Raises InvalidInput for anything else."""
    if speculative is None or isinstance(speculative, BuiltIn):
        return speculative
    propose = getattr(speculative, "propose", None)
    if isinstance(speculative, type):
        if callable(propose) or issubclass(speculative, BuiltIn):
            raise InvalidInput(f"speculative is the class {speculative.__name__}; pass an object of it")
    elif callable(propose):
        if inspect.iscoroutinefunction(propose):
            raise InvalidInput(
                f"{type(speculative).__name__}.propose is a coroutine function, but the step loop calls it between two "
                "forwards; make it a plain function"
            )
        return cast("Strategy", speculative)
    raise InvalidInput(
        f"speculative is a {type(speculative).__name__}, but it must be None, kv.spec.Suffix, "
        "kv.spec.PromptLookup, kv.spec.DraftModel, kv.spec.Eagle, kv.spec.MTP, or an object with `propose` (see "
        "kv.spec.Strategy)"
    )


class Speculation:
    """The strategies of one Context. `resolve` runs on the event loop, all else on the step loop's thread."""

    def __init__(self, default: Speculative | None, target: DraftTarget) -> None:
        self._default = default
        self._target = target
        self._drafters: dict[BuiltIn | int, Drafter] = {}

    def resolve(self, speculative: object) -> Speculative | None:
        """The strategy for a call's `speculative` argument. Raises InvalidInput."""
        return self._default if speculative is INHERIT else checked_strategy(speculative)

    def drafter(self, strategy: Speculative | None) -> Drafter | None:
        """The drafter of a strategy; equal built-in strategies share one. Opens it on first use.

        Raises ModelError, DraftMismatch.
        """
        if strategy is None:
            return None
        # An object with `propose` is keyed by identity: its drafter keeps it alive.
        key = strategy if isinstance(strategy, BuiltIn) else id(strategy)
        if key not in self._drafters:
            self._drafters[key] = self._open(strategy)
        return self._drafters[key]

    def open_default(self) -> Drafter | None:
        """The drafter of the Context's own strategy. Raises as `drafter`."""
        return self.drafter(self._default)

    def close(self) -> None:
        """Frees all drafters, on the thread that made them."""
        for strategy, drafter in self._drafters.items():
            close_drafter(drafter, strategy, self._target)
        self._drafters.clear()

    def _open(self, strategy: Speculative) -> Drafter:
        try:
            from agentkv_runtime.speculation import PythonDrafter

            if isinstance(strategy, BuiltIn):
                drafter: Drafter = strategy._open(self._target)
            else:
                drafter = PythonDrafter(checked(strategy, self._target.vocab_size), self._target.vocab_size)
        except AgentKVError:
            raise
        except Exception as error:
            raise opening_error(error, repr(strategy)) from error
        drafter.adaptive = truth_of(getattr(strategy, "adaptive", True), f"adaptive of {type(strategy).__name__}")
        return drafter

"""What each branch had in the steps of a measurement."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from .._context.handle import core_of
from .._engine.commands import ImmediateCommand

if TYPE_CHECKING:
    from .._context.context import Context
    from .._engine.commands import Worker
    from .._engine.interface import StepEngine, StepReport

_DECODE = 1
_SHARE = struct.Struct("=qiiii")  # as StepReport.shares


class Share(NamedTuple):
    """What one branch had in one step; tokens that a constraint forces count as `drafted` and `accepted` here."""

    branch: int
    kind: int
    rows: int
    drafted: int
    accepted: int


class StepShares:
    """Shares of the branches that decoded in a Context's steps; the step loop's thread adds."""

    def __init__(self) -> None:
        self.steps: list[bytes] = []

    @classmethod
    async def of(cls, ctx: Context) -> StepShares:
        """Shares of all steps of a Context from now on."""
        shares = cls()
        await core_of(ctx).loop.run(_Keep(shares))
        return shares

    def take(self) -> list[Share]:
        """Those since the last call, and forgets them."""
        steps, self.steps = self.steps, []
        return list(_decoded(steps))


def _decoded(steps: list[bytes]) -> Iterator[Share]:
    for step in steps:
        yield from (share for share in map(Share._make, _SHARE.iter_unpack(step)) if share.kind == _DECODE)


class _KeepingEngine:
    """An engine whose steps leave their shares; everything else is the engine's.

    A trace has them too, and digests of logits, which would be measured with the rest.
    """

    def __init__(self, engine: StepEngine, shares: StepShares) -> None:
        self._engine = engine
        self._shares = shares

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> StepReport:
        report = self._engine.step()
        self._shares.steps.append(report.shares)
        return report


class _Keep(ImmediateCommand[None]):
    """Command that wraps the engine."""

    __slots__ = ("_shares",)

    def __init__(self, shares: StepShares) -> None:
        super().__init__()
        self._shares = shares

    def _do(self, worker: Worker) -> None:
        worker.engine = cast("StepEngine", _KeepingEngine(worker.engine, self._shares))

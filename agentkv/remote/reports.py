"""Reports of a remote engine, with the fields of the native engine's records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .jobs import RemoteEmitted, RemoteFinished


@dataclass(slots=True)
class Counters:
    """Statistics with the fields of the native engine's. Steps and forwards, which the server does, are 0.

    Cells are the tokens of the branches.
    """

    steps: int = 0
    forwards: int = 0
    tokens: int = 0
    prefilled: int = 0
    refed: int = 0
    generated: int = 0
    reused: int = 0
    recalled: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0
    retries: int = 0
    branches: int = 0
    cells_used: int = 0
    cells_shared: int = 0
    cells_retained: int = 0
    capacity: int = 0
    forward_seconds: float = 0.0
    draft_seconds: float = 0.0
    draft_bytes: int = 0
    constraint_seconds: float = 0.0
    mask_seconds: float = 0.0
    rows_per_step: list[int] = field(default_factory=list)


class EmptyPin(NamedTuple):
    """A pin of no cells."""

    id: int = 0
    rows: int = 0


@dataclass(slots=True)
class RemoteReport:
    """Report of a step, as `_engine.interface.StepReport`."""

    emitted: Sequence[RemoteEmitted] = ()
    finished: Sequence[RemoteFinished] = ()
    out_of_room: Sequence[int] = ()
    idle: bool = True
    forwards: int = 0
    branches: int = 0
    decode_rows: int = 0
    prefill_rows: int = 0
    shares: bytes = b""
    seconds: float = 0.0
    forward_seconds: float = 0.0
    draft_seconds: float = 0.0

"""Options of a generation over a server, with the fields of the native engine's options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..output.grammar import GrammarSource


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """Options of one generation. With `emit`, tokens are reported at once, at most `emit_ahead` before the reader."""

    max_tokens: int
    sampling: Any
    stop: list[str] = field(default_factory=list)
    seed: int = 0
    emit: bool = False
    emit_ahead: int = 0
    top_logprobs: int = 0
    wait_for_room: bool = False
    wait_for_cells_alone: bool = False  # a server has no cells to wait for
    drafter: None = None
    constraint: GrammarSource[Any] | None = None
    made: int = 0
    output_made: int = 0

"""Checks of records beyond their types, as files may come from anybody."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .records import (
    AnyRecord,
    Began,
    Branched,
    CacheLevel,
    Conversed,
    JobBegan,
    JobEnded,
    Logged,
    Spelled,
    Stepped,
    Verb,
)

_ARITY = {"rollback": 2, "adopt": 1, "forget": 3, "forgotten": 4, "replace": 3, "set_stream": 2, "take_back": 3}
_FACTS = ("path", "backend", "vocab_size", "kv_dtype", "fingerprint", "bit_exact")
_SHARE_BYTES = 24


def fault_of(record: AnyRecord) -> str:
    """Fault of a record; "" for none."""
    branch = getattr(record, "branch", 0)
    if not -1 <= branch < 2**31:
        return f"branch {branch}"
    check = _CHECKS.get(type(record))
    return "" if check is None else check(record)


def _began(record: Began) -> str:
    missing = [name for name in _FACTS if name not in record.model]
    capacity = record.options.get("capacity")
    if missing or not isinstance(capacity, int) or not isinstance(record.options.get("path"), str):
        return f"facts of the model are missing: {', '.join([*missing, 'capacity or path'])}"
    return ""


def _stepped(record: Stepped) -> str:
    return "shares of a step" if record.shares is not None and len(record.shares) % _SHARE_BYTES else ""


def _held(record: CacheLevel) -> str:
    cells = (record.branches, record.cells_used, record.cells_shared, record.cells_retained)
    return "" if _small(cells) else "counts of cells"


def _branched(record: Branched) -> str:
    fits = len(record.branches) == len(record.streams) and record.branches
    return "" if fits and _small([*record.branches, record.source + 1]) else "new branches"


def _verb(record: Verb) -> str:
    if len(record.numbers) != _ARITY.get(record.name, len(record.numbers)):
        return f"numbers of {record.name}"
    return "" if record.name == "set_stream" or _small(map(abs, record.numbers)) else f"numbers of {record.name}"


def _logged(record: Logged) -> str:
    return "" if _small([record.kept]) and len(record.added) % 4 == 0 else "tokens of a branch"


def _job_began(record: JobBegan) -> str:
    return (
        "" if _small([record.tokens]) and not any(len(choice) % 4 for choice in record.choices) else "tokens of a job"
    )


def _job_ended(record: JobEnded) -> str:
    return "" if len(record.tokens) % 4 == 0 and len(record.digests) % 8 == 0 else "tokens of a job"


def _conversed(record: Conversed) -> str:
    return "" if all(_small(message) for message in record.messages) else "messages"


def _spelled(record: Spelled) -> str:
    return "" if len(record.tokens) == 4 * len(record.pieces) else "spelling of tokens"


def _small(numbers: Iterable[int]) -> bool:
    return all(0 <= number < 2**31 for number in numbers)


_CHECKS: dict[type, Callable[[Any], str]] = {
    Began: _began,
    Stepped: _stepped,
    CacheLevel: _held,
    Branched: _branched,
    Verb: _verb,
    Logged: _logged,
    JobBegan: _job_began,
    JobEnded: _job_ended,
    Conversed: _conversed,
    Spelled: _spelled,
}

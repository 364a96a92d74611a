"""Lenient validation of bodies: removes empty fields and fields that are ignored here; any other fault is refused by
name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from .body_errors import Path, closeness, closest, path_of, refused_for
from .ignored import SWITCHES, UNREADABLE, UNSET, Ignored, reason_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic_core import ErrorDetails

B = TypeVar("B", bound=BaseModel)
_MOST_ROUNDS = 8  # faults within a part show only once the part itself is right
_MOST_FAULTS = 10_000  # a body with more faults is refused for the first
_SCHEMAS = ("function", "parameters", "input_schema")  # fields of a tool that the client runs itself
_GONE = object()


class _Fault(NamedTuple):
    """A fault of a body.

    Attributes:
        kind: pydantic's error type.
        path: its path in the body.
        place: the same in the notation of the table of ignored fields.
        value: the value at the path.
        holder: the object or list around it.
    """

    kind: str
    path: Path
    place: str
    value: Any
    holder: Any


class _Cure(NamedTuple):
    """Correction of a body: another value at a path, or none; and a note for the log."""

    path: Path
    value: Any = _GONE
    what: str = ""
    why: str = ""


def checked(kind: type[B], value: dict[str, Any], ignored: Ignored, within: str = "") -> B:
    """Validates a body, or the part of one `within` that parameter. Removes ignored fields from `value` in place.
    Raises ApiError that names the first invalid parameter."""
    notes: dict[str, str] = {}
    wrong: dict[Path, ErrorDetails] = {}  # the closest of the first errors at each path: removals cause later ones
    errors: list[ErrorDetails] = []
    for _ in range(_MOST_ROUNDS):
        try:
            body = kind.model_validate(value)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            wrong = {path_of(each, value): each for each in sorted(errors, key=closeness)} | wrong
            lenient = not ignored.strict and len(errors) <= _MOST_FAULTS
            cures = {cure.path: cure for cure in _cures(errors, value, within)} if lenient else {}
            if not cures:
                break
            for path in sorted(cures, key=_order, reverse=True):
                _apply(cures[path], value)
            notes |= {cure.what: cure.why for cure in cures.values() if cure.what}
        else:
            for what, why in notes.items():
                ignored.note(what, why)
            return body
    first = closest(errors)
    raise refused_for(wrong[path_of(first, value)], kind, value, within)


def _cures(errors: list[ErrorDetails], body: Any, within: str) -> Iterator[_Cure]:
    for error in errors:
        path = path_of(error, body)
        holder = _at(body, path[:-1])
        value = _at(holder, path[-1:]) if path else _GONE
        if value is not _GONE:
            parts = [*within.split("."), *map(str, path)] if within else map(str, path)
            place = ".".join("*" if part.isdigit() else part for part in parts)
            fault = _Fault(error["type"], path, place, value, holder)
            yield from filter(None, [next(filter(None, (rule(fault) for rule in _RULES)), None)])


def _whole_number(fault: _Fault) -> _Cure | None:
    whole = fault.kind == "int_type" and isinstance(fault.value, float) and fault.value.is_integer()
    return _Cure(fault.path, int(fault.value)) if whole else None


def _nothing(fault: _Fault) -> _Cure | None:
    """Removes null and empty values, and the values by which clients of other servers leave a field unset."""
    name, value = fault.path[-1], fault.value
    asks = not _is_empty(value)
    if fault.kind == "extra_forbidden":
        asks &= name in SWITCHES or not (value is False or value == "")
    unset = isinstance(name, str) and name in UNSET and value == UNSET[name]
    return _Cure(fault.path) if isinstance(name, str) and (unset or not asks) else None


def _foreign_tool(fault: _Fault) -> _Cure | None:
    """Removes a tool of an unknown type that the client does not run itself."""
    place, _, last = fault.place.rpartition(".")
    tool, path = (fault.holder, fault.path[:-1]) if last == "type" else (fault.value, fault.path)
    if not (place if last == "type" else fault.place).endswith("tools.*"):
        return None
    if not isinstance(tool, dict) or not isinstance(tool.get("type"), str) or any(name in tool for name in _SCHEMAS):
        return None
    why = "the server runs no tools, and the model is not shown it"
    return _Cure(path, what="tools of other types", why=why)


def _unreadable(fault: _Fault) -> _Cure | None:
    kind = str(fault.value.get("type")) if isinstance(fault.value, dict) else ""
    if fault.kind != "union_tag_invalid" or kind not in UNREADABLE:
        return None
    return _Cure(fault.path, what=f"{fault.place} of the type {kind}", why=UNREADABLE[kind])


def _known_to_be_ignored(fault: _Fault) -> _Cure | None:
    known = reason_for(fault.place)
    return None if known is None else _Cure(fault.path, what=known[0], why=known[1])


_RULES = (_whole_number, _nothing, _foreign_tool, _unreadable, _known_to_be_ignored)


def _is_empty(value: Any) -> bool:
    """Returns whether a value is null, an empty list, or an object of only such values and false."""
    if isinstance(value, dict):
        return all(inner is False or _is_empty(inner) for inner in value.values())
    return value is None or value == []


def _order(path: Path) -> list[tuple[int, str]]:
    """Sort key of paths: in reverse order, removals from a list do not shift the entries before them."""
    return [(part, "") if isinstance(part, int) else (0, part) for part in path]


def _at(body: Any, path: Path) -> Any:
    for part in path:
        try:
            body = body[part]
        except (KeyError, IndexError, TypeError):
            return _GONE
    return body


def _apply(cure: _Cure, body: Any) -> None:
    holder = _at(body, cure.path[:-1])
    if cure.value is _GONE:
        del holder[cure.path[-1]]
    else:
        holder[cure.path[-1]] = cure.value

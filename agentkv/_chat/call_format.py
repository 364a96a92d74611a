"""Call formats as users name them: how a model's output is parsed into a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from agentkv_runtime.errors import FormatError

from .._types.errors import InvalidInput
from .._types.show import preview

if TYPE_CHECKING:
    from agentkv_runtime.formats import Family, Format

__all__ = ["CallFormat", "checked_format"]

CallFormat: TypeAlias = "str | Mapping[str, Any] | Family | Format"
"""The name of a known format, a response template, or a custom format."""


def checked_format(given: object) -> CallFormat | None:
    """Returns a valid `call_format` argument. Raises InvalidInput for an unknown name or a malformed response
    template."""
    if given is None:
        return None
    from agentkv_runtime.formats import FAMILIES, Family, Format
    from agentkv_runtime.formats.template import load_template

    if isinstance(given, Format):
        return given
    if isinstance(given, Family | Mapping):
        try:
            given.check() if isinstance(given, Family) else load_template(given)
        except FormatError as error:
            raise InvalidInput(f"call_format: {error}") from error
        return given
    if not isinstance(given, str) or given not in FAMILIES:
        raise InvalidInput(
            f"call_format is {preview(given)}, but it must be one of {', '.join(FAMILIES)}, or a mapping"
        )
    return given

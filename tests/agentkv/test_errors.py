"""One table of errors: each class of the native module is a public error, and no entry is left over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from agentkv_runtime import _core, errors

import agentkv as kv
from agentkv._types.errors import PUBLIC, from_native

# Raised as they are: setting up threads or a backend failed, which opening a model reports with its own words.
INTERNAL = {_core.Error}


def classes(base: type[BaseException] = _core.Error) -> Iterator[type[BaseException]]:
    yield base
    for derived in base.__subclasses__():
        yield from classes(derived)


NATIVE = sorted(set(classes()) - INTERNAL, key=lambda error: error.__name__)


@pytest.mark.parametrize("native", NATIVE, ids=lambda error: error.__name__)
def test_every_native_error_has_a_public_one(native: type[BaseException]) -> None:
    assert native.__doc__
    assert getattr(_core, native.__name__) is native
    public, advice = PUBLIC[native.__name__]
    cause = native("7 of 5.")
    error = from_native(cause)
    assert type(error) is public
    assert str(error) == (f"7 of 5; {advice}" if advice else "7 of 5.")
    assert error.__cause__ is cause
    if issubclass(native, ValueError):
        assert issubclass(public, kv.InvalidInput | kv.StepFailed)


def test_every_entry_is_an_error_of_the_runtime() -> None:
    assert set(PUBLIC) == {error.__name__ for error in [*NATIVE, errors.DraftMismatchError]}
    assert {public for public, _ in PUBLIC.values()} <= {getattr(kv, name) for name in kv.__all__}


@pytest.mark.parametrize("foreign", [ValueError("x"), _core.Error("x"), type("BranchBusy", (Exception,), {})("x")])
def test_errors_of_others_pass_through(foreign: Exception) -> None:
    assert from_native(foreign) is foreign


def test_wire_codes_are_read_as_they_are_written() -> None:
    from agentkv._types.errors import WIRE_CODES, wire_code
    from agentkv.remote.errors import error_of

    for code, kind in WIRE_CODES.items():
        assert type(error_of("host", {"code": code, "message": "why"})) is kind
        assert wire_code(kind) in WIRE_CODES

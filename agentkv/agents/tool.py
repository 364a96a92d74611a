"""Functions that a model may call."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from .._types.checks import checked_bool, checked_count, checked_text
from .._types.errors import AgentKVError, InvalidInput
from .._types.show import preview
from .parameters import Parameters, described
from .run_context import RunContext
from .schema_check import SchemaCheck

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
Deps = TypeVar("Deps")
Deps_contra = TypeVar("Deps_contra", contravariant=True)

Check = Callable[[Mapping[str, Any]], dict[str, Any]]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_OPTIONS = frozenset(
    {
        "timeout",
        "retries",
        "backoff",
        "approve",
        "early",
        "in_order",
        "repeatable",
        "idempotent",
        "max_result_tokens",
        "on_long",
        "on_error",
        "on_fork",
    }
)

OnError = Literal["tell", "raise"]
OnLong = Literal["cut", "refuse"]
OnFork = Literal["share", "again"]


class Retry(AgentKVError):
    """Raised by a tool so that the model reads why and may try again: `raise kv.Retry("unknown city")`."""


@dataclass(frozen=True, eq=False)
class Tool(Generic[Deps_contra, P, R_co]):
    """A function that a model may call. Made by `kv.tool`; calling it calls the function.

    A tool whose schema comes from elsewhere is made directly: `Tool(name, description, schema, function)`. Its function
    gets the arguments by name, once they were checked against the schema.

    A grammar constrains calls to `parameters` as far as it can. Violations beyond it, such as of `uniqueItems`, are
    found by the check, and the model reads what was wrong.

    Attributes:
        name: name for the model; 1 to 64 letters, digits, `_`, `.` or `-`.
        description: description for the model.
        parameters: JSON schema of an object.
        function: the function that runs; a plain one runs in a worker thread.
        timeout: seconds for one attempt; None for any time.
        retries: number of further attempts after an exception, without a message of the model.
        backoff: seconds before the first retry, doubled for each later one.
        approve: whether a person decides on each call.
        early: whether a call may begin while the model still writes its message. Never where a person decides, and
            never in order.
        in_order: whether a call waits for the calls of its message before it whose tools are in order as well: for
            tools that work on the same thing.
        repeatable: whether a call with the same arguments may give another result though nothing else was called
            since. Otherwise a turn runs such a call once, see `Agent.max_repeats`.
        idempotent: whether making a call twice does no more than making it once: a call whose process ended is then
            made again by the process that resumes its turn (`kv.Journal`). Otherwise the model reads that its outcome
            is not known. A function that is so by a key takes it from `RunContext.call_key`.
        max_result_tokens: most tokens of a result; None for any number.
        on_long: treatment of a longer result: "cut" it, with a mark, or "refuse" it with an error for the model.
        on_error: treatment of an exception: "tell" the model, or "raise" ToolFailed, which ends the turn.
        on_fork: treatment of a call that runs when its turn is forked: "share" its outcome, or have each fork make it
            "again".
        check: converts the model's arguments to the function's, and raises for invalid ones; None for a check against
            `parameters`.
        takes_context: whether the function takes a RunContext before its arguments.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[P, R_co] = field(repr=False)
    _: KW_ONLY
    timeout: float | None = None
    retries: int = 0
    backoff: float = 0.1
    approve: bool = False
    early: bool = True
    in_order: bool = False
    repeatable: bool = False
    idempotent: bool = False
    max_result_tokens: int | None = None
    on_long: OnLong = "cut"
    on_error: OnError = "tell"
    on_fork: OnFork = "share"
    check: Check | None = field(default=None, repr=False)
    takes_context: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidInput for anything out of range."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"a tool has the name {preview(self.name)}, but models call tools by 1 to 64 letters, digits, '_', '.' "
                "and '-'; pass name="
            )
        what = f"of tool {self.name}"
        if not isinstance(self.description, str):
            raise InvalidInput(f"description {what} is {preview(self.description)}, but it must be a str")
        checked_text(self.description, f"description {what}")
        if not isinstance(self.parameters, Mapping) or self.parameters.get("type") != "object":
            raise InvalidInput(
                f"parameters {what} are {preview(self.parameters)}, but they must be an object's JSON schema"
            )
        several = inspect.isasyncgenfunction(self.function) or inspect.isgeneratorfunction(self.function)
        if not callable(self.function) or several:
            raise InvalidInput(f"function {what} is {preview(self.function)}, but it must return one result")
        if self.timeout is not None:
            check_seconds(self.timeout, f"timeout {what}", zero=False)
        check_seconds(self.backoff, f"backoff {what}", zero=True)
        checked_count(self.retries, f"retries {what}", 0)
        if self.max_result_tokens is not None:
            checked_count(self.max_result_tokens, f"max_result_tokens {what}", 1)
        checked_bool(self.approve, f"approve {what}")
        checked_bool(self.early, f"early {what}")
        checked_bool(self.in_order, f"in_order {what}")
        checked_bool(self.repeatable, f"repeatable {what}")
        checked_bool(self.idempotent, f"idempotent {what}")
        for value, name, known in (
            (self.on_long, "on_long", ("cut", "refuse")),
            (self.on_error, "on_error", ("tell", "raise")),
            (self.on_fork, "on_fork", ("share", "again")),
        ):
            if value not in known:
                raise InvalidInput(f"{name} {what} is {preview(value)}, but it must be one of {', '.join(known)}")

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Converts a model's arguments to the function's. Raises InvalidArguments, or what a `check` raises."""
        return (self.check or self._schema_check)(arguments)

    @cached_property
    def _schema_check(self) -> Check:
        return SchemaCheck(self.name, self.parameters)

    @property
    def definition(self) -> dict[str, Any]:
        """The tool in the form that chat templates and tool-calling APIs share."""
        parameters = dict(self.parameters)
        if not isinstance(parameters.get("properties"), Mapping):  # many templates go through them
            parameters["properties"] = {}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    @property
    def begins_early(self) -> bool:
        """Whether a call may begin before its message is complete."""
        return self.early and not self.approve and not self.in_order

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Calls the function itself, as any code may."""
        return self.function(*args, **kwargs)


class ToolDecorator(Protocol):
    """Decorator that `kv.tool(...)` returns when called with options only."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[RunContext[Deps], P], R], /
    ) -> Tool[Deps, Concatenate[RunContext[Deps], P], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Tool[object, P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Tool[Any, ..., Any]:
        """Makes the tool."""
        ...


@overload
def tool(
    function: Callable[Concatenate[RunContext[Deps], P], R], /
) -> Tool[Deps, Concatenate[RunContext[Deps], P], R]: ...
@overload
def tool(function: Callable[P, R], /) -> Tool[object, P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    retries: int = 0,
    backoff: float = 0.1,
    approve: bool = False,
    early: bool = True,
    in_order: bool = False,
    repeatable: bool = False,
    idempotent: bool = False,
    max_result_tokens: int | None = None,
    on_long: OnLong = "cut",
    on_error: OnError = "tell",
    on_fork: OnFork = "share",
) -> ToolDecorator: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    **options: Any,
) -> Tool[Any, ..., Any] | ToolDecorator:
    """Makes a tool of a function: `@kv.tool`, or `@kv.tool(timeout=5)`.

    The schema comes from the type hints, checked by pydantic (nested models, enums, `Annotated[..., Field(...)]`,
    defaults); descriptions from the docstring (Google, NumPy and Sphinx styles). A first parameter of type
    `kv.RunContext` gets the run context and is not the model's. See `kv.Tool` for the options.

    A plain function runs in a worker thread; one that times out continues there, and occupies the thread until it
    returns. A result is a str, or anything that pydantic can write as JSON.

    Raises:
        InvalidInput: a parameter without a type hint or without a JSON schema, or an option out of range.
    """
    known = sys._getframe(1).f_locals  # type hints may name what the caller defined beside the function
    if function is None:
        return cast(ToolDecorator, lambda function: _made(function, name, description, options, known))
    return _made(function, name, description, options, known)


def _made(
    function: Callable[..., Any],
    name: str | None,
    description: str | None,
    options: Mapping[str, Any],
    known: Mapping[str, Any],
) -> Tool[Any, ..., Any]:
    if isinstance(function, Tool | type) or not callable(function):
        raise InvalidInput(f"kv.tool was given {preview(function)}, but it takes a function")
    called = name if name is not None else getattr(function, "__name__", "")
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        known_ones = ", ".join(sorted(_OPTIONS | {"name", "description"}))
        raise InvalidInput(f"kv.tool has no option {unknown[0]!r}; its options are {known_ones}")
    said, about = described(function)
    parameters = Parameters.of(function, called, about, known)
    return Tool(
        called,
        said if description is None else description,
        parameters.schema,
        function,
        check=parameters.check,
        takes_context=parameters.takes_context,
        **options,
    )


def check_seconds(value: object, what: str, *, zero: bool) -> None:
    """Raises InvalidInput unless `value` is a finite number of seconds above 0, or 0 where `zero` allows it."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if not number or value < 0 or (value == 0 and not zero):  # type: ignore[operator]  # a number by now
        raise InvalidInput(f"{what} is {preview(value)}, but it must be a number of seconds above 0")

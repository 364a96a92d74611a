"""The sandbox that chat templates run in: what a template may call, how long it may run, how much it may make."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import MethodDescriptorType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment, modifies_known_mutable
from jinja2.utils import pass_environment

from agentkv_runtime.errors import TemplateTimeout
from agentkv_runtime.text.provenance import Masked, joined

__all__ = ["Sandbox", "time_limit"]

MOST_CHARACTERS = 1 << 26  # of anything that a template makes
_MOST_BITS = 1 << 16  # of an integer
_BLOCKS_PER_LOOK = 64  # blocks that run between two looks at the clock
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{5})")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^}]*(?:\d{5}|\{)")

_deadline: ContextVar[_Deadline | None] = ContextVar("deadline", default=None)


class _Deadline:
    __slots__ = ("_blocks", "_end", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.thread_time() + seconds
        self._blocks = 0

    def look(self) -> None:
        self._blocks += 1
        if self._blocks % _BLOCKS_PER_LOOK == 0 and time.thread_time() > self._end:
            raise TemplateTimeout(
                f"the chat template ran for {self._seconds:g} seconds without an end; give fewer messages, or mend it"
            )


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limits templates rendered inside to `seconds` of this thread's CPU time; beyond, they raise TemplateTimeout.

    CPU time, so that no template is too slow merely because the machine is busy.
    """
    token = _deadline.set(_Deadline(seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


class _GenerationBlock(Extension):
    """Renders the body of `{% generation %}`, which marks the assistant's part for training, unchanged."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration is a plain set

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _WatchedCode(CodeGenerator):
    """Generates code that checks the time limit at the start of each block: every turn of a loop, every macro call."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline("environment.look()")
        super().blockvisit(nodes, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat([str(part) for part in (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")])")


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja with the settings of chat templates; refuses results that are too large before making them."""

    code_generator_class = _WatchedCode
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # Templates are written for these whitespace rules, names and filters.
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
        self.globals["raise_exception"] = _raise
        del self.globals["lipsum"]
        for name in ("wordwrap", "xmlattr", "urlize"):  # no template spells a conversation with them
            del self.filters[name]
        for name in ("center", "batch", "slice", "round", "truncate"):
            self.filters[name] = _with_small_numbers(self.filters[name])
        self.filters.update(tojson=_to_json, indent=_indent, format=_format, join=_join, replace=_replace)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may look it up: no method that changes anything, nor as the class `dict` has them."""
        changes = isinstance(value, MethodDescriptorType) and modifies_known_mutable({}, attr)
        return super().is_safe_attribute(obj, attr, value) and not changes

    def look(self) -> None:
        """Raises TemplateTimeout once the limit of `time_limit` is used up."""
        deadline = _deadline.get()
        if deadline is not None:
            deadline.look()

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Joins the output of a macro, of a block or of `~`. Raises TemplateRuntimeError if it is too large."""
        parts = list(parts)
        _check_size(sum(map(len, parts)))
        return joined(parts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Applies `+`, `*`, `**` or `%`. Raises TemplateRuntimeError, before computing it, for a result too large."""
        if operator == "+":
            if type(left) is str and type(right) is str and len(left) + len(right) <= MOST_CHARACTERS:
                return left + right
            if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
                _check_size(len(left) + len(right))
        elif operator == "%":
            if isinstance(left, str):
                _check_fields(left, _WIDE_PERCENT, right if isinstance(right, tuple) else (right,))
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length()
            _check_bits(bits + right.bit_length() if operator == "*" else bits * max(right, 0))
        elif operator == "*":
            many, times = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(many, str | list | tuple) and isinstance(times, int):
                _check_size(len(many) * max(times, 0))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __callee: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a function or method; first checks that a method of a text or number makes a result within bounds."""
        method = getattr(__callee, "__wrapped__", __callee)  # jinja wraps `format` when it is looked up
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | int | float):
            args = _checked_arguments(owner, method.__name__, args, kwargs)
        return super().call(__context, __callee, *args, **kwargs)


def _check_size(size: int) -> None:
    if size > MOST_CHARACTERS:
        raise jinja2.TemplateRuntimeError(
            f"it makes {size} characters or items of something, but at most {MOST_CHARACTERS} are taken"
        )


def _check_bits(bits: int) -> None:
    if bits > _MOST_BITS:
        raise jinja2.TemplateRuntimeError(f"it makes an integer of {bits} bits, but at most {_MOST_BITS} are taken")


def _check_numbers(values: Iterable[object]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_RANGE:
            raise jinja2.TemplateRuntimeError(f"it asks for a size of {value}, but at most {MAX_RANGE} is taken")


def _checked_arguments(owner: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    values = (*args, *kwargs.values())
    _check_numbers(values)
    if not isinstance(owner, str):
        return args
    if name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        _check_size(owner.count(args[0]) * len(args[1]))
    elif name == "join" and args:
        parts = list(args[0])
        _check_size(len(parts) * len(owner) + sum(len(part) for part in parts if isinstance(part, str)))
        return (parts, *args[1:])
    elif name in ("format", "format_map"):
        _check_fields(owner, _WIDE_BRACES, values)
    elif name == "expandtabs":
        _check_size(owner.count("\t") * max((value for value in values if isinstance(value, int)), default=8))
    elif name == "translate":
        raise jinja2.TemplateRuntimeError("it calls `translate`, which templates may not")
    return args


def _check_fields(layout: str, wide: re.Pattern[str], values: Iterable[object]) -> None:
    _check_numbers(values)
    if wide.search(layout):
        raise jinja2.TemplateRuntimeError(f"the format {layout[:40]!r} has a width that is too large or computed")
    longest = max((len(value) for value in values if isinstance(value, str)), default=0)
    _check_size((layout.count("{") + layout.count("%")) * longest)


def _with_small_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_numbers((*args[1:], *kwargs.values()))
        return function(*args, **kwargs)

    return checked


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    _check_numbers((indent,))
    kind = _masked_kind(value)
    if kind is None:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
    covered: str = kind.cover(json.dumps(kind.bare(value), ensure_ascii=ensure_ascii, indent=indent, **options))
    return covered


def _masked_kind(value: Any) -> type[Masked] | None:
    """The class of the first masked text in a value."""
    if isinstance(value, Masked):
        return type(value)
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = (*value.keys(), *value.values())
    elif isinstance(value, list | tuple):
        parts = value
    return next((kind for kind in map(_masked_kind, parts) if kind is not None), None)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    margin = width if isinstance(width, str) else " " * min(width, MAX_RANGE + 1)
    _check_numbers((len(margin),))
    _check_size((text.count("\n") + 1) * len(margin) + len(text))
    lines = (str(text) + "\n").splitlines()
    made = [("" if i == 0 and not first else margin if line or blank else "") + line for i, line in enumerate(lines)]
    return joined([part for line in made for part in ("\n", line)][1:])


def _format(layout: str, *values: Any, **named: Any) -> str:
    _check_fields(layout, _WIDE_PERCENT, (*values, *named.values()))
    made: str = str(layout) % (named or values)
    return made


@pass_environment
def _join(environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    items = map(make_attrgetter(environment, attribute), value) if attribute is not None else value
    texts = [str(item) for item in items]
    _check_size(len(texts) * len(d) + sum(map(len, texts)))
    return joined([part for text in texts for part in (d, text)][1:])


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    _check_size(text.count(old) * len(new))
    made: str = text.replace(old, new, -1 if count is None else count)
    return made


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)

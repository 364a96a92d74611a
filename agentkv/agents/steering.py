"""Rules for the messages of a turn: the tools that they may call or must call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import TypedDict

from .._types.checks import checked_count
from .._types.errors import InvalidInput
from .._types.run import MISSING, CallRecord, CallRequest
from .._types.show import preview
from .run_context import RunContext

if TYPE_CHECKING:
    from .agent import Agent

__all__ = ["CHOICES", "CallRules", "Choose", "Steer", "Steering", "ToolChoice"]

CHOICES = ("auto", "required", "none")
MESSAGE_TOKENS = 1024

Choose: TypeAlias = Callable[[RunContext[Any]], Awaitable[str] | str]
ToolChoice: TypeAlias = str | Choose
"""Whether a message may ("auto"), must ("required") or must not ("none") call; the name of the tool that it calls; or
a function that returns one of these before each message."""


class Steer(TypedDict, total=False):
    """Options that steer one turn, for type checkers; see `Agent.run`."""

    tool_choice: ToolChoice
    allowed_tools: Collection[str] | None
    required: Sequence[str] | AbstractSet[str]
    final_tool: str | None
    max_message_tokens: int


@dataclass(frozen=True, slots=True)
class CallRules:
    """Calls that one message may or must make.

    Attributes:
        choice: "auto", "required", "none" or the name of a tool.
        allowed: names of the tools that it may call; None for all.
        max_calls: calls of the message, where those are fewer than the agent allows: a step of a sequence is one.
    """

    choice: str = "auto"
    allowed: frozenset[str] | None = None
    max_calls: int | None = None

    @property
    def must_call(self) -> bool:
        """Whether the message must make a call."""
        return self.choice not in ("auto", "none")

    def allows(self, name: str) -> bool:
        """Returns whether the message may call this tool."""
        return (self.allowed is None or name in self.allowed) and self.choice in (*CHOICES[:2], name)


ANY_CALLS = CallRules()


@dataclass(frozen=True, slots=True)
class Steering:
    """Rules of a turn. Frozen; raises InvalidInput for values of a wrong type or that exclude each other.

    Attributes:
        tool_choice: see `ToolChoice`.
        allowed_tools: names of the tools that may be called; None for all.
        required: tools that must have been called before an answer counts: in this order, or in any where it is a set.
        final_tool: the tool whose call is the answer.
        max_message_tokens: most tokens of a message.
    """

    tool_choice: ToolChoice = "auto"
    allowed_tools: Collection[str] | None = None
    required: Sequence[str] | AbstractSet[str] = ()
    final_tool: str | None = None
    max_message_tokens: int = MESSAGE_TOKENS

    def __post_init__(self) -> None:
        if not isinstance(self.tool_choice, str) and not callable(self.tool_choice):
            raise InvalidInput(
                f"tool_choice is {preview(self.tool_choice)}, but it must be 'auto', 'required', 'none', the name of a "
                "tool, or a function that returns one of these"
            )
        if self.allowed_tools is not None:
            object.__setattr__(self, "allowed_tools", frozenset(_names(self.allowed_tools, "allowed_tools")))
        in_any_order = isinstance(self.required, AbstractSet)
        names = _names(self.required, "required")
        object.__setattr__(self, "required", frozenset(names) if in_any_order else tuple(names))
        if self.final_tool is not None and not isinstance(self.final_tool, str):
            raise InvalidInput(f"final_tool is {preview(self.final_tool)}, but it must be the name of a tool")
        if self.final_tool in self.required:
            raise InvalidInput(
                f"{self.final_tool} is the final tool, which is called last anyway; leave it out of required"
            )
        if self.tool_choice == "none" and (self.required or self.final_tool):
            raise InvalidInput("tool_choice is 'none', but there are tools that must be called; leave one of them out")
        checked_count(self.max_message_tokens, "max_message_tokens", 1)

    def saved(self) -> dict[str, Any]:
        """The rules by name, as JSON has them; a function for `tool_choice` is left out."""
        rules: dict[str, Any] = {
            "tool_choice": self.tool_choice,
            "allowed_tools": None if self.allowed_tools is None else sorted(self.allowed_tools),
            "required": list(self.required),
            "in_any_order": isinstance(self.required, AbstractSet),
            "final_tool": self.final_tool,
            "max_message_tokens": self.max_message_tokens,
        }
        return {name: rule for name, rule in rules.items() if not callable(rule)}

    def with_saved(self, saved: Mapping[str, Any]) -> Steering:
        """These rules, replaced by what `saved` has."""
        rules = dict(saved)
        if rules.pop("in_any_order", False):
            rules["required"] = set(rules["required"])
        return replace(self, **rules)

    def check(self, agent: Agent[Any, Any], tools: Collection[str]) -> None:
        """Raises InvalidInput for an unknown or disallowed tool, too few rounds, or an output beside a final tool."""
        chosen = {self.tool_choice} - {*CHOICES} if isinstance(self.tool_choice, str) else set()
        for what, names in (
            ("allowed_tools", self.allowed_tools or ()),
            ("tool_choice", chosen),
            ("required", self.required),
            ("final_tool", [] if self.final_tool is None else [self.final_tool]),
        ):
            for name in names:
                _check_name(name, what, tools, what == "tool_choice")
                if self.allowed_tools is not None and name not in self.allowed_tools:
                    raise InvalidInput(f"{what} has {name}, which is not among allowed_tools; allow it as well")
        if self.tool_choice == "required" and not (tools if self.allowed_tools is None else self.allowed_tools):
            raise InvalidInput("tool_choice is 'required', but there is no tool to call; give the agent tools")
        least = 1 + (bool(self.required) if isinstance(self.required, AbstractSet) else len(self.required))
        if agent.max_rounds < least:
            raise InvalidInput(
                f"max_rounds is {agent.max_rounds}, but required tools and the answer take {least} messages; pass more"
            )
        if self.final_tool is not None and agent.output is not str:
            raise InvalidInput(
                f"output is {preview(agent.output)}, but what the final tool {self.final_tool} gives is the answer; "
                "leave one of them out"
            )

    def next(self, given: str, done: Sequence[str], called: bool, last: bool) -> CallRules:
        """Rules for the next message.

        Args:
            given: value of `tool_choice`, or what its function returned.
            done: names of the tools that were called and done so far, in order.
            called: whether the turn has made calls.
            last: whether this is the last allowed message, or the turn repeats itself.
        """
        missing = self.missing(done)
        if missing:
            return CallRules("required", missing, None if isinstance(self.required, AbstractSet) else 1)
        allowed = None if self.allowed_tools is None else frozenset(self.allowed_tools)
        if isinstance(self.tool_choice, str) and called:
            given = "none" if given == "none" else "auto"
        if self.final_tool is None:
            return CallRules(given, allowed)
        if last:
            return CallRules(self.final_tool)
        return CallRules("required" if given in CHOICES else given, allowed)

    def is_final(self, call: CallRequest, rules: CallRules) -> bool:
        """Returns whether this call may end the turn, so that no other one follows it."""
        return call.name == self.final_tool and call.error is None and rules.allows(call.name)

    def answer(self, calls: Iterable[CallRecord]) -> Any:
        """Result of the first successful call of the final tool, or its arguments if that is None; else MISSING."""
        for call in calls:
            if call.name == self.final_tool and call.status == "done":
                return dict(call.arguments) if call.result is None else call.result
        return MISSING

    def missing(self, done: Iterable[str]) -> frozenset[str]:
        """Required tools that are still to be called: all of a set, or the next one of a sequence."""
        if isinstance(self.required, AbstractSet):
            return frozenset(self.required).difference(done)
        rest = list(self.required)
        for name in done:
            if rest and name == rest[0]:
                rest.pop(0)
        return frozenset(rest[:1])


def checked_choice(given: object, tools: Collection[str]) -> str:
    """Checks the value that a `tool_choice` function returned. Raises InvalidInput."""
    if not isinstance(given, str):
        raise InvalidInput(f"tool_choice returned {preview(given)}, but it must return a str")
    if given not in CHOICES:
        _check_name(given, "tool_choice", tools, or_choice=True)
    return given


def _names(given: object, what: str) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Collection):
        raise InvalidInput(f"{what} is {preview(given)}, but it must be a list or a set of names of tools")
    for name in given:
        if not isinstance(name, str):
            raise InvalidInput(f"{what} has {preview(name)}, but it must have names of tools")
    return list(given)


def _check_name(name: str, what: str, tools: Collection[str], or_choice: bool = False) -> None:
    if name not in tools:
        known = f"the tools are {', '.join(tools)}" if tools else "the agent has no tools"
        wanted = f"it must be {', '.join(CHOICES)}, or the name of a tool" if or_choice else "there is no such tool"
        raise InvalidInput(f"{what} {'is' if or_choice else 'has'} {preview(name)}, but {wanted}; {known}")

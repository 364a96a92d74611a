"""A branch that a server holds."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Unpack, overload

import anyio
from pydantic import TypeAdapter
from typing_extensions import TypeForm, TypeVar

from .._errors import (
    AgentKVError,
    BranchBusy,
    BranchClosed,
    ForeignBranch,
    InvalidInput,
    InvalidRollback,
    OutputInvalid,
    StepFailed,
)
from .._extending import Extended
from .._generating import How
from .._generation import Choice, Generation
from .._inputs import Prompt, checked_count, checked_stop, items_of
from .._mark import Mark
from .._message import Message
from .._sampling import Sampling
from .._shown import shown
from .._speculation import INHERIT
from ..output import Constraint
from ..output._asked import Asked, asked
from ..output.grammar import GrammarSource
from ._settling import last_moments, settled
from ._stream import RemoteStream
from ._told import CHOICE, EXTENDED, FORKS, GENERATED, WHOLE, Whole
from ._values import Told, generation_of, output_told, prompt_told, sampling_told
from ._wire import Wire, odd

Out = TypeVar("Out", default=str)
W = TypeVar("W", bound=Whole)


class RemoteBranch:
    """As `kv.Branch`, which says what its verbs do and raise; ServerError comes on top.

    Properties are as of the last verb that ended here. A branch that nobody refers to is closed by the server once it
    was idle for long, or with its connection.
    """

    def __init__(self, wire: Wire, told: Whole, parent: RemoteBranch | None = None) -> None:
        """Private: use `Connection.branch`."""
        self._wire = wire
        self._name = told.id  # what its server calls it
        self._path = f"/v1/branches/{told.id}"
        self._parent = parent
        self._owner = object()  # of its marks
        self._marks: dict[str, Mark] = {}
        self._closed = False
        self._generates = False
        self._told = told
        wire.live.add(told.id)

    @property
    def id(self) -> int:
        """Number of the branch on its server; never reused."""
        return self._told.number

    @property
    def parent(self) -> RemoteBranch | None:
        """The branch that it was forked from; None for a root."""
        return self._parent

    @property
    def closed(self) -> bool:
        """Was it closed?"""
        return self._closed

    @property
    def reused(self) -> int:
        """How many of the tokens that it began with were in the cache already."""
        return self._told.reused

    @property
    def tokens(self) -> list[int]:
        """Every token of the history."""
        return list(self._told.tokens)

    @property
    def text(self) -> str:
        """The tokens as text, special tokens included."""
        return self._told.text

    @property
    def messages(self) -> list[Message]:
        """The conversation."""
        return list(self._told.messages)

    @property
    def marks(self) -> dict[str, Mark]:
        """The marks that were given a name here, and that still hold."""
        return dict(self._marks)

    def __len__(self) -> int:
        return self._told.length

    def __bool__(self) -> bool:
        return True  # an empty branch is still a branch

    def __repr__(self) -> str:
        return f"<RemoteBranch {self.id}: {len(self)} tokens{', closed' if self._closed else ''}>"

    async def extend(self, prompt: Prompt, *, template: Mapping[str, Any] | None = None) -> Extended:
        """Adds text, token ids or chat messages to the history and prefills them."""
        told = await self._verb("extend", prompt_told(prompt) | {"template": template}, EXTENDED)
        return told.extended

    def mark(self, name: str | None = None) -> Mark:
        """The present end of the history, to roll back to. Synchronous and free; names are known here alone."""
        self._check()
        length, _, epoch = self._told.mark.partition(":")
        mark = Mark(self.id, int(length), self._owner, int(epoch))
        if name is not None:
            self._marks[name] = mark
        return mark

    async def rollback(self, to: Mark | int) -> None:
        """Takes back everything after a mark, or after the first `to` tokens."""
        if not isinstance(to, Mark):
            length = checked_count(to, "the length to roll back to", 0, 2**63 - 1)
            await self._verb("rollback", {"length": length}, WHOLE)
            return
        if to._owner is not self._owner:
            raise InvalidRollback(f"{to} does not belong to branch {self.id}; use a mark of this branch")
        await self._verb("rollback", {"mark": f"{to.length}:{to._epoch}"}, WHOLE)

    @overload
    async def fork(self) -> RemoteBranch: ...
    @overload
    async def fork(self, n: int) -> list[RemoteBranch]: ...

    async def fork(self, n: int | None = None) -> RemoteBranch | list[RemoteBranch]:
        """A child with the same history, or a list of `n`."""
        count = 1 if n is None else checked_count(n, "n", 1, 256)
        children = await settled(lambda: self._forks(count), _close_all)
        return children[0] if n is None else children

    async def select(self, choices: Sequence[str]) -> Choice:
        """The most likely of `choices` as a continuation; the branch is unchanged."""
        told = await self._verb("select", {"choices": items_of(choices, "choices")}, CHOICE)
        choice = told.choice
        if choice.index >= len(choice.logprobs):
            raise odd("choice.index: it has no log-probability")
        return Choice(choice.text, choice.index, choice.logprobs)

    async def adopt(self, other: RemoteBranch) -> None:
        """Takes over the history of another branch of the same server, which stays as it is."""
        if not isinstance(other, RemoteBranch):
            raise InvalidInput(f"other is {shown(other)}, but it must be a RemoteBranch")
        if other._wire is not self._wire:
            raise ForeignBranch(f"branch {other.id} is of another connection; adopt one of the same")
        other._check()
        await self._verb("adopt", {"other": other._name}, WHOLE)

    @overload
    async def generate(
        self, *, output: TypeForm[Out] = ..., output_retries: int = ..., **how: Unpack[How]
    ) -> Generation[Out]: ...
    @overload
    async def generate(
        self, *, output: GrammarSource[Out] | Constraint, output_retries: int = ..., **how: Unpack[How]
    ) -> Generation[Out]: ...

    async def generate(self, *, output: Any = str, output_retries: int = 1, **how: Unpack[How]) -> Generation[Any]:
        """Samples tokens until something ends it. They all enter the history.

        A strategy of speculation is the server's own; `speculative=None` does without. A `kv.Constraint` of your own
        cannot go to a server.
        """
        source = asked(output)
        retries = checked_count(output_retries, "output_retries", 0)
        body = _generate_body(source, how)
        for attempt in range(retries + 1):
            generation = await self._generated(body if not attempt else _again(body, attempt), source)
            if not isinstance(generation._fault, OutputInvalid):
                return generation
            await self.rollback(generation.usage.prompt_tokens)
        assert generation._fault is not None
        raise generation._fault

    @overload
    def stream(self, *, output: TypeForm[Out] = ..., **how: Unpack[How]) -> RemoteStream[Out]: ...
    @overload
    def stream(self, *, output: GrammarSource[Out] | Constraint, **how: Unpack[How]) -> RemoteStream[Out]: ...

    def stream(self, *, output: Any = str, **how: Unpack[How]) -> RemoteStream[Any]:
        """As `generate`, token by token. Leaving the block stops it, and the branch keeps what was read."""
        self._check()
        source = asked(output)
        return RemoteStream(self, _generate_body(source, how) | {"stream": True}, source)

    def close(self) -> RemoteClosing:
        """Frees the branch. The server is told with the next request of the connection; `await branch.close()` tells it
        now."""
        if not self._closed:
            self._closed = True
            self._wire.close(self._name)
        return RemoteClosing(self._wire, self._name)

    async def __aenter__(self) -> RemoteBranch:
        self._check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        closing = self.close()
        if kind is not GeneratorExit:
            with last_moments(), suppress(AgentKVError):  # it is told later, then
                await closing

    async def _forks(self, count: int) -> list[RemoteBranch]:
        told = await self._verb("fork", {"n": count}, FORKS)
        if len(told.forks) != count:
            raise odd(f"forks: {len(told.forks)} instead of {count}")
        children = [RemoteBranch(self._wire, fork.as_fork_of(told), self) for fork in told.forks]
        try:
            for child in children:
                if child._told.mark != told.mark:  # it was forked while this one generated
                    child._take(await self._wire.show(child._name))
        except BaseException:
            _close_all(children)
            raise
        return children

    async def _generated(self, body: Told, source: Asked[Any]) -> Generation[Any]:
        self._begin()
        try:
            told = await self._verb("generate", body, GENERATED)
        except anyio.get_cancelled_exc_class():
            await self._stop_soon(None)
            raise
        except StepFailed:
            await self._look()
            raise
        finally:
            self._generates = False
        return generation_of(told.generation, source)

    def _begin(self) -> None:
        """Of a generation: whoever is cancelled ends what runs on the branch, which must be its own. Raises
        BranchBusy."""
        if self._generates:
            raise BranchBusy(f"branch {self.id} generates; wait for that, or work on a fork")
        self._generates = True

    async def _stop(self, length: int | None) -> None:
        """What it generates ends; it keeps so many tokens at most."""
        await settled(lambda: self._verb("stop", {"length": length}, WHOLE))

    async def _stop_soon(self, length: int | None) -> None:
        """The same for whoever is cancelled, or fails. A server that says nothing is not waited for: it was hung up on,
        which ends a generation as well."""
        with last_moments(), suppress(AgentKVError):
            await self._verb("stop", {"length": length}, WHOLE)

    async def _look(self) -> None:
        """How the branch is after something failed on it: the tokens that came before that are there."""
        with last_moments(), suppress(AgentKVError):
            self._take(await self._wire.show(self._name))

    async def _verb(self, name: str, body: Told, shape: TypeAdapter[W]) -> W:
        self._check()
        told = await self._wire.post(f"{self._path}/{name}", body, shape)
        self._take(told)
        return told

    def _take(self, told: Whole) -> None:
        """The branch is as the server says."""
        before, now = self._told.tokens, told.tokens
        if self._marks and now[: len(before)] != before:
            pairs = zip(before, now, strict=False)
            same = next((index for index, (old, new) in enumerate(pairs) if old != new), min(len(before), len(now)))
            self._marks = {name: mark for name, mark in self._marks.items() if mark.length <= same}
        self._told = told

    def _check(self) -> None:
        if self._closed:
            raise BranchClosed(f"branch {self.id} is closed; use a live branch, or fork before closing")


class RemoteClosing:
    """What `close` returns; awaiting it waits until the server has closed the branch."""

    def __init__(self, wire: Wire, name: str) -> None:
        self._wire = wire
        self._name = name

    def __await__(self) -> Generator[Any, None, None]:
        return self._wire.tell(self._name).__await__()


def _close_all(branches: Sequence[RemoteBranch]) -> None:
    for branch in branches:
        branch.close()


def _generate_body(source: Asked[Any], how: How) -> Told:
    body: Told = dict(how)
    if body.pop("speculative", INHERIT) is None:
        body["speculative"] = False
    elif how.get("speculative", INHERIT) is not INHERIT:
        raise InvalidInput("speculative is the server's own; leave it out, or pass None for plain decoding")
    body["stop"] = checked_stop(how.get("stop"))
    body["sampling"] = sampling_told(how.get("sampling"))
    return body | {"output": output_told(source)}


def _again(body: Told, attempt: int) -> Told:
    """The same with other draws, as the SDK makes them."""
    sampling = Sampling(**(body["sampling"] or {}))
    drawn = {"seed": ((sampling.seed or 0) + attempt) % 2**63} | ({"temperature": 1.0} if sampling.greedy else {})
    return body | {"sampling": sampling_told(sampling.model_copy(update=drawn))}

"""Publishing of branches: a server stores them under a name, by which others attach to them."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import xxhash

from .._documents.conversations import SavedOutput
from .._documents.published import PublishedBranch
from .._types.errors import BranchExists, InvalidInput, RemoteError
from ..output.grammar import GrammarSource
from .branches import BranchLog, OutputSpan
from .jobs import RemoteJob
from .protocol import Attached, Publication, Published, ServerEvent

if TYPE_CHECKING:
    from .._documents.conversations import SavedConversations
    from .engine import RemoteEngine
    from .http import ServerConnection
    from .protocol import PublishingProtocol

NamedAsked: TypeAlias = "Callable[[PublishingProtocol, ServerConnection], Awaitable[ServerEvent]]"


@dataclass(frozen=True, slots=True)
class SavedGrammar(GrammarSource[str]):
    """Grammar of an output that another process began; an equal one continues the output."""

    text: str

    @property
    def grammar(self) -> str:
        """The grammar in llguidance's form."""
        return self.text

    def read(self, text: str) -> str:
        """The text itself."""
        return text


class PublishJob(RemoteJob):
    """Stores the branch's current state on the server; replaces what is under the name if that is this branch's."""

    kind = "publish"

    def __init__(
        self,
        number: int,
        branch: BranchLog,
        engine: RemoteEngine,
        name: str,
        conversations: SavedConversations,
        marks: Mapping[str, int],
    ) -> None:
        super().__init__(number, branch, engine)
        self._name = name
        before = branch.publications.get(name, ())
        published = PublishedBranch(
            tokens=branch.log.tolist(),
            rng_stream=branch.stream,
            forks=branch.forks,
            conversations=conversations,
            marks=dict(marks),
            output=_saved(branch.output),
        )
        self._publication = Publication(published, secrets.token_hex(16), before)
        # Until the server answers, it may have any of these revisions.
        branch.publications[name] = (*before, self._publication.revision)

    def begin(self) -> None:
        name, publication = self._name, self._publication
        self.engine.ask_named(self, name, lambda wire, http: wire.publish(http, name, publication))

    def on_answer(self, event: ServerEvent) -> None:
        assert isinstance(event, Published)
        self.branch.publications[self._name] = (self._publication.revision,)
        self.finish()

    def failed(self, error: Exception) -> None:
        if isinstance(error, BranchExists):  # the name is another branch's
            self.branch.publications[self._name] = self._publication.replaces
        super().failed(error)


class AttachJob(RemoteJob):
    """Loads the branch that the server stores under a name into an empty one."""

    kind = "attach"

    def __init__(self, number: int, branch: BranchLog, engine: RemoteEngine, name: str) -> None:
        super().__init__(number, branch, engine)
        self._name = name

    def begin(self) -> None:
        self.engine.ask_named(self, self._name, lambda wire, http: wire.attach(http, self._name))

    def on_answer(self, event: ServerEvent) -> None:
        assert isinstance(event, Attached)
        branch, published = self.branch, event.branch
        try:
            published.conversation()
            branch.append(self.engine.check_tokens(published.tokens))
        except (InvalidInput, ValueError) as error:
            self.failed(RemoteError(f"the server keeps {self._name!r} as no branch of this model: {error}"))
            return
        branch.sent = len(branch)
        branch.stream, branch.forks = published.rng_stream, published.forks
        if (output := published.output) is not None:
            branch.output = OutputSpan(SavedGrammar(output.grammar), output.began, output.end, output.complete)
        branch.publications[self._name] = (event.revision,)
        self.outcome.published = published
        self.finish()


def place_of(name: str) -> int:
    """Root of a published name: it maps each name to the same one of several servers."""
    return xxhash.xxh3_64_intdigest(name.encode())


def _saved(output: OutputSpan | None) -> SavedOutput | None:
    if output is None or output.began < 0:
        return None
    constraint: Any = output.constraint
    return SavedOutput(grammar=constraint.grammar, began=output.began, end=output.end, complete=output.complete)

"""The errors of agentkv, as a tree under `AgentKVError`.

Every message names the request, the bound that it broke, and the remedy.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import Run


class AgentKVError(Exception):
    """Base of every error that agentkv raises on purpose.

    Attributes:
        run: the partial run of the agent's turn that this error ended, with the calls that ran. None elsewhere.
    """

    run: Run[Any] | None = None


class InvalidInput(AgentKVError, ValueError):
    """An argument of the wrong type, shape or range; nothing was changed."""


class InvalidRollback(InvalidInput):
    """A mark of another branch, a mark of history that was rewritten, or a length the branch does not have."""


class ForeignBranch(InvalidInput):
    """A branch of one Context was given to another."""


class BranchClosed(AgentKVError):
    """The branch was closed, by `close`, by leaving its block, or by `Context.keep`."""


class BranchBusy(AgentKVError):
    """The branch already runs something; a branch does one thing at a time."""


class BranchExists(AgentKVError):
    """Another branch is published under that name, or the published one was changed by another client meanwhile."""


class BranchNotFound(AgentKVError):
    """No branch is published under that name; the message lists the names that exist."""


class ContextFull(AgentKVError):
    """The cache has fewer free cells than the request needs; the branch is as it was.

    Attributes:
        hopeless: whether the request would not fit into an empty cache, either.
    """

    hopeless: bool = False


class OutOfMemory(AgentKVError):
    """The system refused memory for keys and values; the branch is as it was."""


class TooManyBranches(AgentKVError):
    """More live branches than the cache was built for."""


class PositionsExhausted(AgentKVError):
    """More tokens than the model has positions; the branch is as it was."""


class WrongEventLoop(AgentKVError):
    """A method of a Context or a branch was awaited on another event loop than the one that opened the Context, or a
    Context with blocking methods was used in a forked process."""


class ContextClosed(AgentKVError):
    """The Context was closed, or its step loop ended."""


class ModelError(AgentKVError):
    """A model that is missing, damaged, of an unknown format, or needs something that is not installed."""


class AdapterError(AgentKVError):
    """A LoRA adapter that is missing, damaged, of an unsupported kind, of another model or of another Context, or a
    model that adapters do not run beside."""


class DraftMismatch(ModelError):
    """A draft that was not made for the model: another vocabulary, tokenizer or width of features."""


class SnapshotError(AgentKVError):
    """A snapshot file that cannot be written, or that is missing, unreadable, damaged or not a snapshot."""


class SnapshotMismatch(SnapshotError):
    """A snapshot file from another model or another kind of cache; nothing was changed."""


class JournalError(AgentKVError):
    """A journal that cannot be opened or written, is damaged, used by another process, or has no such run, branch or
    approval.
    A turn whose entry cannot be written ends; its branch is rolled back."""


class ApprovalPending(AgentKVError):
    """A turn was left unfinished in its journal, to be resumed once somebody has decided on its calls. Its branch is as
    it was before the turn.

    Attributes:
        keys: keys of the approvals that it waits for, as `Journal.answer` takes them.
    """

    def __init__(self, message: str, keys: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.keys = tuple(keys)

    def is_of(self, key: str) -> bool:
        """Private: whether all of its approvals are those of the run or the call with this key, or of what that
        began."""
        return all(each == key or each.startswith(f"{key}-") for each in self.keys)


class WorkspaceError(AgentKVError):
    """A workspace whose folder cannot be read or written, is too large, or has no such file."""


class OutsideWorkspace(WorkspaceError):
    """A path that leads out of its workspace, or would through a link."""


class WorkspaceConflict(WorkspaceError):
    """Files that two sides changed since they were the same, and not alike; nothing was changed.

    Attributes:
        paths: the files, relative to the workspace's folder.
    """

    def __init__(self, message: str, paths: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.paths = list(paths)


class TraceError(AgentKVError):
    """A trace file that cannot be read, written or replayed."""


class StepFailed(AgentKVError):
    """A forward that included this request failed; tokens and cache are as they were before it."""


class OutputIncomplete(AgentKVError):
    """`output` of a generation or a turn that ended before its output did: out of tokens, cells or time."""


class OutputInvalid(AgentKVError):
    """A value that the grammar allowed and the type rejected, after all retries; the branch is as it was before.

    Attributes:
        text: the rejected text of the model.
    """

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class ToolFailed(AgentKVError):
    """A tool with on_error="raise" failed; its own exception is the cause."""


class RemoteError(AgentKVError):
    """A server is unreachable, denies access, is overloaded, or failed; the message says which.

    Attributes:
        status: HTTP status code; None if there was no response.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class LimitReached(AgentKVError):
    """An agent's turn needed more rounds, tokens, calls or seconds than it was allowed.

    Attributes:
        limit: name of the limit: "max_rounds", "max_tokens", "max_calls", "max_seconds", "max_message_tokens",
            "max_repeats", or "repetition" for a message that repeats itself.
    """

    def __init__(self, message: str, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit


class RepeatedCall(LimitReached):
    """A turn repeated the same call, though it had been given the result and then a refusal."""


class TurnStopped(AgentKVError):
    """A turn was ended by `stop`, or with its Context; `run` has the record of what it did."""


class TurnNotRunning(AgentKVError):
    """A turn that has ended, or ended before it could take up what was asked of it."""


# The error for each class of the runtime's, and what to do where its message does not say it. By name: the native
# module is loaded when the first model is opened.
PUBLIC: dict[str, tuple[type[AgentKVError], str]] = {
    "BranchBusy": (BranchBusy, ""),
    "BranchClosed": (BranchClosed, ""),
    "CacheFull": (ContextFull, "close branches, or open the Context with a larger capacity"),
    "ContextFull": (ContextFull, ""),
    "DraftMismatchError": (DraftMismatch, ""),
    "EmptyBranch": (InvalidInput, ""),
    "ForwardFailed": (StepFailed, "try again; if it fails again, the message above says why"),
    "InvalidChoices": (InvalidInput, ""),
    "InvalidDraft": (StepFailed, ""),
    "InvalidDrafter": (InvalidInput, ""),
    "InvalidEngine": (InvalidInput, ""),
    "InvalidRange": (InvalidInput, ""),
    "InvalidRollback": (InvalidRollback, ""),
    "InvalidSampling": (InvalidInput, ""),
    "InvalidStep": (StepFailed, "open the Context again"),
    "InvalidTensor": (ModelError, "export the model again"),
    "InvalidToken": (InvalidInput, ""),
    "InvalidTree": (StepFailed, "open the Context again"),
    "OutOfMemory": (OutOfMemory, ""),
    "PositionsExhausted": (PositionsExhausted, ""),
    "ProgramError": (ModelError, "export the model again with `agentkv export`"),
    "RegistryError": (ModelError, "export the model again with `agentkv export`"),
    "StepFailed": (StepFailed, ""),
    "TooManyBranches": (TooManyBranches, ""),
    "UnknownSequence": (BranchClosed, "use a live branch"),
}


WIRE_CODES: Mapping[str, type[AgentKVError]] = {
    "branch_busy": BranchBusy,
    "branch_closed": BranchClosed,
    "branch_exists": BranchExists,
    "branch_not_found": BranchNotFound,
    "context_full": ContextFull,
    "context_length_exceeded": PositionsExhausted,
    "invalid_rollback": InvalidRollback,
    "other_model": RemoteError,
    "out_of_memory": OutOfMemory,
    "output_incomplete": OutputIncomplete,
    "output_invalid": OutputInvalid,
    "step_failed": StepFailed,
    "stopping": ContextClosed,
    "too_many_branches": TooManyBranches,
}
"""Codes by which a server names errors to its clients, and the errors that these raise."""


def wire_code(kind: type[Exception]) -> str | None:
    """The wire code of an error class; None if it has none."""
    return next((code for code, named in WIRE_CODES.items() if named is kind), None)


def from_native(error: BaseException) -> BaseException:
    """Converts an error of the runtime to its public error. Other exceptions are returned unchanged."""
    kind = type(error)
    if kind.__name__ not in PUBLIC or not kind.__module__.startswith("agentkv_runtime"):
        return error
    public, advice = PUBLIC[kind.__name__]
    message = str(error)
    translated = public(f"{message.rstrip('.')}; {advice}" if advice else message)
    translated.__cause__ = error
    return translated


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Wraps the lazy import of modules. Raises AgentKVError if their files cannot be opened."""
    try:
        yield
    except OSError as error:
        raise AgentKVError(f"{what} cannot be loaded: {error.strerror}; {advice_of(error)}") from error


def advice_of(error: BaseException | None, otherwise: str = "check its files") -> str:
    """Remedy for a file that cannot be opened, by errno; `otherwise` for an unknown one."""
    match getattr(error, "errno", None):
        case errno.EMFILE | errno.ENFILE:
            return "close some files, or raise the limit (`ulimit -n`), and try again"
        case errno.EISDIR | errno.ENOTDIR:
            return "give the path of a file"
        case errno.EACCES | errno.EPERM:
            return "let this user read it"
    return otherwise


def opening_error(error: Exception, what: object) -> AgentKVError:
    """Converts an exception from opening a model or a draft to a ModelError that gives the reason."""
    known = from_native(error)
    if isinstance(known, DraftMismatch):
        return known
    if isinstance(known, AgentKVError) or isinstance(error, ValueError | ImportError):
        return ModelError(str(error))
    return ModelError(f"{what} cannot be opened: {type(error).__name__}: {error}")

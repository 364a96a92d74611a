"""Tools for the files of a workspace: reading, writing, editing, searching, and running commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

from anyio import to_thread
from pydantic import Field

from .._types.checks import checked_bool
from .._types.errors import InvalidInput, WorkspaceError
from .._types.show import preview
from ..agents.run_context import RunContext
from ..agents.tool import Retry, Tool, check_seconds, tool
from ..workspaces import command as shell
from ..workspaces import files as confined
from ..workspaces.workspace import Workspace

MOST_LINES = 400  # of a file that one call reads
MOST_TEXT = 64 * 1024  # characters of one answer
P = ParamSpec("P")
R = TypeVar("R")

# What fails unforeseen is no news for a model; a message may write a file, and run what is in it.
_EACH: Any = {"on_error": "raise", "on_fork": "again", "in_order": True}
PathInFolder = Annotated[str, Field(description="path relative to the project's folder")]
FirstLine = Annotated[int, Field(ge=1, description="number of the first line to read")]
MaxLines = Annotated[int, Field(ge=1, le=MOST_LINES, description="most lines to read")]
OldText = Annotated[str, Field(description="text that stands in the file once, exactly as it is there")]
Pattern = Annotated[str, Field(description="regular expression")]


def files(
    workspace: Workspace, *, commands: bool = True, approve: bool = False, seconds: float = 60.0
) -> list[Tool[Any, ..., Any]]:
    """Tools for the files of a branch in this workspace: `read_file`, `write_file`, `edit_file`, `list_files`, `search`
    and `run_command`.

    They work on the files of the branch whose turn calls them, `Branch.workspace`. No path leads out of those, by
    links, ".." or otherwise; pipes and devices are neither read nor written. Calls of one message are made one after
    another, in its order. A command is different: it runs in the
    folder, but may do what your user may. It gets no variables of the environment that could hold a key, and is
    killed with its process group when its time is over.

    Args:
        workspace: the workspace of the branches that the tools are for.
        commands: whether `run_command` is among them.
        approve: whether a person decides on each command; see `kv.Tool`.
        seconds: time limit of a command.

    Raises:
        InvalidInput: an argument of the wrong type or range.
    """
    if not isinstance(workspace, Workspace):
        raise InvalidInput(f"workspace is {preview(workspace)}, but it must be a kv.Workspace: kv.Workspace(folder)")
    check_seconds(seconds, "seconds", zero=False)
    checked_bool(commands, "commands")
    checked_bool(approve, "approve")
    of = _FileTools(workspace, seconds)
    made = [
        tool(**_EACH, idempotent=True)(_in_words(of.read_file)),
        tool(**_EACH, idempotent=True)(_to_its_end(_in_words(of.write_file))),
        tool(**_EACH)(_to_its_end(_in_words(of.edit_file))),
        tool(**_EACH, idempotent=True)(_in_words(of.list_files)),
        tool(**_EACH, idempotent=True)(_in_words(of.search)),
    ]
    if commands:
        made.append(tool(**_EACH, approve=approve)(of.run_command))
    return made


class _FileTools:
    """The functions of the tools."""

    def __init__(self, workspace: Workspace, seconds: float) -> None:
        self._workspace = workspace
        self._seconds = seconds

    def _folder(self, context: RunContext[Any]) -> Path:
        """The folder of the calling turn's branch. Raises InvalidInput for a branch of another workspace."""
        folder, view = context.workspace, context.branch.workspace
        if view is not None and view.workspace.folder != self._workspace.folder:
            raise InvalidInput(
                f"the branch works in {view.workspace.folder}, and the tools are for {self._workspace.folder}; make "
                "the tools for the branch's workspace"
            )
        return folder

    def read_file(
        self, context: RunContext[Any], path: PathInFolder, first_line: FirstLine = 1, max_lines: MaxLines = MOST_LINES
    ) -> str:
        """Reads a text file."""
        lines = confined.read_text(self._folder(context), path).split("\n")
        last = first_line - 1 + max_lines
        text = "\n".join(lines[first_line - 1 : last])
        if first_line == 1 and last >= len(lines):
            return _bounded(text)
        return f"{_bounded(text)}\n[lines {first_line} to {min(last, len(lines))} of {len(lines)}]"

    def write_file(self, context: RunContext[Any], path: PathInFolder, content: str) -> str:
        """Writes a whole file, and makes it where it does not exist."""
        is_new = confined.write_text(self._folder(context), path, content)
        return f"{'made' if is_new else 'replaced'} {path}"

    def edit_file(self, context: RunContext[Any], path: PathInFolder, old: OldText, new: str) -> str:
        """Replaces a part of a file."""
        line = confined.edit_text(self._folder(context), path, old, new)
        return f"changed {path} at line {line}"

    def list_files(self, context: RunContext[Any], path: PathInFolder = ".") -> str:
        """Lists a folder; names of folders end with a slash."""
        return _bounded("\n".join(confined.list_folder(self._folder(context), path))) or "it is empty"

    def search(self, context: RunContext[Any], pattern: Pattern, path: PathInFolder = ".") -> str:
        """Finds lines in all files of a folder."""
        return _bounded("\n".join(confined.search_text(self._folder(context), pattern, path))) or "no line matches"

    async def run_command(self, context: RunContext[Any], command: str) -> str:
        """Runs a command of the shell in the project's folder."""
        folder = self._folder(context)
        try:
            ended = await shell.run_command(folder, command, self._seconds, folder.parent)
        except WorkspaceError as error:
            raise Retry(str(error)) from error
        how = f"killed after {self._seconds:g} s" if ended.timed_out else f"exit status {ended.status}"
        return f"{how}\n{ended.output}"


def _bounded(text: str) -> str:
    more = len(text) - MOST_TEXT
    return text if more <= 0 else f"{text[:MOST_TEXT]}\n[{more} more characters; ask for less at once]"


def _in_words(function: Callable[P, R]) -> Callable[P, R]:
    """Has the model read what a path cannot do."""

    @wraps(function)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except WorkspaceError as error:
            raise Retry(str(error)) from error

    return told


def _to_its_end(function: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """Has a turn that is cancelled wait for a write: it would come behind the files' being taken back."""

    @wraps(function)
    async def made(*args: P.args, **kwargs: P.kwargs) -> R:
        return await to_thread.run_sync(partial(function, *args, **kwargs))

    return made

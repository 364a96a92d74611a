"""The prompt of a chat: history, multi-line input, completion of commands."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from agentkv_runtime.store.home import home
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from .commands import COMMANDS
from .session import ChatSession

HISTORY = "chat-history"


def prompt_session(talk: ChatSession) -> PromptSession[str]:
    """Makes the prompt: Enter sends, Alt-Enter (or Ctrl-J) begins a new line, pastes keep their lines."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(
        history=_history(),
        multiline=True,
        key_bindings=keys,
        completer=_Commands(talk),
        complete_while_typing=False,
        enable_suspend=True,
        prompt_continuation="  ",
        bottom_toolbar=lambda: f" {talk.context.model_info.path.name} | {talk.current}: {len(talk.branch)} tokens",
    )


def _history() -> History:
    """History file in agentkv's folder, readable by its owner; in memory if that cannot be written."""
    try:
        folder = home()
        folder.mkdir(parents=True, exist_ok=True)
        path: Path = folder / HISTORY
        path.touch(mode=0o600)
        path.open("ab+").close()  # checks that it is a readable and writable file
    except Exception:
        return InMemoryHistory()
    return _History(path)


class _History(FileHistory):
    """History file that ignores write errors such as a full disk; its lines stay in memory."""

    def store_string(self, string: str) -> None:
        """Appends a line to the file, if possible."""
        with suppress(OSError):
            super().store_string(string)


class _Commands(Completer):
    def __init__(self, talk: ChatSession) -> None:
        self._talk = talk

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yields completions of commands and of their arguments."""
        line = document.text_before_cursor
        if not line.startswith("/") or "\n" in line:
            return
        *before, word = line.split(" ")
        for each in self._choices(before):
            if each.startswith(word):
                yield Completion(each, start_position=-len(word))

    def _choices(self, before: list[str]) -> Iterable[str]:
        match before:
            case []:
                return [f"{name} " if command.most else name for name, command in COMMANDS.items()]
            case ["/switch" | "/close"]:
                return self._talk.names
            case ["/spec"]:
                return ("on", "off")
            case ["/tools"]:
                return ("on ", "off ")
            case ["/tools", _]:
                return self._talk.tools
        return ()

"""Slash commands of a chat."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._types.checks import A_FILE, checked_path
from .._types.errors import InvalidInput
from .._types.show import bytes_text
from .session import ChatSession


class Leave(Exception):
    """Ends the chat."""


Words = Sequence[str]
Does = Callable[[ChatSession, Words], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A slash command.

    Attributes:
        usage: arguments, as help shows them.
        help: description, in one line.
        does: runs the command and returns the text to show.
        least, most: limits of its number of arguments.
    """

    usage: str
    help: str
    does: Does
    least: int = 0
    most: int = 0


async def run(talk: ChatSession, line: str) -> str:
    """Runs the command of a line and returns the text to show. Raises Leave, AgentKVError and OSError."""
    name, *rest = line.split(maxsplit=1)
    command = COMMANDS.get(name)
    if command is None:
        raise InvalidInput(f"there is no {name}; /help lists what there is")
    words = rest if name == "/system" else _words(line, *rest)  # a system prompt is taken verbatim
    if not command.least <= len(words) <= command.most:
        blanks = "; a name with blanks needs quotes" if len(words) > command.most > 0 else ""
        raise InvalidInput(f"usage: {name} {command.usage}".rstrip() + blanks)
    return await command.does(talk, words)


async def _fork(talk: ChatSession, words: Words) -> str:
    before = talk.current
    name = await talk.fork(*words)
    return f"on {name} now, a fork of {before}"


async def _switch(talk: ChatSession, words: Words) -> str:
    talk.switch(words[0])
    last = talk.branch.messages[-1].content if talk.branch.messages else ""
    return f"on {talk.current} now: {_short(last)}"


async def _rollback(talk: ChatSession, words: Words) -> str:
    turns = words[0] if words else "1"
    if not turns.isdecimal() or len(turns) > 9:
        raise InvalidInput(f"{_short(turns)!r} is no number of questions")
    first = await talk.rollback(int(turns))
    return f"took back all from {_short(first)!r} on"


async def _branches(talk: ChatSession, words: Words) -> str:
    rows = [("  " * depth + name, name, branch) for depth, name, branch in talk.tree()]
    width = max(len(shown) for shown, _, _ in rows)
    digits = max(len(str(len(branch))) for _, _, branch in rows)
    lines = []
    for shown, name, branch in rows:
        said = next((m.content for m in reversed(branch.messages) if m.role in ("user", "assistant")), "")
        mark = "*" if name == talk.current else " "
        lines.append(f"{mark} {shown:{width}}  {len(branch):{digits}} tokens  {_short(said)}")
    return "\n".join(lines)


async def _close(talk: ChatSession, words: Words) -> str:
    await talk.close(words[0])
    return f"closed {words[0]}"


async def _tools(talk: ChatSession, words: Words) -> str:
    if not words:
        on = {tool.name for tool in talk.agent.tools}
        lines = [f"{'on ' if name in on else 'off'}  {name}: {tool.description}" for name, tool in talk.tools.items()]
        return "\n".join(lines) or "there are no tools; start with --tools FILE.py"
    if len(words) != 2 or words[0] not in ("on", "off"):
        raise InvalidInput("usage: /tools, or /tools on NAME, or /tools off NAME")
    lost = await talk.turn(words[1], on=words[0] == "on")
    return f"{words[1]} is {words[0]}{_without(lost)}"


async def _spec(talk: ChatSession, words: Words) -> str:
    if words[0] not in ("on", "off"):
        raise InvalidInput("usage: /spec on, or /spec off")
    talk.speculate(words[0] == "on")
    return f"speculation is {words[0]}"


async def _save(talk: ChatSession, words: Words) -> str:
    saved = await talk.save(_file(words[0]))
    count = len(talk.names)
    return f"saved {count} {'branch' if count == 1 else 'branches'} to {words[0]} ({bytes_text(saved.nbytes)})"


async def _load(talk: ChatSession, words: Words) -> str:
    return await loaded(talk, _file(words[0]))


async def _stats(talk: ChatSession, words: Words) -> str:
    stats, info = talk.context.stats, talk.context.model_info
    rate = stats.generated / stats.forward_seconds if stats.forward_seconds else 0
    drafts = f", {stats.accepted} of {stats.drafted} drafts accepted" if stats.drafted else ""
    return (
        f"{info.path.name} on {info.backend}, {info.quantization}\n"
        f"{stats.cells_used} of {stats.capacity} cells used, {bytes_text(stats.kv_bytes)} of keys and values\n"
        f"{stats.prefilled} tokens read, {stats.reused} not read again, {stats.generated} written "
        f"({rate:.0f} per second of the model's time{drafts})\n"
        f"{len(talk.branch)} tokens on {talk.current}"
    )


async def _system(talk: ChatSession, words: Words) -> str:
    if not words:
        return talk.system or "there is no system prompt; /system TEXT sets one"
    lost = await talk.instruct(words[0])
    return f"the system prompt is set, and the conversation read again under it{_without(lost)}"


async def _clear(talk: ChatSession, words: Words) -> str:
    await talk.clear()
    return f"a new conversation on {talk.current}"


async def _quit(talk: ChatSession, words: Words) -> str:
    raise Leave


async def _help(talk: ChatSession, words: Words) -> str:
    width = max(len(f"{name} {command.usage}") for name, command in COMMANDS.items())
    lines = [f"{f'{name} {command.usage}':{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join([*lines, "", "Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D leaves."])


COMMANDS = {
    "/fork": SlashCommand("[NAME]", "go on on a copy of this branch, at no cost", _fork, most=1),
    "/switch": SlashCommand("NAME", "go on on another branch", _switch, 1, 1),
    "/branches": SlashCommand("", "all branches, as a tree", _branches),
    "/rollback": SlashCommand("[N]", "take back the last question, or the last N", _rollback, most=1),
    "/close": SlashCommand("NAME", "drop a branch", _close, 1, 1),
    "/tools": SlashCommand("[on|off NAME]", "list tools, or turn one on or off", _tools, most=2),
    "/system": SlashCommand("[TEXT]", "show or set the system prompt", _system, most=1),
    "/spec": SlashCommand("on|off", "draft from what was said before: same answers, sooner", _spec, 1, 1),
    "/save": SlashCommand("FILE", "save all branches, keys and values included", _save, 1, 1),
    "/load": SlashCommand("FILE", "add the branches of a file", _load, 1, 1),
    "/stats": SlashCommand("", "tokens, cells, speed", _stats),
    "/clear": SlashCommand("", "begin a new conversation on this branch; others stay", _clear),
    "/help": SlashCommand("", "this list", _help),
    "/quit": SlashCommand("", "leave", _quit),
}


async def loaded(talk: ChatSession, path: Path) -> str:
    """Loads the branches of a file and returns the text to show. Raises as `Context.load_all` does."""
    names = await talk.load(path)
    lacking = talk.lacking()
    hint = f"\nit was begun with tools that are not here: {', '.join(lacking)} (--tools FILE.py)" if lacking else ""
    return f"loaded {', '.join(names)}; on {talk.current} now{hint}"


def _without(lost: int) -> str:
    return f"; its oldest {lost} messages do not fit any more (--capacity)" if lost else ""


def _words(line: str, rest: str = "") -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError as error:
        raise InvalidInput(f"{line}: {error}") from error


def _file(word: str) -> Path:
    return checked_path(word, "FILE", A_FILE)


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 50 else f"{words[:47]}..."

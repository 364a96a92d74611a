"""`agentkv chat`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from agentkv_runtime.folder.printable import printable

from .._console.console import escaped, fail, reporting, stdout
from .._types.errors import ContextFull, LimitReached
from .options import (
    CallFormatOption,
    Drafts,
    PrefixCacheBytesOption,
    PrefixCacheOption,
    QuantOption,
    SteerCallsOption,
    ThreadsOption,
    prefix_cache_options,
    strategy_called,
)


def chat(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="Model folder or GGUF file, or a name, as qwen3:0.6b; without: nano."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    tools: Annotated[
        Path | None, typer.Option(metavar="FILE.py", help="Python file with functions under @kv.tool. It is run.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 says the likeliest thing each time.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Says the same again.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 2048,
    thinking: Annotated[
        str | None, typer.Option(metavar="on|off|N", help="Whether the model reasons, or for N tokens at most.")
    ] = None,
    spec: Annotated[bool, typer.Option("--spec/--no-spec", help="Draft from what was said before.")] = False,
    speculative: Annotated[
        Drafts | None,
        typer.Option(
            help="Draft by another strategy: a few earlier words, the folder's draft head, or the model's own"
            " multi-token prediction layer."
        ),
    ] = None,
    load: Annotated[Path | None, typer.Option(metavar="FILE", help="Go on from branches that were saved.")] = None,
    capacity: Annotated[int, typer.Option(min=1, help="Cells of the cache: tokens of all branches.")] = 16384,
    prefix_cache: PrefixCacheOption = None,
    prefix_cache_bytes: PrefixCacheBytesOption = None,
    quant: QuantOption = None,
    threads: ThreadsOption = None,
    call_format: CallFormatOption = None,
    steer_calls: SteerCallsOption = False,
) -> None:
    """Talk to a model: answers as they are written, branches, tools. /help lists what else there is.

    Where stdin is no terminal, each line of it is a message or a command.
    """
    with reporting():
        if sys.stdin is None:
            fail("there is no stdin to read messages from; give it a terminal, a file or a pipe")
        import anyio

        from .. import models
        from .._context.thinking import thinking_from_word
        from ..models._resolve import folder_called
        from ..terminal.chat import told
        from ..terminal.opening import ChatOptions, talking
        from .pull import offer

        if sys.stdin.isatty():
            from ..terminal.keys import check_keys

            check_keys()
            if model is not None and not model.exists():
                offer(str(model))
        folder = models.nano() if model is None else folder_called(model.expanduser(), quant=quant)
        is_nano = folder == models.nano()
        called = folder.resolve().name if model is None or model.exists() else printable(model)
        how = ChatOptions(
            model=folder,
            called=called,
            system=system if system is not None else "You are Nano, a desk agent." if is_nano else "",
            tools=tools,
            calculator=is_nano,
            temperature=temperature,
            seed=seed,
            max_tokens=max_tokens,
            thinking=thinking_from_word(thinking),
            speculative=strategy_called(speculative or "suffix") if spec or speculative else None,
            load=load,
            capacity=capacity,
            quant=quant,
            threads=threads,
            call_format=call_format,
            rescue="steer" if steer_calls else True,
            prefix_cache=prefix_cache_options(prefix_cache, prefix_cache_bytes),
        )
        if sys.stdin.isatty():
            stdout.print(f"[dim]opening {escaped(model or folder)} ...[/]", soft_wrap=True)
        try:
            anyio.run(talking, how)
        except (ContextFull, LimitReached) as error:
            fail(told(error))

"""What `--help` says is for people: no class of ours is named there."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
import typer

from agentkv.cli import app

CAMEL = re.compile(r"\b[A-Z][a-z]+[A-Z]\w*")
NAMES = {"ExecuTorch", "LoRA", "OpenAI", "PromptLookup"}  # of others, and what users write themselves


def commands(command: click.Command, path: str = "agentkv") -> Iterator[tuple[str, click.Command]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", ALL)
def test_no_class_is_named(path: str) -> None:
    command = ALL[path]
    said = [command.help or "", *(getattr(option, "help", None) or "" for option in command.params)]
    assert set(CAMEL.findall(" ".join(said))) - NAMES == set()


@pytest.mark.parametrize("option", ["--call-format", "--steer-calls", "--threads"])
def test_options_that_commands_have_alike_say_the_same(option: str) -> None:
    help_of = {
        path: getattr(each, "help", None)
        for path, command in ALL.items()
        for each in command.params
        if option in each.opts and not path.startswith("agentkv bench")
    }
    assert len(help_of) > 2
    assert len(set(help_of.values())) == 1, help_of

"""Chat templates of a folder: one for all conversations, and for some models another for those with tools."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentkv_runtime.errors import TokenizerError
from agentkv_runtime.folder.small_files import read_object, read_text

__all__ = ["DEFAULT", "TEMPLATE_FILES", "TOOL_USE", "read_templates", "write_templates"]

DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of the templates that are used; others, such as `rag`, are ignored."""

_FILES = {DEFAULT: "chat_template.jinja", TOOL_USE: f"additional_chat_templates/{TOOL_USE}.jinja"}
_LEGACY = "chat_template.json"

TEMPLATE_FILES = (*_FILES.values(), _LEGACY)
"""Files of templates, relative to the folder, beside `tokenizer_config.json`."""


def read_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The templates of a folder by name; `config` is its tokenizer_config.json. A folder with any has a default one.

    As in transformers, templates in files of their own replace those in tokenizer_config.json. Raises TokenizerError.
    """
    named = {name: read_text(folder / file, TokenizerError) for name, file in _FILES.items() if _is_there(folder, file)}
    if DEFAULT not in named:
        stated = _by_name(config.get("chat_template"))
        named = {**(stated or _by_name(read_object(folder / _LEGACY, TokenizerError).get("chat_template"))), **named}
    if TOOL_USE in named:
        named.setdefault(DEFAULT, named[TOOL_USE])
    return named


def write_templates(folder: Path, templates: Mapping[str, object]) -> None:
    """Writes the templates that are used to the files that `read_templates` reads."""
    for name, template in _by_name(dict(templates)).items():
        (folder / _FILES[name]).parent.mkdir(exist_ok=True)
        (folder / _FILES[name]).write_text(template, encoding="utf-8")


def _is_there(folder: Path, file: str) -> bool:
    return os.path.lexists(folder / file)


def _by_name(stated: object) -> dict[str, str]:
    """Templates by name, from one template, a list of named ones, or a mapping of names to templates."""
    if isinstance(stated, str):
        stated = {DEFAULT: stated}
    elif isinstance(stated, list):
        stated = {entry.get("name"): entry.get("template") for entry in stated if isinstance(entry, dict)}
    named = stated if isinstance(stated, dict) else {}
    return {name: named[name] for name in (DEFAULT, TOOL_USE) if isinstance(named.get(name), str)}

"""Text of unknown origin, and paths that are no text."""

from __future__ import annotations

import os
from pathlib import Path

from agentkv_runtime.folder.printable import path_text, printable


def test_what_a_terminal_would_obey_is_spelled() -> None:
    assert printable("a\x1b[2J\nb\udcff") == "a\\x1b[2J\\nb\\udcff"


def test_paths_become_text_that_can_be_written_down() -> None:
    assert path_text(Path(os.fsdecode(b"/m\xc3\xb6/\xff\n.gguf"))) == "/mö/\\xff\n.gguf"

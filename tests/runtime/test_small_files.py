"""Small files of unknown origin: read whole, or refused with the error that the caller named; never waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agentkv_runtime.folder.printable import printable
from agentkv_runtime.folder.small_files import MOST_BYTES, read_bytes, read_object, read_text


class Refused(Exception):
    pass


def test_what_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text('{"a": "ä"}', encoding="utf-8")
    (tmp_path / "link").symlink_to(file)
    assert read_text(file, Refused) == '{"a": "ä"}'
    assert read_object(tmp_path / "link", Refused) == {"a": "ä"}
    assert read_object(tmp_path / "none", Refused) == {}
    assert read_bytes(file, Refused, most=11) == file.read_bytes()


def test_what_is_not(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "broken link").symlink_to(tmp_path / "none")
    (tmp_path / "latin-1").write_bytes(b'{"a": "\xe4"}')
    (tmp_path / "list").write_text("[]")
    (tmp_path / "deep").write_text("[" * 100_000)
    (tmp_path / "digits").write_text("9" * 5_000)
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(MOST_BYTES + 1)
    for name, why in {
        "pipe": "not a regular file",
        "folder": "directory",
        "device": "not a regular file",
        "broken link": "No such file",
        "latin-1": "not UTF-8 text",
        "list": "not a JSON object",
        "deep": "recursion",
        "digits": "cannot be read",
        "huge": f"longer than {MOST_BYTES} bytes",
    }.items():
        with pytest.raises(Refused, match=why) as refused:
            read_object(tmp_path / name, Refused)
        assert str(tmp_path / name) in str(refused.value)
    for name, why in {"none": "No such file", "null \0": "embedded null byte", "\ud800": "surrogates"}.items():
        with pytest.raises(Refused, match=f"cannot be read: .*{why}"):
            read_text(tmp_path / name, Refused)


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    assert printable("Qwen 3, 4 \\ Größe 模型 🙂") == "Qwen 3, 4 \\ Größe 模型 🙂"
    assert printable("\x1b[31m\r\n\x07\x9b\u202e\ud800\u2028") == r"\x1b[31m\r\n\x07\x9b\u202e\ud800\u2028"

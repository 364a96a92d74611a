"""What an export says of the places that it reads and writes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.checks import disk_errors


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "its disk is full. An export takes about as many bytes as its weights"),
        (errno.EDQUOT, "its disk is full. An export takes about as many bytes as its weights"),
        (errno.EACCES, "inside: Permission denied. Nothing was exported"),
    ],
)
def test_what_a_disk_refuses_is_said_in_words_of_the_place(number: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=said), disk_errors(tmp_path):
        raise OSError(number, os.strerror(number), "inside")

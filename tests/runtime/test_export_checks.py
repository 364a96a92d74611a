"""What an export says of the places that it reads and writes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.block_kinds import kind_and_bits
from agentkv_runtime.export.checks import check_value, disk_errors


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


def test_a_value_may_take_4_gib() -> None:
    check_value("the head", 4 << 30, "max_logits", 8192)
    with pytest.raises(ExportError, match=r"the head holds a value of 8\.0 GiB\. With max_logits 4096 it would take 4"):
        check_value("the head", 8 << 30, "max_logits", 8192)


@pytest.mark.parametrize(("kind", "want"), [(2, ("q4_0", 4)), (14, ("q6_k", 7)), (0, ("f32", 32))])
def test_blocks_have_a_name_and_bits(kind: int, want: tuple[str, int]) -> None:
    assert kind_and_bits("lm_head", kind) == want


def test_blocks_that_kernels_do_not_read_are_refused_with_what_to_do() -> None:
    with pytest.raises(ExportError, match=r"lm_head is in blocks of GGUF type 16, .* only q4_0, .*--quant"):
        kind_and_bits("lm_head", 16)

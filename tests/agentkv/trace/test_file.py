"""Trace files: what was written comes back, and whatever else is there is refused or left out."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import pytest

import agentkv as kv
from agentkv.trace.file import MAGIC, TraceWriter, read_frames
from agentkv.trace.records import (
    VERSION,
    AnyRecord,
    Began,
    Branched,
    CacheLevel,
    Conversed,
    JobBegan,
    JobEnded,
    Logged,
    Noted,
    Spelled,
    Stepped,
    Verb,
)
from agentkv.trace.story import read_story
from tests.waiting import until_sync

from .conftest import records_of

ROOT = Path(__file__).resolve().parents[3]
MODEL = {"path": "p", "backend": "cpu", "vocab_size": 3, "kv_dtype": "fp16", "fingerprint": "", "bit_exact": True}
BEGAN = Began(0, VERSION, 0, "0", "none", MODEL, {"capacity": 9, "path": "p"})


def written(path: Path, *frames: list[AnyRecord]) -> Path:
    writer = TraceWriter(path)
    for frame in frames:
        writer.write(frame)
    writer.close()
    return path


def framed(payload: bytes) -> bytes:
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    frames: list[list[AnyRecord]] = [[BEGAN], [Noted(i, -1, "note", "\u2028<b>\x00") for i in range(9)]]
    assert [*read_frames(written(tmp_path / "t", *frames))] == frames


def test_a_file_cut_anywhere_is_read_up_to_its_last_whole_frame(tmp_path: Path) -> None:
    frames: list[list[AnyRecord]] = [[BEGAN], *([Noted(i, -1, "note", str(i))] for i in range(5))]
    whole = written(tmp_path / "t", *frames).read_bytes()
    cut = tmp_path / "cut"
    lengths = []
    for end in range(len(MAGIC), len(whole) + 1):
        cut.write_bytes(whole[:end])
        try:
            lengths.append(len([*read_frames(cut)]))
        except kv.TraceError as error:
            assert "no record yet" in str(error)  # noqa: PT017 - not for every length
            lengths.append(0)
    assert lengths == sorted(lengths)
    assert set(lengths) == set(range(7))


def test_a_flipped_bit_is_never_taken_for_what_was_recorded(tmp_path: Path) -> None:
    frames: list[list[AnyRecord]] = [[BEGAN], *([CacheLevel(i, 1, 2, 3, 4, 5, 6, 7)] for i in range(20))]
    whole = written(tmp_path / "t", *frames).read_bytes()
    flat = [record for frame in frames for record in frame]
    draw = random.Random(1)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        (tmp_path / "d").write_bytes(damaged)
        try:
            found = records_of(tmp_path / "d")
        except kv.TraceError:
            continue
        assert found == flat[: len(found)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no trace"),
        (b"GIF89a", "no trace"),
        (MAGIC, "no record yet"),
        (MAGIC + framed(b"\xc1"), "damaged"),
        (MAGIC + framed(msgspec.msgpack.encode([])), "damaged"),
        (MAGIC + framed(msgspec.msgpack.encode([Noted(0, 0, "", "")])), "damaged"),
        (MAGIC + framed(msgspec.msgpack.encode([[99, 1]])), "damaged"),
        (MAGIC + framed(msgspec.msgpack.encode([[2, "x"]])), "damaged"),
        (MAGIC + framed(b"\x91" * 100_000), "damaged"),
        (MAGIC + struct.pack("<II", 2**32 - 1, 0) + b"x", "damaged"),
        (MAGIC + framed(msgspec.msgpack.encode([Began(0, 99, 0, "9.9", "", {}, {})])), "version 99"),
    ],
)
def test_what_is_no_trace_is_refused_by_a_typed_error(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(kv.TraceError, match=said):
        records_of(path)
    with pytest.raises(kv.TraceError):
        read_story(path)


@pytest.mark.parametrize(
    "record",
    [
        Began(0, VERSION, 0, "0", "none", {}, {}),
        Branched(0, "fork", 0, [], []),
        Branched(0, "fork", 0, [1], []),
        Branched(0, "fork", 0, [2**40], [0]),
        Stepped(0, 0, 0, 0, 1, b"x"),
        Logged(0, 0, 0, b"abc"),
        Logged(0, 0, -1, b""),
        Logged(0, 2**40, 0, b""),
        Verb(0, "adopt", 0, []),
        Verb(0, "rollback", 0, [2**60, 0]),
        JobEnded(0, 0, "", "", b"abc", b"", 0),
        JobEnded(0, 0, "", "", b"", b"abc", 0),
        JobBegan(0, 0, 0, "select", 0, None, [b"abc"]),
        Conversed(0, 0, [(1, -5, 0, True)], -1, "", False, 0),
        Spelled(b"abcd", []),
        CacheLevel(0, 0, 2**40, 0, 0, 0, 0, 0),
    ],
    ids=repr,
)
def test_records_that_make_no_sense_are_refused_by_a_typed_error(tmp_path: Path, record: AnyRecord) -> None:
    path = written(tmp_path / "t", [BEGAN, record])
    with pytest.raises(kv.TraceError, match="damaged"):
        records_of(path)


def test_a_folder_or_nothing_is_no_trace(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(kv.TraceError, match="cannot be read"):
            records_of(path)


MOST_BYTES = 20_000  # of a file whose process is killed


def killed(path: Path, draw: random.Random) -> int:
    """Kills a process while it records; returns how many records are in the file."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.agentkv.trace.recording_process", str(path)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"."
    least = draw.randrange(MOST_BYTES)
    until_sync(lambda: path.stat().st_size > least)
    process.kill()
    process.wait()
    process.stdout.close()
    return len(records_of(path)) if path.stat().st_size > len(MAGIC) else 0


def test_a_process_that_is_killed_leaves_a_trace_that_opens(tmp_path: Path) -> None:
    counts = [killed(tmp_path / str(seed), random.Random(seed)) for seed in range(3)]
    assert max(counts) > 20


@pytest.mark.soak
def test_so_do_two_hundred(tmp_path: Path) -> None:
    counts = [killed(tmp_path / str(seed), random.Random(seed)) for seed in range(200)]
    for seed, count in enumerate(counts):
        if count:
            read_story(tmp_path / str(seed))
    print(f"200 processes killed, every file opens; {min(counts)} to {max(counts)} records each")

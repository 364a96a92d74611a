"""A folder of entries: what is found in it, what is written to it, what goes first, and what is left alone."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from agentkv_runtime.tensor_file import TensorSpec
from filelock import FileLock

import agentkv as kv
from agentkv._chat.conversation import Conversation
from agentkv._prefixes.folder import LEAST_TOKENS, PrefixFolder, StoredPrefix
from agentkv._prefixes.hashes import BLOCK, block_hashes
from agentkv._prefixes.seen import MOST_HASHES, SeenPrefixes
from agentkv._storage.layout import BranchImage, CellArray, LayerStates, ModelKey
from agentkv._storage.rates import WorkRate
from agentkv._storage.writer import append_cells, begin_file
from agentkv._types.checks import make_private_folder

KEY = ModelKey("model", "cpu", "fp16", "tokenizer")
ARRAYS = [CellArray(TensorSpec("layers.0.k", "F16", (2, 4)), 0, 16)]
CELL = 16


def tokens_of(seed: int, length: int) -> list[int]:
    return [random.Random(seed * 1000 + i).randrange(1000) for i in range(length)]


def folder_at(root: Path, most_bytes: int = 1 << 20, exact: bool = False, key: ModelKey = KEY) -> PrefixFolder:
    folder = PrefixFolder(root, key, most_bytes, exact)
    folder.make()
    return folder


def put(folder: PrefixFolder, tokens: list[int], mode: int = 0o600) -> Path:
    """Writes an entry of as many whole blocks."""
    names = folder.names([*tokens, 0])
    path, count = folder.path_of(names, len(tokens)), len(tokens)
    image = BranchImage(
        np.array(tokens, np.int32), np.array([[0, 0, count]], np.int32), 0, 0, np.zeros(0, np.float32), Conversation()
    )
    lacks, none = np.zeros(count, np.uint8), LayerStates((), np.zeros(0, np.int32))
    writer = begin_file(path, folder.key, ARRAYS, lacks, {"prefix": image}, None, none, mode)
    append_cells(writer, ARRAYS, np.full((count, CELL), 7, np.uint8), lacks)
    writer.finish()
    return path


def found(folder: PrefixFolder, tokens: list[int]) -> StoredPrefix | None:
    return folder.look_up(tokens, folder.names(tokens))


def test_hashes_name_all_tokens_before_the_last() -> None:
    tokens = tokens_of(1, 300)
    whole = block_hashes(tokens, b"key")
    assert len(whole) == 4
    assert len(block_hashes(tokens[:256], b"key")) == 3  # the last one is computed
    assert (block_hashes(tokens[:257], b"key") == whole).all()
    for at in range(0, 256, 37):
        other = block_hashes([*tokens[:at], tokens[at] + 1, *tokens[at + 1 :]], b"key")
        assert ((other == whole) == (np.arange(4) < at // BLOCK)).all()
    assert not (block_hashes(tokens, b"another") == whole).any()
    assert [len(block_hashes(tokens[:n], b"key")) for n in (0, 1, 64, 65)] == [0, 0, 0, 1]


def test_a_prompt_finds_what_it_has_most_in_common_with(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    trunk = tokens_of(1, 512)
    one, other = trunk + tokens_of(2, 256), trunk + tokens_of(3, 512)
    assert found(folder, [*one, 5]) is None
    first, second = put(folder, one), put(folder, other)
    for again in (folder, folder_at(tmp_path)):  # as another process sees it
        assert found(again, [*one, 5]) == (first, 768)
        assert found(again, [*other, 5]) == (second, 1024)
        assert found(again, other) == (second, 1023)
        assert found(again, [*trunk, 1, 2, 3]) in {(first, 512), (second, 512)}
        assert found(again, other[:900]) == (second, 899)
        assert found(again, trunk[:LEAST_TOKENS]) is None
        assert found(again, [1, *one]) is None
        assert found(again, []) is None
    assert found(folder_at(tmp_path, key=KEY._replace(kv_dtype="int8")), [*one, 5]) is None


def test_entries_for_their_end_serve_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, exact=True)
    trunk = tokens_of(1, 512)
    put(folder, trunk), put(folder, trunk + tokens_of(2, 256))
    assert found(folder, [*trunk, *tokens_of(2, 256), 5]) == (put(folder, trunk + tokens_of(2, 256)), 768)
    assert found(folder, [*trunk, *tokens_of(2, 200), 5]) == (put(folder, trunk), 512)
    assert found(folder, trunk) is None


@pytest.mark.parametrize(
    ("count", "there", "worth"),
    [(256, 0, True), (192, 0, False), (512, 256, True), (512, 320, False), (4096, 3072, True), (4096, 3584, False)],
)
def test_an_entry_is_longer_by_a_quarter_than_what_is_there(
    tmp_path: Path, count: int, there: int, worth: bool
) -> None:
    entry = StoredPrefix(tmp_path, there) if there else None
    assert folder_at(tmp_path).worth_keeping(count, entry, CELL) == worth
    assert not folder_at(tmp_path, most_bytes=CELL * count - 1).worth_keeping(count, entry, CELL)


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    folder, other = folder_at(tmp_path, 40_000), folder_at(tmp_path, 40_000, key=KEY._replace(model="other"))
    paths = [put(each, tokens_of(seed, 512)) for seed, each in enumerate((folder, other, folder))]
    size = paths[0].stat().st_size
    for age, path in enumerate(paths):
        os.utime(path, (1000 + age, 1000 + age))
    folder.make_room(0)
    assert [path.exists() for path in paths] == [True] * 3
    assert found(folder, [*tokens_of(0, 512), 1]) == (paths[0], 512)
    file = folder.open(StoredPrefix(paths[0], 512), tokens_of(0, 512))
    assert file is not None
    folder.make_room(40_000 - 2 * size - 1)
    assert [path.exists() for path in paths] == [True, False, True]  # the other model's was the oldest
    folder.make_room(40_000)
    assert not any(path.exists() for path in paths)
    assert file.branches["prefix"].tokens.tolist() == tokens_of(0, 512)  # who reads it has it
    file.check_lanes(ARRAYS)
    assert found(folder, [*tokens_of(0, 512), 1]) is None
    assert folder.open(StoredPrefix(paths[0], 512), tokens_of(0, 512)) is None


def test_an_entry_with_other_tokens_than_were_found_is_not_read(tmp_path: Path) -> None:
    folder, tokens = folder_at(tmp_path), tokens_of(1, 512)
    path = put(folder, tokens)
    assert found(folder, [*tokens, 1]) == (path, 512)
    os.replace(put(folder, tokens_of(2, 512)), path)
    assert folder.open(StoredPrefix(path, 512), [*tokens, 1]) is None
    assert found(folder_at(tmp_path), [*tokens, 1]) is None


def test_unfinished_files_of_killed_writers_go(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    left = put(folder, tokens_of(1, 256)).with_name(".agentkv-0123456789abcdef-0011223344556677.unfinished")
    left.write_bytes(bytes(1000))
    folder.make_room(0)
    assert not left.exists()


def test_a_longer_entry_takes_the_place_of_those_in_it(tmp_path: Path) -> None:
    whole = tokens_of(1, 1024)
    for exact in (False, True):
        folder = folder_at(tmp_path / str(exact), exact=exact)
        inside, beside = put(folder, whole[:512]), put(folder, whole[:256] + tokens_of(2, 256))
        longer = put(folder, whole)
        folder.drop_parts(np.array(whole, np.int32), folder.names([*whole, 0]))
        assert [path.exists() for path in (inside, beside, longer)] == [exact, True, True]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[700] ^= 4  # in the header
    path.write_bytes(data)


def swap(path: Path) -> None:
    """Another entry's file under this name."""
    other = put(folder_at(path.parents[1]), tokens_of(9, 512))
    os.replace(other, path)


def of_another_model(path: Path) -> None:
    other = put(folder_at(path.parents[1], key=KEY._replace(model="other")), tokens_of(1, 512))
    os.replace(other, path)


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_link(path: Path) -> None:
    os.replace(path, path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def writable_by_others(path: Path) -> None:
    path.chmod(0o622)


DAMAGES: dict[Callable[[Path], None], bool] = {  # whether the file is removed
    cut: True, flip: True, of_another_model: True, swap: False, as_pipe: False, as_folder: False, as_link: False,
    writable_by_others: False,
}  # fmt: skip


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_good_is_a_miss(
    tmp_path: Path, damage: Callable[[Path], None], exact: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(folder_at(tmp_path), tokens_of(1, 512))
    damage(path)
    folder = folder_at(tmp_path, exact=exact)
    for _ in range(2):
        assert found(folder, [*tokens_of(1, 512), 1]) is None
    assert os.path.lexists(path) != DAMAGES[damage]
    assert len(caplog.records) == DAMAGES[damage]


def test_a_damaged_entry_that_stays_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(put(folder_at(tmp_path), tokens_of(1, 512)))

    def read_only(path: Path) -> None:
        raise OSError(errno.EROFS, "read-only file system", str(path))

    monkeypatch.setattr(os, "unlink", read_only)
    folder = folder_at(tmp_path)
    for _ in range(3):
        assert found(folder, [*tokens_of(1, 512), 1]) is None
    assert len(caplog.records) == 1


def test_others_wait_for_who_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv._prefixes.folder.MOST_WAIT_S", 0.0)
    folder = folder_at(tmp_path)
    with FileLock(tmp_path / ".lock"), pytest.raises(OSError, match="lock"):
        folder.make_room(0)
    folder.make_room(0)


def test_two_make_room_at_once(tmp_path: Path) -> None:
    folders = [folder_at(tmp_path, 60_000) for _ in range(4)]
    for seed in range(20):
        put(folders[0], tokens_of(seed, 256))
    threads = [threading.Thread(target=folder.make_room, args=(5_000,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = sum(path.stat().st_size for path in tmp_path.glob("*/*.prefix"))
    assert 60_000 - 5_000 - 12_000 < left <= 60_000 - 5_000


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(kv.InvalidInput, match="prefix_cache is"):
            make_private_folder(path, "prefix_cache")
    make_private_folder(tmp_path / "a" / "b", "prefix_cache")
    make_private_folder(tmp_path / "a" / "b", "prefix_cache")


def test_what_was_seen_is_known_to_others(tmp_path: Path) -> None:
    one, other = (SeenPrefixes(tmp_path / "seen") for _ in range(2))
    a, b = block_hashes(tokens_of(1, 700), b""), block_hashes(tokens_of(1, 300) + tokens_of(2, 400), b"")
    assert one.add(a) == 0
    assert other.add(b) == 4
    assert one.add(a) == len(a)
    assert one.add(b) == len(b)
    assert (tmp_path / "seen").stat().st_size == 8 * (2 * len(a) - 4)
    assert one.add(np.zeros(0, np.uint64)) == 0


def test_what_was_seen_long_ago_is_forgotten(tmp_path: Path) -> None:
    seen = SeenPrefixes(tmp_path / "seen")
    rng = np.random.default_rng(1)
    every = rng.integers(0, 2**63, 2 * MOST_HASHES + 6000, np.uint64)
    for part in np.array_split(every, 30):
        seen.add(part)
        assert (tmp_path / "seen").stat().st_size <= 8 * (2 * MOST_HASHES + 2 * len(part))
    assert (tmp_path / "seen").stat().st_size < 8 * 2 * MOST_HASHES
    for each in (seen, SeenPrefixes(tmp_path / "seen")):
        assert each.add(every[-500:]) == 500
        assert each.add(every[:1]) == (each is not seen)  # the first of them has added it again


@pytest.mark.parametrize("there", ["pipe", "folder", "link to nothing", "link to a file", "odd bytes", "huge"])
def test_something_else_where_hashes_should_be(tmp_path: Path, there: str) -> None:
    path, whole = tmp_path / "seen", block_hashes(tokens_of(1, 300), b"")
    if there == "pipe":
        os.mkfifo(path)
    elif there == "folder":
        path.mkdir()
    elif there.startswith("link"):
        (tmp_path / "file").write_text("own") if "file" in there else None
        path.symlink_to("file")
    elif there == "odd bytes":
        path.write_bytes(b"abc")
    else:
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    if there in ("odd bytes", "huge"):
        assert SeenPrefixes(path).add(whole) == 0
        assert SeenPrefixes(path).add(whole) == len(whole)
        return
    with pytest.raises(OSError):  # noqa: PT011 - each its own
        SeenPrefixes(path).add(whole)
    if "file" in there:
        assert (tmp_path / "file").read_text() == "own"


def test_a_full_disk_leaves_whole_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = block_hashes(tokens_of(1, 300), b""), block_hashes(tokens_of(2, 300), b"")
    write = os.write

    def short(fd: int, data: bytes) -> int:
        write(fd, data[:13])
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(OSError, match="no space"):
        SeenPrefixes(tmp_path / "seen").add(first)
    monkeypatch.setattr(os, "write", write)
    assert SeenPrefixes(tmp_path / "seen").add(second) == 0
    assert SeenPrefixes(tmp_path / "seen").add(second) == 4


def test_rates_follow_what_was_measured_last() -> None:
    rate = WorkRate()
    assert rate.seconds(100) is None
    rate.add(1.0, 100)
    assert rate.seconds(50) == 0.5
    for _ in range(20):
        rate.add(4.0, 100)
    seconds = rate.seconds(100)
    assert seconds is not None
    assert 3.9 < seconds <= 4.0


def test_a_folder_that_is_gone_is_made_again(tmp_path: Path) -> None:
    folder = folder_at(tmp_path / "root")
    put(folder, tokens_of(1, 512))
    shutil.rmtree(tmp_path / "root")
    assert found(folder, [*tokens_of(1, 512), 1]) is None
    folder.make()
    assert folder.note(folder.names(tokens_of(1, 300))) == 0
    put(folder, tokens_of(1, 512))
    assert found(folder, [*tokens_of(1, 512), 1]) is not None

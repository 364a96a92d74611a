"""Texts on disk: what was added is read again, whatever else happens to the file."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from agentkv_runtime.corpus import Corpus
from agentkv_runtime.errors import TensorFileError
from agentkv_runtime.tensor_file import TensorSpec, TensorWriter
from filelock import FileLock

MODEL, VOCAB, MOST = "sha256:1", 1000, 1 << 20


def text(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def read(corpus: Corpus) -> list[list[int]]:
    return [each.tolist() for each in corpus.read()]


def test_texts_are_read_again_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    corpus = Corpus(folder, MODEL, VOCAB)
    assert corpus.read() == []
    corpus.add([text(1, 2, 3), text(4)], MOST)
    Corpus(folder, MODEL, VOCAB).add([text(5, 6)], MOST)
    assert read(corpus) == [[1, 2, 3], [4], [5, 6]]
    assert Corpus(folder, "sha256:2", VOCAB).read() == []
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_nothing_is_kept_of_nothing(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, MODEL, VOCAB)
    corpus.add([], MOST)
    assert corpus.read() == []


def test_the_newest_copy_of_a_text_stays(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, MODEL, VOCAB)
    corpus.add([text(1, 2), text(3)], MOST)
    corpus.add([text(1, 2)], MOST)
    assert read(corpus) == [[3], [1, 2]]


def test_the_oldest_text_is_dropped(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, MODEL, VOCAB)
    for first in range(50):
        corpus.add([text(*range(first, first + 10))], 4 * 35)
        assert corpus.path.stat().st_size < 4 * 35 + 1000
    assert [each[0] for each in read(corpus)] == [47, 48, 49]


def shortened(corpus: Corpus) -> None:
    corpus.path.write_bytes(corpus.path.read_bytes()[:-3])


def emptied(corpus: Corpus) -> None:
    corpus.path.write_bytes(b"")


def flipped(corpus: Corpus) -> None:
    data = bytearray(corpus.path.read_bytes())
    data[-9] ^= 1
    corpus.path.write_bytes(data)


def of_another_model(corpus: Corpus) -> None:
    other = Corpus(corpus.path.parent, "sha256:2", VOCAB)
    other.add([text(1, 2)], MOST)
    other.path.replace(corpus.path)


def something_else(corpus: Corpus) -> None:
    corpus.path.write_text("Dear diary, ...")


def a_folder(corpus: Corpus) -> None:
    corpus.path.unlink()
    corpus.path.mkdir()


def written(*parts: tuple[str, str, np.ndarray]) -> Callable[[Corpus], None]:
    """A file whose digests are right."""

    def write(corpus: Corpus) -> None:
        writer = TensorWriter(
            corpus.path, [TensorSpec(name, dtype, data.shape) for name, dtype, data in parts], corpus._metadata
        )
        for name, _, data in parts:
            writer.append(name, data.view(np.uint8))
        writer.finish()

    return write


DAMAGED = {
    "shortened": shortened,
    "emptied": emptied,
    "flipped": flipped,
    "of another model": of_another_model,
    "something else": something_else,
    "a folder": a_folder,
    "a token too large": written(("tokens", "I32", text(5, VOCAB)), ("lengths", "I32", text(2))),
    "a negative token": written(("tokens", "I32", text(5, -1)), ("lengths", "I32", text(2))),
    "lengths that do not add up": written(("tokens", "I32", text(5, 6)), ("lengths", "I32", text(3))),
    "a negative length": written(("tokens", "I32", text(5, 6)), ("lengths", "I32", text(3, -1))),
    "an empty text": written(("tokens", "I32", text(5, 6)), ("lengths", "I32", text(0, 2))),
    "no lengths": written(("tokens", "I32", text(5, 6))),
    "other numbers": written(("tokens", "F32", text(5, 6)), ("lengths", "I32", text(2))),
    "one tensor more": written(("tokens", "I32", text(5)), ("lengths", "I32", text(1)), ("notes", "I32", text(1))),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_file_is_told_and_replaced(tmp_path: Path, damage: Callable[[Corpus], None]) -> None:
    corpus = Corpus(tmp_path, MODEL, VOCAB)
    corpus.add([text(1, 2, 3)], MOST)
    damage(corpus)
    with pytest.raises(TensorFileError) as told:
        corpus.read()
    assert str(corpus.path) in str(told.value)
    if damage is a_folder:
        with pytest.raises(OSError, match="something else than a regular file"):
            corpus.add([text(7)], MOST)
    else:
        corpus.add([text(7)], MOST)
        assert read(corpus) == [[7]]


def test_a_process_that_does_not_end_its_writing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentkv_runtime.corpus._MOST_WAIT_S", 0.0)
    corpus = Corpus(tmp_path, MODEL, VOCAB)
    corpus.add([text(1)], MOST)
    with FileLock(corpus.path.with_suffix(".lock")), pytest.raises(OSError, match="could not be acquired"):
        corpus.add([text(2)], MOST)
    corpus.add([text(3)], MOST)
    assert read(corpus) == [[1], [3]]


_ADD = """
import sys
import numpy as np
from pathlib import Path
from agentkv_runtime.corpus import Corpus
for i in range(20):
    Corpus(Path(sys.argv[1]), "sha256:1", 1000).add([np.array([int(sys.argv[2]), i], np.int32)], 1 << 20)
"""


def test_processes_lose_nothing_of_each_other(tmp_path: Path) -> None:
    runs = [subprocess.Popen([sys.executable, "-c", _ADD, tmp_path, str(n)]) for n in range(3)]
    assert [run.wait() for run in runs] == [0] * 3
    held = read(Corpus(tmp_path, MODEL, VOCAB))
    assert sorted(held) == [[n, i] for n in range(3) for i in range(20)]
    for n in range(3):
        assert [i for each, i in held if each == n] == list(range(20))  # in their order

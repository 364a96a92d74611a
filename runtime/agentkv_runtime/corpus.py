"""Text that drafts are made from, kept on disk between processes: one file of token ids per model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash
from filelock import FileLock

from agentkv_runtime.errors import TensorFileError
from agentkv_runtime.tensor_file import TensorFile, TensorSpec, TensorWriter

__all__ = ["Corpus"]

Tokens = npt.NDArray[np.int32]

_KIND = {"kind": "agentkv corpus", "version": "1"}
_TOKENS, _LENGTHS = "tokens", "lengths"
_MOST_WAIT_S = 10.0  # for a process that writes: one that hangs must not hang those that close


class Corpus:
    """The texts of one model in a folder, oldest first, as token ids below `vocab_size`. Any number of processes may
    use it at once.

    `model` is the fingerprint of the program that made them.
    """

    def __init__(self, folder: Path, model: str, vocab_size: int) -> None:
        self.path: Path = folder / f"{xxhash.xxh3_64_hexdigest(model.encode())}.corpus"
        self._metadata = {**_KIND, "model": model}
        self._vocab_size = vocab_size

    def make_folder(self) -> None:
        """Makes the folder where there is none, for its owner alone. Raises OSError where there can be none."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def read(self) -> list[Tokens]:
        """All texts; none where there is no file yet. Raises TensorFileError for a damaged file or one of another
        model."""
        if not self.path.exists():
            return []
        with TensorFile(self.path) as file:
            if any(file.metadata.get(key) != value for key, value in self._metadata.items()):
                raise file.damaged("it is no corpus of this model")
            parts = {(spec.name, spec.dtype, len(spec.shape)) for spec in file.tensors.values()}
            if parts != {(_TOKENS, "I32", 1), (_LENGTHS, "I32", 1)}:
                raise file.damaged("it has other tensors than a corpus")
            tokens, lengths = (file.whole(name).view(np.int32).copy() for name in (_TOKENS, _LENGTHS))
            inside = tokens.size == 0 or (tokens.min() >= 0 and tokens.max() < self._vocab_size)
            if not inside or lengths.min(initial=1) < 1 or lengths.sum(dtype=np.int64) != tokens.size:
                raise file.damaged("its texts are not made of tokens of this model")
        return np.split(tokens, list(accumulate(lengths.tolist()))[:-1]) if lengths.size else []

    def add(self, texts: Iterable[Tokens], most_bytes: int) -> None:
        """Adds newer texts to the file, in place of a damaged one where there is one, and drops the oldest ones so that
        the tokens take `most_bytes` at most. Raises OSError, also where another process does not end its own."""
        self.make_folder()
        with FileLock(self.path.with_suffix(".lock"), timeout=_MOST_WAIT_S):
            try:
                held = self.read()
            except TensorFileError:
                held = []
            # Processes that ran side by side may have read the same; the newest copy of a text stays.
            newest = {text.tobytes(): text for text in reversed([*held, *texts])}
            self._write(_fitting(list(newest.values()), most_bytes))

    def _write(self, texts: Sequence[Tokens]) -> None:
        tokens = np.concatenate([np.empty(0, np.int32), *texts])
        lengths = np.array([text.size for text in texts], np.int32)
        parts = {_TOKENS: tokens, _LENGTHS: lengths}
        writer = TensorWriter(
            self.path, [TensorSpec(name, "I32", part.shape) for name, part in parts.items()], self._metadata
        )
        try:
            for name, part in parts.items():
                writer.append(name, part.view(np.uint8))
            writer.finish()
        except BaseException:
            writer.discard()
            raise


def _fitting(newest_first: list[Tokens], most_bytes: int) -> list[Tokens]:
    """The newest texts that fit, oldest first."""
    ends = accumulate(text.nbytes for text in newest_first)
    return [text for text, end in zip(newest_first, ends, strict=True) if end <= most_bytes][::-1]

"""A folder of beginnings of prompts that processes share: which there are, how much they take, what goes first.

FOLDER/.lock                        held while files are removed for room
FOLDER/<key>/seen                   hashes of what prompts began with: `seen.py`
FOLDER/<key>/<first>-<last>.prefix  an entry: a file of one saved branch without messages, all of whose tokens have
                                    rows; named by the hashes of its first block of tokens and of all

The key is a hash of everything that cells depend on. Entries are never changed; the time of a file is when a prompt
last began with it. All calls read or write files, so they belong in threads.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from agentkv_runtime.folder.fresh_file import remove_leftovers
from agentkv_runtime.programs import get_cpu_isa
from filelock import FileLock

from .._storage.layout import Int32s, ModelKey
from .._storage.reader import SnapshotFile
from .._types.errors import SnapshotError
from .._types.log import log
from .._types.tokens import common_prefix
from .hashes import BLOCK, Hashes, block_hashes
from .seen import SeenPrefixes

LEAST_TOKENS = 4 * BLOCK
"""Shorter beginnings are computed: they take a moment."""
MOST_WAIT_S = 10.0  # for a process that removes files: one that hangs must not hang others
_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.prefix")


class StoredPrefix(NamedTuple):
    """An entry, of which a prompt begins with the first `length` tokens."""

    path: Path
    length: int


class PromptNames(NamedTuple):
    """Hashes of a prompt's beginnings, shortest first, and what files of them are called."""

    hashes: Hashes
    files: list[str]

    @classmethod
    def of(cls, hashes: Hashes) -> PromptNames:
        """Names for these hashes."""
        spelled = [f"{value:016x}" for value in hashes.tolist()]
        return cls(hashes, [f"{spelled[0]}-{last}.prefix" for last in spelled])


class PrefixFolder:
    """The entries of one model and kind of cache, in a folder of at most `most_bytes`, those of other models included.

    With `exact`, cells of an entry serve prompts that begin with all of it: some of its layers have rows for its end
    alone.
    """

    def __init__(self, root: Path, key: ModelKey, most_bytes: int, exact: bool) -> None:
        digest = hashlib.blake2b("\0".join((*key, version("agentkv-sdk"), get_cpu_isa())).encode(), digest_size=32)
        self._root = root
        self._folder = root / digest.hexdigest()[:32]
        self._hash_key = digest.digest()
        self.key = key
        self._exact = exact
        self._lock = threading.Lock()
        self._tokens: dict[str, tuple[tuple[int, int], Int32s]] = {}  # of entries: inode and size, tokens
        self._bad: dict[str, tuple[int, int, int]] = {}  # inode, size and time of damaged ones that may have stayed
        self.most_bytes = most_bytes
        self._seen = SeenPrefixes(self._folder / "seen")

    def make(self) -> None:
        """Makes the folder of this model. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def names(self, tokens: Sequence[int]) -> PromptNames:
        """Hashes of a prompt's beginnings."""
        return PromptNames.of(block_hashes(tokens, self._hash_key))

    def look_up(self, tokens: Sequence[int], names: PromptNames) -> StoredPrefix | None:
        """The entry that a prompt has most tokens in common with, all but its last; its time becomes now."""
        with self._lock:
            known = {name: self._tokens_of(name) for name in self._entries(names)}
        wanted = np.asarray(tokens[:-1], np.int32).data
        found = [StoredPrefix(self._folder / name, common_prefix(own.data, wanted)) for name, own in known.items()]
        if self._exact:
            found = [entry for entry in found if entry.length == len(known[entry.path.name])]
        best = max(found, key=lambda entry: entry.length, default=None)
        if best is None or best.length < LEAST_TOKENS:
            return None
        with suppress(OSError):  # of a folder that is only read
            os.utime(best.path)
        return best

    def note(self, names: PromptNames) -> int:
        """Notes what a prompt begins with; returns the number of tokens that an earlier one began with as well. Raises
        OSError."""
        with self._lock:
            return BLOCK * self._seen.add(names.hashes)

    def worth_keeping(self, count: int, entry: StoredPrefix | None, cell_bytes: int) -> bool:
        """Whether a beginning of so many tokens gets an entry, where `entry` is there. Conversations grow with each
        prompt: an entry must be longer by a quarter, so that all that is ever written is a few times the longest."""
        more = count - (0 if entry is None else entry.length)
        room = count * cell_bytes <= self.most_bytes
        return room and more >= max(LEAST_TOKENS, 0 if entry is None else entry.length // 4)

    def path_of(self, names: PromptNames, count: int) -> Path:
        """Path of the entry of a prompt's first `count` tokens, which are whole blocks."""
        return self._folder / names.files[count // BLOCK - 1]

    def open(self, entry: StoredPrefix, tokens: Sequence[int]) -> SnapshotFile | None:
        """Opens the entry of a prompt. None for one that was removed meanwhile, or that is of no use."""
        file = self._opened(entry.path)
        begins_so = file is not None and _tokens_in(file)[: entry.length].tolist() == list(tokens[: entry.length])
        return file if begins_so else None

    def drop(self, path: Path, why: str) -> None:
        """Removes an entry that is damaged or does not fit, and logs it. It is left out from now on, also where it
        cannot be removed."""
        with suppress(OSError):
            found = os.lstat(path)
            self._bad[path.name] = found.st_ino, found.st_size, found.st_mtime_ns
            log.warning("an entry of the prefix cache is no good; its tokens are computed", path=str(path), why=why)
            os.unlink(path)

    def make_room(self, nbytes: int) -> None:
        """Removes entries, the least recently used first, until `nbytes` more fit; and what killed writers left. Raises
        OSError, also where another process does not end its own."""
        with FileLock(self._root / ".lock", timeout=MOST_WAIT_S, mode=0o600):
            files: list[tuple[int, int, Path]] = []
            for folder in self._folders():
                with suppress(OSError):
                    remove_leftovers(folder)
                files += _files(folder)
            total = sum(size for _, size, _ in files)
            for _, size, path in sorted(file for file in files if _NAME.fullmatch(file[2].name)):
                if total + nbytes <= self.most_bytes:
                    break
                with suppress(OSError):  # another user's, or gone
                    os.unlink(path)
                    total -= size
            there = {path.name for _, _, path in files}
            self._tokens = {name: known for name, known in self._tokens.items() if name in there}
            self._bad = {name: known for name, known in self._bad.items() if name in there}

    def drop_parts(self, tokens: Int32s, names: PromptNames) -> None:
        """Removes entries that another one, of `tokens`, contains."""
        if self._exact:
            return
        with self._lock:
            for name in self._entries(names):
                own = self._tokens_of(name)
                if 0 < len(own) < len(tokens) and common_prefix(own.data, tokens.data) == len(own):
                    with suppress(OSError):
                        os.unlink(self._folder / name)

    def _folders(self) -> Iterator[Path]:
        with os.scandir(self._root) as entries:
            yield from (Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))

    def _entries(self, names: PromptNames) -> set[str]:
        """Names of the entries that begin with the same block."""
        if not names.files:
            return set()
        first = names.files[0].split("-")[0]
        try:
            with os.scandir(self._folder) as entries:
                return {e.name for e in entries if e.name.startswith(first) and _NAME.fullmatch(e.name)}
        except OSError:
            return set()

    def _tokens_of(self, name: str) -> Int32s:
        """The tokens of an entry; none of one that is of no use."""
        path = self._folder / name
        none = np.zeros(0, np.int32)
        try:
            found = os.lstat(path)
        except OSError:
            return none
        if self._bad.get(name) == (found.st_ino, found.st_size, found.st_mtime_ns):
            return none
        known, tokens = self._tokens.get(name, (None, none))
        if known != (found.st_ino, found.st_size):  # `open` compares them once more
            file = self._opened(path)
            if file is None:
                return none
            tokens = _tokens_in(file)
            self._tokens[name] = (found.st_ino, found.st_size), tokens
        return tokens

    def _opened(self, path: Path) -> SnapshotFile | None:
        """Opens an entry if it is our own and whole, as far as that is told without its cells."""
        try:
            found = os.lstat(path)
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return None  # others may have written anything
        try:
            file = SnapshotFile(path)
            _check(file, self.key)
        except SnapshotError as error:
            self.drop(path, str(error))  # says nothing of one that was removed meanwhile
            return None
        return file


def _check(file: SnapshotFile, key: ModelKey) -> None:
    images = list(file.branches.values())
    if file.key != key or len(images) != 1:
        raise file.damaged("it is no entry of this cache")
    count = len(images[0].tokens)
    if images[0].rows.tolist() != [[0, 0, count]] or file.rows != count or images[0].forgotten or images[0].exact_from:
        raise file.damaged("it has not a row for each of its tokens")


def _tokens_in(file: SnapshotFile) -> Int32s:
    (image,) = file.branches.values()
    return image.tokens


def _files(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Time, size and path of the regular files of a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False)
                    yield found.st_mtime_ns, found.st_size, Path(entry.path)

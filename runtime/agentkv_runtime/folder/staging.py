"""Staging of an export's files until they are complete. An export that is killed at any moment leaves no folder that
mixes two models."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from agentkv_runtime.folder.locks import check_locks, lock
from agentkv_runtime.folder.manifest import write_unfinished_mark

__all__ = ["PREFIX", "holds_nothing", "install", "staged"]

PREFIX = ".agentkv-export-"
"""Prefix of folders that an export or a removal is using; those that no process has locked may be removed."""


def holds_nothing(folder: Path) -> bool:
    """Whether a folder is empty, apart from leftovers of killed exports."""
    return all(entry.name.startswith(PREFIX) for entry in folder.iterdir())


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """Makes an empty folder on the file system of the folder `out`, which need not exist; removes it after the block.

    Also removes leftovers of killed exports there and, if the block fails, the parents of `out` that it made. Raises
    OSError if nothing can be written, and on a system without locks.
    """
    check_locks()
    beside = out if out.is_dir() else out.parent
    missing = [folder for folder in (beside, *beside.parents) if not folder.exists()]
    ours: list[Path] = []
    try:
        try:
            beside.mkdir(parents=True, exist_ok=True)
            _sweep(beside)
            with _fresh(beside, ours) as staging:
                yield staging
        finally:
            for folder in ours:
                shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        for parent in missing:
            with ExitStack() as quietly:
                quietly.push(lambda kind, *_: kind is not None and issubclass(kind, OSError))
                parent.rmdir()
        raise


def install(staging: Path, out: Path, names: Sequence[str], manifest: str) -> None:
    """Moves the files `names`, and the `manifest` that describes them, from `staging` to `out`.

    A new folder appears complete. In an existing one these files are replaced, or removed if `staging` lacks them, and
    all others stay. Files are renamed into place and never written to, so programs that have the old ones open keep
    them. Meanwhile a mark in the manifest's place keeps the folder from being opened. An error puts the old files
    back. Concurrent calls run one after another.
    """
    if not out.exists():
        staging.chmod(0o755)
        try:
            staging.rename(out)
            return
        except OSError:
            if not (out / manifest).is_file():  # nobody else put a model there meanwhile
                raise
    before = staging / "before"
    before.mkdir()
    with _held(out, wait=True), ExitStack() as undoing:
        if os.path.lexists(out / manifest):
            shutil.copyfile(out / manifest, before / manifest)
            undoing.callback(os.replace, before / manifest, out / manifest)
        else:
            undoing.callback((out / manifest).unlink, missing_ok=True)
        write_unfinished_mark(staging / "mark")
        os.replace(staging / "mark", out / manifest)
        for name in names:
            if os.path.lexists(out / name):
                (before / name).parent.mkdir(exist_ok=True)
                undoing.callback(_move, before / name, out / name)
                os.rename(out / name, before / name)
            else:
                undoing.callback((out / name).unlink, missing_ok=True)
            _move(staging / name, out / name)
        os.replace(staging / manifest, out / manifest)
        undoing.pop_all()


def _move(source: Path, target: Path) -> None:
    if os.path.lexists(source):
        target.parent.mkdir(exist_ok=True)
        os.replace(source, target)


@contextmanager
def _fresh(beside: Path, ours: list[Path]) -> Iterator[Path]:
    """Makes an empty folder, locked in the block. `ours` gets its name, and those of folders that others took."""
    with ExitStack() as held:
        while True:
            # A name anew, as who took the last folder may yet remove what has its name.
            folder = beside / f"{PREFIX}{secrets.token_hex(8)}"
            ours.append(folder)  # before it is made: a signal may interrupt any line
            folder.mkdir(0o700)
            with suppress(FileNotFoundError, BlockingIOError):  # somebody took it for what a killed export left
                held.enter_context(_held(folder))
                if folder.exists():
                    break
        yield folder


@contextmanager
def _held(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Locks a folder in the block, at most while this process lives, so that others see that it is in use.

    Raises BlockingIOError if another process has locked it, unless `wait`.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        lock(descriptor, wait=wait)
        yield
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    for left in folder.glob(PREFIX + "*"):
        try:
            with _held(left):
                shutil.rmtree(left, ignore_errors=True)
        except OSError:  # in use, or not ours to remove
            continue

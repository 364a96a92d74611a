"""An export's files, kept aside until they are whole and then put in place: killed at any moment, it leaves no folder
that opens as half of one model and half of another."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from agentkv_runtime.folder.manifest import write_unfinished_mark

__all__ = ["PREFIX", "holds_nothing", "install", "staged"]

PREFIX = ".agentkv-export-"
"""Of what an export, or a removal, has under way; one that is locked by nobody may go."""


def holds_nothing(folder: Path) -> bool:
    """Whether a folder is empty, but for what an export that was killed has left there."""
    return all(entry.name.startswith(PREFIX) for entry in folder.iterdir())


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """An empty folder on the file system of the folder `out`, which need not exist; gone after the block.

    What killed exports left there goes as well. When the block fails, so do the parents of `out` that were made for it.
    Raises OSError where nothing can be written.
    """
    beside = out if out.is_dir() else out.parent
    missing = [folder for folder in (beside, *beside.parents) if not folder.exists()]
    try:
        beside.mkdir(parents=True, exist_ok=True)
        _sweep(beside)
        with _fresh(beside) as folder:
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        for parent in missing:
            with ExitStack() as quietly:
                quietly.push(lambda kind, *_: kind is not None and issubclass(kind, OSError))
                parent.rmdir()
        raise


def install(staging: Path, out: Path, names: Sequence[str], manifest: str) -> None:
    """Puts what lies in `staging` at `out`: the files `names`, and the `manifest` that describes them.

    A new folder appears whole. In one that is there these files are replaced, or removed where `staging` has none, and
    all others stay. Files are renamed into place and never written to, so programs that have the old ones open keep
    them. Meanwhile a mark stands in for the manifest, which nothing opens. An error along the way puts the old files
    back. Of several at a time one goes after the other.
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
def _fresh(beside: Path) -> Iterator[Path]:
    """An empty folder, held in the block."""
    with ExitStack() as held:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=beside))
            with suppress(FileNotFoundError, BlockingIOError):  # somebody took it for what a killed export left
                held.enter_context(_held(folder))
                if folder.exists():
                    break
        yield folder


@contextmanager
def _held(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Locked in the block, and no longer than this process lives: so that others can tell whether it is in use.

    Raises BlockingIOError where somebody else has it, unless that is to be waited for.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
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

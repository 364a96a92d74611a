"""What files cost that move with branches: times and bytes, for folders of 100 and of 10,000 files.

python tests/benchmarks/bench_workspaces.py [--files 100,10000] [--repeats 3]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from agentkv.workspaces.view import WorkspaceView
from agentkv.workspaces.workspace import Workspace, begin_view

T = TypeVar("T")
SETTLED = 0.1  # seconds after which time stamps of what was written tell it from what follows


class Times:
    """Milliseconds by what was done, and those of them that a core worked, which another program's load leaves."""

    def __init__(self) -> None:
        self.took: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def of(self, what: str, work: Callable[[], T]) -> T:
        began, worked = time.perf_counter(), time.thread_time()
        made = work()
        self.took[what].append((1000 * (time.perf_counter() - began), 1000 * (time.thread_time() - worked)))
        return made


def made(folder: Path, count: int) -> int:
    """Makes so many files of up to 6 kB, a hundred to a folder; returns their bytes."""
    draw, total = random.Random(count), 0
    for number in range(count):
        path = folder / f"part{number // 100}" / f"file{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        total += path.write_bytes(draw.randbytes(draw.randrange(200, 6000)))
    return total


def disk(folder: Path) -> int:
    """Bytes that a folder takes on the disk."""
    return sum(
        512 * (at / name).lstat().st_blocks for at, _, names in os.walk(folder) for at in [Path(at)] for name in names
    )


def once(workspace: Workspace, times: Times) -> tuple[int, int]:
    """Every operation once; bytes on the disk of the contents, and of one view."""
    root: WorkspaceView = times.of("begin", lambda: begin_view(workspace))
    times.of("fork, files not used yet", lambda: root.forks(1, 0))
    times.of("first use", lambda: root.path)
    time.sleep(SETTLED)
    root.mark(0)
    mark = times.of("mark", lambda: root.mark(0))
    (fork,) = times.of("fork", lambda: root.forks(1, 0))
    (fork.path / "part0" / "file1.py").write_text("mine\n")
    time.sleep(SETTLED)
    fork.mark(0)
    merge = times.of("adopt: look", lambda: root.merged_with(fork))
    times.of("adopt: write", lambda: root.take(merge, 0))
    times.of("roll back", lambda: root.go_back(mark, 0))
    bytes_of = disk(root.session.blobs.folder), disk(fork.path)
    for view in (root, fork):
        times.of("close", view.close)
    return bytes_of


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", default="100,10000")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    for count in map(int, given.files.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            total, times = made(Path(folder), count), Times()
            kept = [once(Workspace(folder), times) for _ in range(given.repeats)][-1]
        print(f"{count:,} files, {total:,} bytes: contents {kept[0]:,} bytes on the disk, a used view {kept[1]:,}")
        for what, took in times.took.items():
            wall, core = (statistics.median(each) for each in zip(*took, strict=True))
            print(f"  {what:26} {wall:9.1f} ms, {core:9.1f} ms of a core")


if __name__ == "__main__":
    main()

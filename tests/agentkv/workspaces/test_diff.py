"""Diffs of files: what other programs take, in bounded time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agentkv.workspaces import diff as diff_module

from .conftest import BeginView

pytestmark = pytest.mark.anyio


def made_by(text: str, before: list[str]) -> list[str]:
    """What hunks make of lines."""
    made, at = [], 0
    for line in text.splitlines(keepends=True)[2:]:
        if line.startswith("@@"):
            begin, _, count = line.split()[1].removeprefix("-").partition(",")
            to = int(begin) - (count != "0")
            made += before[at:to]
            at = to
        elif line[0] in " -":
            assert before[at] == line[1:]
            made += [line[1:]] if line[0] == " " else []
            at += 1
        else:
            made.append(line[1:])
    return made + before[at:]


@pytest.mark.parametrize("most_pairs", [500_000, 0])
async def test_hunks_make_one_text_of_the_other(
    begin: BeginView, monkeypatch: pytest.MonkeyPatch, most_pairs: int
) -> None:
    monkeypatch.setattr(diff_module, "_MOST_PAIRS", most_pairs)
    draw = random.Random(most_pairs)
    for _ in range(500):
        before = [f"{draw.randrange(6)}\n" for _ in range(draw.randrange(25))]
        after = list(before)
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(after) + 1)
            after[at : at + draw.randrange(3)] = [f"{draw.randrange(9)}\n" for _ in range(draw.randrange(3))]
        if before != after:
            text = "".join(diff_module._compared(before, after, "a/x", "b/x"))
            assert made_by(text, before) == after


async def test_long_files_of_equal_lines_are_compared_in_time(begin: BeginView) -> None:
    view, draw = begin(), random.Random(1)
    lines = [f"line {draw.randrange(1000)}\n" for _ in range(90_000)]
    (view.path / "a.txt").write_text("".join(lines))
    (fork,) = view.forks(1, 0)
    draw.shuffle(lines)
    (fork.path / "a.txt").write_text("".join(lines))
    assert made_by((await fork.diff()).text, (view.path / "a.txt").read_text().splitlines(keepends=True)) == lines
    fork.close()


def chmod(path: Path) -> None:
    path.chmod(0o755)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("one\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (chmod, "diff --git a/a.txt b/a.txt\nold mode 100644\nnew mode 100755\n"),
        (link, ""),
        (lambda path: path.write_bytes(b"\0"), "Binary files a/a.txt and b/a.txt differ\n"),
        (lambda path: path.rename(path.with_name("x\ny")), "--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n"
         "--- /dev/null\n+++ b/x\\ny\n@@ -0,0 +1 @@\n+one\n"),
    ],
)  # fmt: skip
async def test_what_changed_besides_lines(begin: BeginView, change: object, said: str) -> None:
    view = begin()
    change(view.path / "a.txt")  # type: ignore[operator]
    diff = await view.diff()
    assert diff
    assert diff.text == said

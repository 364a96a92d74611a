"""Files of branches, for code that does not await."""

from __future__ import annotations

from pathlib import Path

import agentkv as kv


def test_files_move_with_branches_that_block(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    with kv.Context.open(folder, threads=1, capacity=64).sync() as ctx:
        branch = ctx.branch([1, 2], workspace=kv.Workspace(tmp_path))
        assert ctx.branch([1, 2]).workspace is None
        fork = branch.fork()
        assert fork.workspace is not None
        (fork.workspace.path / "a.txt").write_text("two\n")
        assert fork.workspace.diff().modified == ("a.txt",)
        branch.adopt(fork)
        assert branch.workspace is not None
        assert branch.workspace.apply() == ["a.txt"]
        assert str(tmp_path) in repr(branch.workspace)
    assert (tmp_path / "a.txt").read_text() == "two\n"

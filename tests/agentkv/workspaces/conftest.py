"""Views without branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentkv.workspaces.view import WorkspaceView
from agentkv.workspaces.workspace import Workspace, begin_view

BeginView = Callable[..., WorkspaceView]


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where views are kept, of this test alone."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("AGENTKV_HOME", str(home))
    return home


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[BeginView]:
    """`begin(**options)` of a view of `tmp_path / "project"`, which has some files."""
    views: list[WorkspaceView] = []
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    (project / "a.txt").write_text("one\n")
    (project / "sub" / "b.txt").write_text("two\n")

    def begin(**options: object) -> WorkspaceView:
        views.append(begin_view(Workspace(project, **options)))  # type: ignore[arg-type]
        return views[-1]

    yield begin
    for view in views:
        view.close()

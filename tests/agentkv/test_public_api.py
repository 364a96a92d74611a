"""What `import agentkv` offers."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv

STUB = Path(kv.__file__).with_suffix(".pyi")


def test_all_is_what_type_checkers_read() -> None:
    statements = ast.parse(STUB.read_text(encoding="utf-8")).body
    (listed,) = (ast.literal_eval(node.value) for node in statements if isinstance(node, ast.Assign))
    assert listed == sorted(listed) == kv.__all__ == dir(kv)


def test_errors_are_one_tree() -> None:
    values = [getattr(kv, name) for name in kv.__all__]
    errors = [value for value in values if inspect.isclass(value) and issubclass(value, BaseException)]
    assert len(errors) >= 10
    assert all(issubclass(error, kv.AgentKVError) for error in errors)


def public_members() -> Iterator[tuple[str, object]]:
    for name in kv.__all__:
        value = getattr(kv, name)
        yield name, value
        if inspect.isclass(value):
            for member, function in vars(value).items():
                if not member.startswith("_") and (inspect.isfunction(function) or isinstance(function, property)):
                    yield f"{name}.{member}", function


@pytest.mark.parametrize(("name", "value"), list(public_members()), ids=lambda v: v if isinstance(v, str) else "")
def test_everything_public_has_a_docstring(name: str, value: object) -> None:
    assert inspect.getdoc(value), name


@pytest.mark.parametrize(
    ("verb", "sync"),
    [(kv.Branch.publish, kv.SyncBranch.publish), (kv.Context.attach, kv.SyncContext.attach)],
)
def test_branches_of_servers_have_their_names(verb: Any, sync: Any) -> None:
    assert next(iter(inspect.signature(verb).parameters.values())).name == "self"
    assert list(inspect.signature(verb).parameters)[1] == "name"
    assert sync.__doc__


def test_a_missing_nano_model_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv.models, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(kv.ModelError, match="agentkv export"):
        kv.models.nano()
    (tmp_path / "nano").mkdir()
    (tmp_path / "nano" / "agentkv.json").write_text("{}")
    assert kv.models.nano() == tmp_path / "nano"
    with pytest.raises(kv.ModelError, match="agentkv export-draft"):
        kv.models.nano(draft=True)
    for name in ("draft.pte", "draft.json"):
        (tmp_path / "nano" / name).touch()
    assert kv.models.nano(draft=True) == tmp_path / "nano"

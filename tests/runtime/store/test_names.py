"""What names mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentkv_runtime.errors import PullError
from agentkv_runtime.store.catalogue import listed
from agentkv_runtime.store.hub import Name
from agentkv_runtime.store.names import cached_models, canonical, file_called, named_on_hub

from tests.runtime.store.stores import hub_file, ollama_model

QWEN = Name("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf")


@pytest.mark.parametrize(
    ("asked", "revision", "name", "called"),
    [
        ("qwen3:0.6b", None, QWEN, "qwen3:0.6b"),
        ("Qwen3:0.6B", None, QWEN, "qwen3:0.6b"),
        ("qwen3:0.6b@v1", None, Name(QWEN.repo, QWEN.file, "v1"), "qwen3:0.6b@v1"),
        ("qwen3:0.6b", "v1", Name(QWEN.repo, QWEN.file, "v1"), "qwen3:0.6b@v1"),
        ("owner/model@v1", None, Name("owner/model", None, "v1"), "owner/model@v1"),
        ("gpt2", None, Name("gpt2"), "gpt2"),
    ],
)
def test_names_of_the_hub_and_short_ones(asked: str, revision: str | None, name: Name, called: str) -> None:
    assert named_on_hub(asked, revision) == (name, called)


def test_a_family_is_called_as_its_usual_size() -> None:
    usual = listed("qwen3")
    assert usual is not None
    assert named_on_hub("qwen3") == (usual.source, usual.name)
    assert canonical("QWEN3") == usual.name
    assert canonical("qwen3@v1") == f"{usual.name}@v1"
    for other in ("qwen3:9b", "qwen3@", "owner/model", "/no/where", "ollama:qwen3"):
        assert canonical(other) == other


@pytest.mark.parametrize(
    ("asked", "revision", "why"),
    [
        ("qwen3:9b", None, r"no short name\. Did you mean .*qwen3:8b.*list --available"),
        ("ollama:qwen3:0.6b", None, "used where it lies.*agentkv chat ollama:qwen3:0.6b"),
        ("qwen3:0.6b@v1", "v2", "no short name"),
        ("qwen3:0.6b@", None, "no short name"),
        ("a b", None, "no name of a model on the hub"),
    ],
)
def test_what_cannot_be_pulled_is_refused(asked: str, revision: str | None, why: str) -> None:
    with pytest.raises(PullError, match=why):
        named_on_hub(asked, revision)


def test_whoever_downloaded_a_file_its_names_open_it(user_home: Path) -> None:
    assert file_called("qwen3:0.6b") is None
    link = hub_file(user_home, QWEN.repo, str(QWEN.file))
    assert file_called("qwen3:0.6b") == file_called(str(QWEN)) == file_called(f"hf:{QWEN}") == link
    assert file_called("owner/model/model.gguf") is file_called("/no/where") is file_called("qwen3:4b") is None
    other = hub_file(user_home, "owner/model", "model.gguf")
    assert [(name, model.path) for name, model in cached_models()] == [
        ("qwen3:0.6b", link),
        ("owner/model/model.gguf", other),
    ]


def test_the_same_name_in_another_store_is_another_model(user_home: Path) -> None:
    blob = ollama_model(user_home, "qwen3:0.6b")
    assert file_called("ollama:qwen3:0.6b") == blob
    assert file_called("qwen3:0.6b") is None

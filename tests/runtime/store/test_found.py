"""What other programs have: their layouts, and what somebody did to them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from agentkv_runtime.errors import StoreError
from agentkv_runtime.store.found.hub_cache import HubCache, cached_file, remove_cached
from agentkv_runtime.store.found.llama_cpp import LlamaCpp
from agentkv_runtime.store.found.lm_studio import LMStudio
from agentkv_runtime.store.found.model import Found, ModelStore, Unusable
from agentkv_runtime.store.found.ollama import Ollama
from agentkv_runtime.store.found.stores import STORES, find_stored, is_stored
from agentkv_runtime.store.hub import Name

from tests.runtime.store.stores import GGUF, MODEL_LAYER, hub_file, ollama_manifest, ollama_model, write

DIGEST = "sha256:" + "a" * 64


def names(store: ModelStore) -> list[str]:
    assert not [model for model in store.models() if isinstance(model, Unusable)]
    return [model.name for model in store.models()]


def complaint(store: ModelStore) -> str:
    """The one thing that is wrong, on one line."""
    [model] = [model for model in store.models() if isinstance(model, Unusable)]
    assert "\n" not in model.why
    return f"{model.name}: {model.why}"


def test_nothing_is_there_at_first(user_home: Path) -> None:
    assert [list(store.models()) for store in STORES.values()] == [[], [], [], []]


def test_ollama_calls_models_as_its_own_commands_do(user_home: Path) -> None:
    blob = ollama_model(user_home, "qwen3:0.6b")
    ollama_model(user_home, "gemma3:latest")
    ollama_model(user_home, "mine:v1", registry="registry.ollama.ai/someone")
    ollama_model(user_home, "model-GGUF:Q4_K_M", registry="hf.co/owner")
    write(user_home / ".ollama/models/manifests/.DS_Store")
    assert names(Ollama()) == [
        "hf.co/owner/model-GGUF:Q4_K_M",
        "gemma3:latest",
        "qwen3:0.6b",
        "someone/mine:v1",
    ]
    assert find_stored("ollama:qwen3:0.6b") == blob
    assert find_stored("ollama:gemma3") == find_stored("ollama:gemma3:latest") == blob
    assert next(model for model in Ollama().models() if isinstance(model, Found)).size == len(GGUF)


def test_ollamas_store_may_be_elsewhere(user_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ollama_model(user_home / "elsewhere", "qwen3:0.6b")
    monkeypatch.setenv("OLLAMA_MODELS", str(user_home / "elsewhere/.ollama/models"))
    assert names(Ollama()) == ["qwen3:0.6b"]


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (b"{", "its manifest cannot be read"),
        (b"[]", "its manifest not a JSON object"),
        (b"\xff", "not UTF-8"),
        (b'{"layers": ' + b"[" * 100_000, "its manifest cannot be read"),
        ({"layers": 3}, "names no file of a model"),
        ({"layers": [None, {"mediaType": MODEL_LAYER}]}, "by no SHA-256"),
        ({"layers": [{"mediaType": MODEL_LAYER, "digest": "sha256:../../../secret"}]}, "by no SHA-256"),
        ({"layers": [{"mediaType": MODEL_LAYER, "digest": DIGEST}] * 2}, "more than one file"),
        ({"layers": [{"mediaType": MODEL_LAYER, "digest": DIGEST}]}, "No such file"),
    ],
    ids=["cut", "list", "bytes", "deep", "number", "no-digest", "path", "two", "no-blob"],
)
def test_damaged_manifests_are_a_line_each(user_home: Path, manifest: object, why: str) -> None:
    ollama_manifest(user_home, "bad:1", manifest)
    said = complaint(Ollama())
    assert said.startswith("bad:1: ")
    assert why in said
    with pytest.raises(StoreError, match="ollama:bad:1: "):
        find_stored("ollama:bad:1")


def test_a_blob_that_is_no_gguf_file_says_so(user_home: Path) -> None:
    ollama_model(user_home, "old:1", b"ggml" + bytes(60))
    assert complaint(Ollama()) == "old:1: it does not begin as a GGUF file"


def test_lm_studio_has_a_folder_for_each_publisher_and_repository(user_home: Path) -> None:
    file = write(user_home / ".lmstudio/models/publisher/repo/model-Q4.gguf")
    write(user_home / ".lmstudio/models/publisher/repo/mmproj-model.gguf")
    write(user_home / ".lmstudio/models/publisher/repo/notes.txt")
    write(user_home / ".lmstudio/models/astray.gguf")
    write(user_home / ".cache/lm-studio/models/older/repo/model.GGUF")
    assert names(LMStudio()) == ["publisher/repo/model-Q4.gguf", "older/repo/model.GGUF"]
    assert find_stored("lmstudio:publisher/repo/model-Q4.gguf") == file


def test_llama_cpp_has_one_folder(user_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    write(user_home / ".cache/llama.cpp/owner_repo_model.gguf")
    write(user_home / ".cache/llama.cpp/owner_repo_model.gguf.json", b"{}")
    assert names(LlamaCpp()) == ["owner_repo_model.gguf"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(user_home / "caches"))
    write(user_home / "caches/llama.cpp/other.gguf")
    assert names(LlamaCpp()) == ["other.gguf"]
    monkeypatch.setenv("LLAMA_CACHE", str(user_home / "chosen"))
    write(user_home / "chosen/third.gguf")
    assert find_stored("llama.cpp:third.gguf") == user_home / "chosen/third.gguf"


def test_parts_are_one_model(user_home: Path) -> None:
    folder = user_home / ".lmstudio/models/a/b"
    first, *_ = [write(folder / f"big-{n:05}-of-00003.gguf") for n in (1, 2, 3)]
    [model] = LMStudio().models()
    assert model == Found("a/b/big-00001-of-00003.gguf", first, 3 * len(GGUF))
    (folder / "big-00002-of-00003.gguf").unlink()
    assert complaint(LMStudio()) == "a/b/big-00001-of-00003.gguf: 1 of its 3 parts are missing"
    first.unlink()
    assert complaint(LMStudio()) == "a/b/big-00001-of-00003.gguf: 2 of its 3 parts are missing"


@pytest.mark.parametrize("name", ["big-00005-of-00002.gguf", "big-00000-of-00000.gguf"])
def test_parts_that_cannot_be_are_whole_models(user_home: Path, name: str) -> None:
    file = write(user_home / ".lmstudio/models/a/b" / name)
    assert list(LMStudio().models()) == [Found(f"a/b/{name}", file, len(GGUF))]


def test_the_hubs_cache_has_files_and_folders(user_home: Path) -> None:
    link = hub_file(user_home, "owner/model-GGUF", "Q4/model.gguf")
    hub_file(user_home, "owner/talks", "config.json", json.dumps({"architectures": ["LlamaForCausalLM"]}).encode())
    weights = hub_file(user_home, "owner/talks", "model.safetensors", b"12345")
    hub_file(user_home, "owner/sees", "config.json", json.dumps({"architectures": ["ViTModel"]}).encode())
    write(user_home / ".cache/huggingface/hub/datasets--owner--data/refs/main")
    (user_home / ".cache/huggingface/hub/models--owner--begun/blobs").mkdir(parents=True)
    assert list(HubCache().models()) == [
        Found("owner/model-GGUF/Q4/model.gguf", link, len(GGUF)),
        Found("owner/talks", weights.parent, 5),
    ]
    weights.unlink()
    assert complaint(HubCache()) == "owner/talks: its weights are not all here"


def test_a_revision_is_found_by_its_name_and_by_its_commit(user_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = hub_file(user_home, "owner/model", "model.gguf")
    for revision in (None, "main", "c" * 40):
        assert cached_file(Name("owner/model", "model.gguf", revision)) == link
    for missing in (Name("owner/model", "model.gguf", "v2"), Name("owner/model", "other.gguf"), Name("owner/model")):
        assert cached_file(missing) is None
    monkeypatch.setenv("HF_HUB_CACHE", str(user_home / "nowhere"))
    assert cached_file(Name("owner/model", "model.gguf")) is None
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(user_home / ".cache/huggingface"))
    assert cached_file(Name("owner/model", "model.gguf")) == link


def test_what_is_removed_from_the_hubs_cache_is_gone_under_every_commit(user_home: Path) -> None:
    first = hub_file(user_home, "owner/model", "model.gguf", commit="a" * 40)
    second = hub_file(user_home, "owner/model", "model.gguf", commit="b" * 40)
    other = hub_file(user_home, "owner/model", "other.gguf", GGUF + b"other")
    blob = Path(os.path.realpath(first))
    remove_cached(second)
    assert not any(os.path.lexists(path) for path in (first, second, blob))
    assert other.is_file()


def test_what_lies_outside_of_the_hubs_cache_is_not_removed(user_home: Path) -> None:
    link = hub_file(user_home, "owner/model", "model.gguf")
    link.unlink()
    link.symlink_to(write(user_home / "mine.gguf"))
    remove_cached(link)
    assert not os.path.lexists(link)
    assert (user_home / "mine.gguf").is_file()


def link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def link_to_its_folder(path: Path) -> None:
    path.symlink_to(path.parent, target_is_directory=True)


@pytest.mark.parametrize("circle", [link_to_itself, link_to_its_folder])
@pytest.mark.parametrize(
    "where",
    [".ollama/models/manifests/x", ".lmstudio/models/x", ".lmstudio/models/a/x", ".cache/huggingface/hub/models--x"],
)
def test_circles_of_links_end(user_home: Path, where: str, circle: Callable[[Path], None]) -> None:
    path = user_home / where
    path.parent.mkdir(parents=True)
    circle(path)
    for store in STORES.values():
        assert all(isinstance(model, Unusable) and "\n" not in model.why for model in store.models())


@pytest.mark.parametrize("folder", [".ollama/models/manifests", ".lmstudio/models", ".cache/llama.cpp"])
def test_what_is_no_folder_is_a_line(user_home: Path, folder: str) -> None:
    write(user_home / folder)
    said = [model for store in STORES.values() for model in store.models()]
    assert [type(model) for model in said] == [Unusable]
    assert said[0].why == "Not a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_may_not_be_read_is_a_line(user_home: Path) -> None:
    folder = user_home / ".lmstudio/models/private"
    folder.mkdir(parents=True)
    folder.chmod(0)
    assert complaint(LMStudio()) == f"{folder}: Permission denied"


def test_a_pipe_is_not_waited_for(user_home: Path) -> None:
    folder = user_home / ".lmstudio/models/a/b"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "model.gguf")
    assert complaint(LMStudio()).endswith("not a regular file")


def test_a_name_that_a_store_does_not_have_is_refused_with_the_nearest(user_home: Path) -> None:
    ollama_model(user_home, "qwen3:0.6b")
    with pytest.raises(StoreError, match=r"Ollama has no such model here\. Did you mean ollama:qwen3:0\.6b\?.*--found"):
        find_stored("ollama:qwen3:0.6")
    with pytest.raises(StoreError) as refused:
        find_stored("lmstudio:\x1b[31m")
    assert "\x1b" not in str(refused.value)
    assert is_stored("ollama:x")
    assert not is_stored("ollama")
    assert not is_stored("qwen3:0.6b")

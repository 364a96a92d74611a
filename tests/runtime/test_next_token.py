"""Multi-token prediction layers: found in checkpoints by name, exported with the model, and computed as papers say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime.errors import DraftMismatchError, ExportError
from agentkv_runtime.export import export_draft, export_folder
from agentkv_runtime.folder.draft_manifest import read_draft_manifest
from agentkv_runtime.folder.model_folder import ModelFolder, read_model_folder
from agentkv_runtime.folder.next_token_names import find_next_token
from agentkv_runtime.programs import load_folder, load_head
from agentkv_runtime.speculation import open_mtp
from safetensors.torch import load_file, save_file

from tests.conftest import FolderFactory
from tests.rows import one_in
from tests.runtime.draft_heads import head_weights, write_head
from tests.runtime.next_token_layers import FAMILIES, Reference, write_with_layer

TOKENS = [5, 9, 33, 101, 7, 250, 8, 9, 10, 77]
TOLERANCE = 1e-4  # of the largest logit
SMALL = {"quant": "none", "max_tokens": 16, "max_logits": 16}


def features_of(folder: ModelFolder, tokens: list[int]) -> Any:
    """What the exported model gives out for tokens, `[T, F]`."""
    session = load_folder(folder).make_session(capacity=32, kv_dtype="fp32")
    rows = np.arange(len(tokens))
    session.cache.begin_step([0] * len(tokens))
    session.forward(np.array(tokens), rows, rows[-1:])
    session.cache.commit_step()
    return session.features()


def logits_of(folder: ModelFolder, tokens: list[int], said: list[int]) -> Any:
    """The exported layer's logits behind `tokens` and each of `said` but the last, `[depth, vocabulary]`."""
    assert folder.mtp_path is not None
    session = load_head(folder.mtp_path).make_session(capacity=32, kv_dtype="fp32")
    hidden = session.fuse(features_of(folder, tokens[:-1]))
    fed, rows = tokens[1:], []
    for token in said:
        start = len(fed) - len(hidden)
        session.cache.begin_step([0] * len(hidden))
        positions = np.arange(start, len(fed))
        logits, hidden = session.forward(np.array(fed[start:]), positions, hidden, np.array([len(hidden) - 1]))
        session.cache.commit_step()
        rows.append(logits[0])
        fed = [*fed, token]
    return np.stack(rows)


@pytest.fixture(scope="module", params=one_in(6, FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelFolder, Reference]:
    root = tmp_path_factory.mktemp(request.param)
    reference = write_with_layer(FAMILIES[request.param], root / "hf")
    return export_folder(root / "hf", root / "model", mtp=True, **SMALL), reference


def test_the_layers_logits_are_those_of_the_papers_words(family: tuple[ModelFolder, Reference]) -> None:
    folder, reference = family
    said, want = reference.chain(TOKENS, 4)
    got = logits_of(folder, TOKENS, said)
    np.testing.assert_allclose(got, want.numpy(), atol=TOLERANCE * float(want.abs().max()))


def test_a_drafter_says_what_the_layer_says(family: tuple[ModelFolder, Reference]) -> None:
    folder, reference = family
    assert folder.mtp_path is not None
    manifest = read_draft_manifest(folder.path / "mtp.json")
    assert (manifest.kind, manifest.feature_dim) == ("mtp", folder.manifest.feature_dim)
    assert folder.manifest.features is not None
    assert folder.manifest.features.layers == (reference.family.spec.layers,)
    drafter = open_mtp(folder, capacity=64, kv_dtype="fp32", depth=2)
    assert drafter.levels == 0


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama") / "hf"
    write_with_layer(FAMILIES["llama"], path)
    return path


@pytest.mark.parametrize("quant", one_in(2, ["q4", "8da4w"]))
def test_a_quantised_layer_says_nearly_the_same(quant: Any, tmp_path: Path) -> None:
    reference = write_with_layer(FAMILIES["llama"], tmp_path / "hf")
    folder = export_folder(tmp_path / "hf", tmp_path / "model", mtp=True, **(SMALL | {"quant": quant}))
    said, want = reference.chain(TOKENS, 2)
    got = logits_of(folder, TOKENS, said)
    for row, other in zip(got, want.numpy(), strict=True):
        assert np.corrcoef(row, other)[0, 1] > 0.9
    assert read_draft_manifest(folder.path / "mtp.json").quantization == quant


@pytest.mark.parametrize(
    ("asked", "layer", "layers"),
    [
        ({}, True, (2,)),  # as where it is asked for: `family`
        ({"features": True}, False, (1, 1, 2)),
    ],
    ids=["by itself", "features of another head"],
)
def test_what_is_exported_with_the_model(
    asked: dict[str, bool], layer: bool, layers: tuple[int, ...] | None, llama: Path, tmp_path: Path
) -> None:
    folder = export_folder(llama, tmp_path / "model", **SMALL, **asked)
    assert (folder.mtp_path is not None) == layer == (folder.path / "mtp.json").is_file()
    features = folder.manifest.features
    assert (features and features.layers) == layers
    if layer:  # a later export replaces it, or takes it away
        again = export_folder(llama, folder.path, mtp=False, **SMALL)
        assert again.mtp_path is None
        assert not (folder.path / "mtp.json").exists()


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.pop(name)


def cut(name: str) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        tensors[name] = tensors[name][:-1].clone()

    return change


def changed(folder: Path, change: Callable[[dict[str, Any]], None], to: Path) -> Path:
    """A copy of a Hugging Face folder with other tensors."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
    return to


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("model.layers.2.enorm.weight"), r"lacks model\.layers\.2\.enorm\.weight"),
        (without("model.layers.2.shared_head.norm.weight"), r"lacks model\.layers\.2\.shared_head"),
        (without("model.layers.2.mlp.up_proj.weight"), r"no layer of llama: they differ in model\.layers\.0\.mlp\.up"),
        (cut("model.layers.2.eh_proj.weight"), r"eh_proj\.weight is \[63, 128\], which does not fit"),
        (cut("model.layers.2.self_attn.q_proj.weight"), r"no layer of llama"),
    ],
)
def test_a_layer_that_cannot_be_is_refused_where_it_is_asked_for(
    change: Any, says: str, llama: Path, tmp_path: Path
) -> None:
    hf = changed(llama, change, tmp_path / "hf")
    with pytest.raises(ExportError, match=says):
        export_folder(hf, tmp_path / "model", mtp=True, **SMALL)
    assert not (tmp_path / "model").exists()


def test_a_layer_that_cannot_be_is_left_out_with_a_note(
    llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hf = changed(llama, cut("model.layers.2.eh_proj.weight"), tmp_path / "hf")
    folder = export_folder(hf, tmp_path / "model", **SMALL)
    assert folder.mtp_path is None
    assert folder.manifest.features is None
    assert "Exported without its multi-token prediction layer" in caplog.text


def test_what_has_no_layer_says_so(
    tiny_hf_folder: FolderFactory, tiny_exported_folder: FolderFactory, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=r"has no multi-token prediction layer .*Leave mtp out"):
        export_folder(tiny_hf_folder("llama"), tmp_path / "model", mtp=True, **SMALL)
    with pytest.raises(DraftMismatchError, match=r"has no mtp\.pte.*with --mtp"):
        open_mtp(read_model_folder(tiny_exported_folder("llama")), capacity=64)


def test_features_are_of_one_kind(llama: Path, mtp_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="ask for one of them"):
        export_folder(llama, tmp_path / "model", mtp=True, features=True, **SMALL)
    folder = read_model_folder(shutil.copytree(mtp_folder, tmp_path / "model"))
    head = write_head(tmp_path / "head", head_weights())
    with pytest.raises(ExportError, match="features of its own multi-token prediction layer"):
        export_draft(head, llama, folder.path)
    facts = json.loads((folder.path / "agentkv.json").read_text())
    facts["features"] = {"layers": [1, 1, 2], "width": 192}
    (folder.path / "agentkv.json").write_text(json.dumps(facts))
    with pytest.raises(DraftMismatchError, match="reads 64 per row, the target gives out 192"):
        open_mtp(read_model_folder(folder.path), capacity=64)


BESIDE = ["model.norm.weight", "lm_head.weight", "model.layers.0.mlp.up_proj.weight"]


@pytest.mark.parametrize(
    ("names", "root"),
    [
        (["model.embed_tokens.weight", "model.layers.2.eh_proj.weight"], "model.layers.2."),
        (["model.embed_tokens.weight", "model.layers.2.embed_tokens.weight", "model.layers.2.eh_proj.weight"],
         "model.layers.2."),
        (["model.language_model.embed_tokens.weight", "model.language_model.layers.2.eh_proj.weight"],
         "model.language_model.layers.2."),
        (["model.embed_tokens.weight", "mtp.fc.weight"], "mtp."),
        (["model.embed_tokens.weight", "model.mtp_layers.0.input_proj.weight"], "model.mtp_layers.0."),
        (["model.embed_tokens.weight", "model.layers.1.eh_proj.weight"], None),  # within the model
        (["model.embed_tokens.weight"], None),
        ([], None),
    ],
)  # fmt: skip
def test_layers_are_found_by_the_names_of_families(names: list[str], root: str | None) -> None:
    found = find_next_token([*names, *BESIDE], 2)
    assert (found and found.root) == root

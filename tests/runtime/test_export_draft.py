"""EAGLE-3 checkpoints: what their head computes, what is written, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from agentkv_runtime.errors import ExportError, ModelFolderError
from agentkv_runtime.export import export_draft
from agentkv_runtime.export.cpu.norms import linear_norms
from agentkv_runtime.export.draft_checkpoint import find_embedding, read_draft_checkpoint
from agentkv_runtime.export.lower_draft import lower_draft_head
from agentkv_runtime.export.norms import replace_norms
from agentkv_runtime.folder.draft_manifest import (
    DraftManifest,
    MeasuredAcceptance,
    read_draft_manifest,
    record_acceptance,
)
from agentkv_runtime.folder.manifest import FeatureInfo
from agentkv_runtime.folder.model_folder import file_fingerprint
from agentkv_runtime.hf.op import active_cache
from safetensors.torch import load_file

from tests.conftest import FolderFactory
from tests.models import VOCAB_SIZE
from tests.runtime.draft_heads import head_weights, reference, write_head
from tests.runtime.folders import write_folder
from tests.runtime.growing_cache import GrowingCache

LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "safetensors": ({}, {}),
    "bin, every name prefixed": ({}, {"pickled": True, "prefix": "model."}),
    "an embedding of its own": ({"embedding": True}, {}),
    "a smaller vocabulary": ({"draft_vocab": 96}, {}),
}


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_head_computes_what_was_published(layout: str, tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    weights_options, layout_options = LAYOUTS[layout]
    weights = head_weights(**weights_options)
    target = tiny_hf_folder("llama")
    checkpoint = read_draft_checkpoint(write_head(tmp_path / "head", weights, **layout_options))
    embedding = checkpoint.weights.get("embed_tokens.weight")
    assert (embedding is not None) == weights_options.get("embedding", False)
    if embedding is None:
        embedding = find_embedding(target)
        torch.testing.assert_close(embedding, load_file(target / "model.safetensors")["model.embed_tokens.weight"])
    head = checkpoint.build(embedding)
    tokens, features = torch.arange(5, 24), torch.randn(19, 192, generator=torch.Generator().manual_seed(1))

    hidden = head.fuse(features)
    torch.testing.assert_close(hidden, features @ weights["fc.weight"].T)
    want_logits, want_hidden = reference(weights, embedding[tokens], hidden)
    assert want_logits.std() > 0.5
    replace_norms(head, linear_norms)
    with active_cache(GrowingCache()):
        for a, b in ((0, 7), (7, 8), (8, 19)):
            rows = torch.tensor([b - a - 1, 0])
            logits, out = head(tokens[a:b], torch.arange(a, b), hidden[a:b], rows)
            torch.testing.assert_close(logits, want_logits[a:b][rows], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(out, want_hidden[a:b][rows], rtol=1e-4, atol=1e-4)


def test_what_is_written(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    target = tiny_hf_folder("llama")
    head = write_head(tmp_path / "head", head_weights(96))
    out = write_folder(tmp_path / "model", vocab_size=VOCAB_SIZE, features=FeatureInfo(layers=(1, 1, 2), width=192))
    shutil.copyfile(target / "tokenizer.json", out / "tokenizer.json")
    (out / "draft.pte").write_bytes(b"of a head before")
    said: list[str] = []
    described = export_draft(head, target, out, quant="8da4w", max_tokens=16, max_logits=8, progress=said.append)

    assert read_draft_manifest(out / "draft.json") == described
    assert described.fingerprint == file_fingerprint(out / "draft.pte")
    assert described.model_bytes == (out / "draft.pte").stat().st_size
    assert described.tokenizer_fingerprint == file_fingerprint(target / "tokenizer.json")
    assert (described.hidden_dim, described.feature_dim) == (64, 192)
    assert (described.draft_vocab_size, described.target_vocab_size) == (96, VOCAB_SIZE)
    assert [index + offset for index, offset in enumerate(described.d2t)][:3] == [1, 5, 9]
    assert (described.max_tokens, described.max_logits, described.n_kv_heads, described.head_dim) == (16, 8, 2, 16)
    assert (described.source, described.quantization) == ("head", "8da4w")
    assert said[0] == "loading torch"
    assert said[-3:] == ["writing the head", "running it once", "putting it in place"]
    assert sorted(path.name for path in out.iterdir()) == [
        "agentkv.json",
        "draft.json",
        "draft.pte",
        "model.pte",
        "tokenizer.json",
    ]


def test_one_partition_on_either_side_of_attention() -> None:
    head = build_head()
    lowered = lower_draft_head(head, max_tokens=16, max_logits=4)
    assert lowered.delegate_calls == {"AgentKVCPU": 2, "XnnpackBackend": 2}
    assert {"forward", "fuse", "kv_cache.n_layers"} <= set(lowered.program.methods | lowered.program.config_methods)


def build_head() -> Any:
    from agentkv_runtime.export.draft_head import DraftHead
    from transformers import LlamaConfig

    from tests.runtime.draft_heads import CONFIG

    return DraftHead(LlamaConfig.from_dict(CONFIG), 192)


def without(name: str) -> dict[str, torch.Tensor]:
    weights = head_weights()
    del weights[name]
    return weights


@pytest.mark.parametrize(
    ("weights", "config", "message"),
    [
        (lambda: without("fc.weight"), {}, r"no EAGLE-3 head: it has no fc\.weight"),
        (lambda: without("norm.weight"), {}, r"the head lacks norm\.weight"),
        (lambda: head_weights() | {"layers.1.bias": torch.zeros(2)}, {}, r"no EAGLE-3 head has layers\.1\.bias"),
        (lambda: head_weights(), {"intermediate_size": 80}, r"gate_proj\.weight is \[96, 64\].* makes it \[80, 64\]"),
        (lambda: head_weights() | {"fc.weight": torch.zeros(64, 128)}, {}, "reads 128 features .* gives out 192"),
        (lambda: head_weights(), {"vocab_size": 500}, f"vocabulary of 500 tokens, and .* has {VOCAB_SIZE}"),
        (lambda: head_weights(), {"hidden_size": 32}, r"needs an embedding of \[384, 32\], and .* one of \[384, 64\]"),
        (lambda: head_weights(96) | {"d2t": torch.full((96,), 999)}, {}, "d2t leads to token 1094 of 384"),
        (lambda: head_weights(96) | {"d2t": torch.zeros(96, dtype=torch.int64)}, {}, "they are not the same"),
        (lambda: head_weights(), {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rotates by 'dynamic'"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    weights: Any, config: dict[str, Any], message: str, tiny_hf_folder: FolderFactory, tmp_path: Path
) -> None:
    head = write_head(tmp_path / "head", weights(), **config)
    with pytest.raises(ExportError, match=message):
        export_draft(head, tiny_hf_folder("llama"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folders_that_do_not_fit_are_refused(tiny_hf_folder: FolderFactory, tmp_path: Path) -> None:
    target = tiny_hf_folder("llama")
    head = write_head(tmp_path / "head", head_weights())
    features = FeatureInfo(layers=(1, 1, 2), width=192)
    plain = write_folder(tmp_path / "plain", vocab_size=VOCAB_SIZE)
    other = write_folder(tmp_path / "other", vocab_size=VOCAB_SIZE, features=features)
    for (source, model, out), message in {
        (head, plain, tmp_path / "out"): r"gives out no features .*--features",
        (head, target, plain): r"gives out no features .*--features",
        (head, target, other): r"other is no export of .*tokenizer\.json differ",
        (head, other, other): r"Give the Hugging Face folder that it was exported from",
        (head, tmp_path / "nowhere", other): "nowhere: no such folder",
        (tmp_path / "nowhere", target, tmp_path / "out"): "nowhere: no such folder",
        (target, target, tmp_path / "out"): "it has no fc.weight",
    }.items():
        with pytest.raises(ExportError, match=message):
            export_draft(source, model, out)
    (head / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ExportError, match="its weights cannot be read"):
        export_draft(head, target, tmp_path / "out")
    (head / "model.safetensors").unlink()
    with pytest.raises(ExportError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        export_draft(head, target, tmp_path / "out")
    assert not (other / "draft.pte").exists()


DRAFT = DraftManifest(
    source="tiny",
    fingerprint="sha256:" + "0" * 64,
    model_bytes=10,
    hidden_dim=64,
    feature_dim=192,
    draft_vocab_size=2,
    target_vocab_size=8,
    d2t=(3, 6),
    max_tokens=16,
    max_logits=4,
    n_kv_heads=2,
    head_dim=16,
    tokenizer_fingerprint="sha256:" + "1" * 64,
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "medusa"}, "kind"),
        ({"d2t": [3, 7]}, "draft token 1 target token 8, of 8"),
        ({"d2t": [3]}, "1 entries for a vocabulary of 2"),
        ({"d2t": []}, "vocabularies of 2 and 8"),
        ({"format_version": 9}, "format 9; this version of agentkv reads 1"),
        ({"acceptance": {"levels": [1.5]}}, "acceptance.levels.0"),
        ({"acceptance": {"levels": ["often"]}}, "acceptance.levels.0"),
        ({"acceptance": {"levels": [0.5] * 17}}, "acceptance.levels"),
        ({"acceptance": {"calibration": [-0.1]}}, "acceptance.calibration.0"),
        ({"acceptance": 1}, "acceptance"),
    ],
)
def test_manifests_that_contradict_themselves(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "draft.json"
    path.write_text(json.dumps({**json.loads(DRAFT.model_dump_json()), **changes}))
    with pytest.raises(ModelFolderError, match=message):
        read_draft_manifest(path)


def test_acceptance_is_recorded_in_a_manifest_that_had_none(tmp_path: Path) -> None:
    path = tmp_path / "draft.json"
    facts = json.loads(DRAFT.model_dump_json())
    del facts["acceptance"]
    path.write_text(json.dumps(facts))
    assert read_draft_manifest(path).acceptance is None
    acceptance = MeasuredAcceptance(levels=(0.9, 0.8), calibration=(0.1,) * 16)
    record_acceptance(path, acceptance)
    assert read_draft_manifest(path) == DRAFT.model_copy(update={"acceptance": acceptance})
    assert [file.name for file in tmp_path.iterdir()] == ["draft.json"]


def test_a_measurement_that_cannot_be_recorded_leaves_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "draft.json"
    path.write_text(DRAFT.model_dump_json())
    (tmp_path / "draft.json.new").mkdir()
    with pytest.raises(ModelFolderError, match="cannot be replaced"):
        record_acceptance(path, MeasuredAcceptance())
    assert read_draft_manifest(path) == DRAFT

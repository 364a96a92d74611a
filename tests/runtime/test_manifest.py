"""`agentkv.json`: round trips, and refusals that name the file and the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.errors import ModelFolderError
from agentkv_runtime.folder.manifest import FORMAT_VERSION, FeatureInfo, Manifest, read_manifest, write_manifest
from pydantic import ValidationError

MANIFEST = Manifest(
    source="tiny",
    model_type="llama",
    fingerprint="sha256:" + "0" * 64,
    model_bytes=10,
    vocab_size=384,
    max_tokens=64,
    max_logits=8,
    n_layers=2,
    n_kv_heads=2,
    head_dim=16,
    windows=(0, 8),
    features=FeatureInfo(layers=(1, 1, 2), width=192),
    exported_with={"torch": "2.13.0"},
)


def changed(path: Path, **changes: Any) -> Path:
    value = {**json.loads(MANIFEST.model_dump_json()), **changes}
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not ...}))
    return path


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "agentkv.json"
    write_manifest(MANIFEST, path)
    assert read_manifest(path) == MANIFEST
    assert MANIFEST.feature_dim == 192
    assert read_manifest(changed(path, features=...)).feature_dim == 0
    assert json.loads(path.read_text())["format_version"] == FORMAT_VERSION


def test_manifests_that_say_no_dtype_are_float32(tmp_path: Path) -> None:
    assert read_manifest(changed(tmp_path / "m.json", dtype=...)).dtype == "fp32"


def test_fields_of_later_versions_of_the_same_format_are_ignored(tmp_path: Path) -> None:
    assert read_manifest(changed(tmp_path / "m.json", licence="BSD")) == MANIFEST


def test_another_format_is_refused_before_its_fields_are_read(tmp_path: Path) -> None:
    path = changed(tmp_path / "m.json", format_version=99, vocab_size=...)
    with pytest.raises(ModelFolderError, match="format 99; this version of agentkv reads 1"):
        read_manifest(path)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"vocab_size": ...}, "vocab_size"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"fingerprint": "sha256:12"}, "fingerprint"),
        ({"quantization": "q3"}, "quantization"),
        ({"dtype": "fp8"}, "dtype"),
        ({"windows": "all"}, "windows"),
        ({"format_version": ...}, "format_version"),
    ],
)
def test_bad_fields_are_named(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    path = changed(tmp_path / "m.json", **changes)
    with pytest.raises(ModelFolderError, match=rf"m\.json: {field}"):
        read_manifest(path)


@pytest.mark.parametrize("text", ["", "not json", "[]", "{"])
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(ModelFolderError, match=r"m\.json"):
        read_manifest(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="cannot be read"):
        read_manifest(tmp_path / "m.json")


def test_a_manifest_cannot_be_changed_by_accident() -> None:
    with pytest.raises(ValidationError):
        MANIFEST.vocab_size = 1  # type: ignore[misc]

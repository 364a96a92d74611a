"""Call formats of a Context: found, named, and of the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agentkv_runtime.formats import FAMILIES

import agentkv as kv


@pytest.mark.anyio
async def test_a_context_takes_a_format() -> None:
    async with kv.Context.open(kv.models.nano(), capacity=64) as ctx:
        assert ctx._home.format.name == "nano"
    async with kv.Context.open(kv.models.nano(), capacity=64, call_format="llama-json") as ctx:
        assert ctx._home.format.name == "llama-json"
    template = FAMILIES["hermes"].template()
    async with kv.Context.open(kv.models.nano(), capacity=64, call_format=template) as ctx:
        assert ctx._home.format.name == "response_template"
    for wrong in ("hermess", 3, {"fields": {}}):
        with pytest.raises(kv.InvalidInput, match="call_format"):
            async with kv.Context.open(kv.models.nano(), call_format=wrong):  # type: ignore[arg-type]
                pass


@pytest.mark.anyio
async def test_a_folder_whose_response_template_is_malformed_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "nano"
    folder.mkdir()
    for file in kv.models.nano().iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "response_template": {"fields": {}}}))
    async with kv.Context.open(folder, capacity=64) as ctx:
        with pytest.raises(kv.ModelError, match="fields of a response template"):
            _ = ctx._home.format
    async with kv.Context.open(folder, capacity=64, call_format="nano") as ctx:
        assert ctx._home.format.name == "nano"

"""The draft head that ships with the nano model fits it, changes nothing and saves forwards."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from agentkv_runtime.folder.draft_manifest import read_draft_manifest
from agentkv_runtime.folder.model_folder import file_fingerprint, read_model_folder

import agentkv as kv

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.nano.data import conversation

PROMPTS = 40
MAX_TOKENS = 120


def test_the_shipped_head_fits_the_shipped_model() -> None:
    folder = read_model_folder(kv.models.nano(draft=True))
    folder.verify()
    draft = read_draft_manifest(folder.path / "draft.json")
    assert draft.fingerprint == file_fingerprint(folder.path / "draft.pte")
    assert draft.model_bytes == (folder.path / "draft.pte").stat().st_size < 1_500_000
    assert draft.feature_dim == folder.manifest.feature_dim == 768
    assert draft.target_vocab_size == folder.manifest.vocab_size
    assert draft.tokenizer_fingerprint == file_fingerprint(folder.path / "tokenizer.json")


def test_the_weights_that_it_was_exported_from_are_here() -> None:
    weights = Path(__file__).resolve().parents[2] / "examples" / "nano" / "weights"
    config = json.loads((weights / "config.json").read_text())
    assert config["dtype"] == "float16"
    assert (weights / "model.safetensors").stat().st_size < 7_000_000
    assert file_fingerprint(weights / "tokenizer.json") == file_fingerprint(kv.models.nano() / "tokenizer.json")


@pytest.mark.anyio
async def test_held_out_prompts_take_a_third_of_the_forwards() -> None:
    rng = random.Random("held out")
    talks = [conversation(rng, "eval") for _ in range(PROMPTS)]
    said: dict[bool, list[list[int]]] = {}
    forwards: dict[bool, int] = {}
    for eagle in (False, True):
        strategy = kv.spec.Eagle(adaptive=False) if eagle else None
        async with kv.Context.open(kv.models.nano(draft=True), capacity=4096, speculative=strategy) as ctx:
            said[eagle], forwards[eagle] = [], 0
            for talk in talks:
                # As text: what the examples hold as content is what the model itself wrote, calls included.
                prompt = ctx.tokenizer.render_chat(talk.messages()[:-1], tools=talk.tools())
                async with await ctx.branch(prompt) as branch:
                    before = ctx.stats.forwards
                    generation = await branch.generate(max_tokens=MAX_TOKENS)
                    said[eagle].append(generation.tokens)
                    forwards[eagle] += ctx.stats.forwards - before
    assert said[True] == said[False]
    tokens = sum(map(len, said[True]))
    assert tokens / forwards[True] >= 3.0

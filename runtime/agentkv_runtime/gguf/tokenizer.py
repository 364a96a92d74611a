"""Conversion of a GGUF file's tokenizer into the files of a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from agentkv_runtime.errors import TokenizerError
from agentkv_runtime.gguf.models import MODELS
from agentkv_runtime.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from agentkv_runtime.gguf.vocabulary import TokenType, Vocabulary
from agentkv_runtime.notes import note

__all__ = ["make_tokenizer", "tokenizer_config", "write_tokenizer"]

_SENTENCEPIECE = PreTokenizer(cuts=(), bos=True, byte_level=False)
_SPECIAL = (TokenType.UNKNOWN, TokenType.CONTROL)
_ADDED = (*_SPECIAL, TokenType.USER_DEFINED)
_TURNS = ("bos", "eos", "eot", "eom")
_CONFIG = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown"}


def write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> Tokenizer:
    """Writes `tokenizer.json` and `tokenizer_config.json`; returns the tokenizer. Raises TokenizerError."""
    tokenizer = make_tokenizer(metadata)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = json.dumps(tokenizer_config(metadata), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")
    return tokenizer


def make_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Makes the tokenizer, in which ids are indices into `tokenizer.ggml.tokens`. Raises TokenizerError."""
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model not in MODELS:
        raise TokenizerError(
            f"tokenizer.ggml.model is {model!r:.40}: from GGUF files tokenizers of the kinds {', '.join(MODELS)} are "
            "read. Use the Hugging Face folder that the file was made from"
        )
    vocabulary, pre = Vocabulary(metadata), _pre_tokenizer(metadata)
    tokenizer: Tokenizer = MODELS[model](vocabulary, pre)
    added = _added_tokens(vocabulary)
    tokenizer.add_tokens(list(added.values()))
    _add_bos(tokenizer, vocabulary, pre)
    _check(tokenizer, vocabulary, added)
    return tokenizer


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The named tokens of the file, under their keys in tokenizer_config.json. Raises TokenizerError."""
    vocabulary = Vocabulary(metadata)
    ids = {token: vocabulary.id(name) for token, name in _CONFIG.items()}
    return {token: vocabulary.tokens[i] for token, i in ids.items() if i is not None}


def _pre_tokenizer(metadata: Mapping[str, Any]) -> PreTokenizer:
    model = metadata["tokenizer.ggml.model"]
    if model == "llama":
        return _SENTENCEPIECE
    name = metadata.get("tokenizer.ggml.pre") if model != "gemma4" else "gemma4"
    if name is None:
        note(
            "The GGUF file has no tokenizer.ggml.pre: texts are cut into words as llama.cpp cuts them then, which may "
            "be another way than the model was trained with. Convert it again, or download a newer file of it."
        )
        name = "default"
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise TokenizerError(
            f"tokenizer.ggml.pre is {name!r:.60}, which is not known, so that texts would become other tokens than the "
            "model was trained with. Use the Hugging Face folder that the file was made from"
        )
    return PRE_TOKENIZERS[name]


def _added_tokens(vocabulary: Vocabulary) -> dict[int, AddedToken]:
    """Tokens by id that are found in a text before it is cut: control and user-defined ones, and the ends of turns."""
    turns = {vocabulary.id(name) for name in _TURNS}
    return {
        i: AddedToken(token, special=kind != TokenType.USER_DEFINED, normalized=False)
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in _ADDED or i in turns
    }


def _add_bos(tokenizer: Tokenizer, vocabulary: Vocabulary, pre: PreTokenizer) -> None:
    """Makes texts begin with BOS, if the file says so, or if it says nothing and its pre-tokenizer does."""
    asked, bos = vocabulary.flag("add_bos_token"), vocabulary.id("bos")
    if asked and bos is None:
        raise TokenizerError(
            "tokenizer.ggml.add_bos_token is true, but there is no tokenizer.ggml.bos_token_id. Convert the model "
            "again, or download another file of it"
        )
    if bos is not None and (pre.bos if asked is None else asked):
        token = {"id": "BOS", "ids": [bos], "tokens": [vocabulary.tokens[bos]]}
        tokenizer.post_processor = processors.TemplateProcessing(single="BOS $A", special_tokens=[token])


def _check(tokenizer: Tokenizer, vocabulary: Vocabulary, added: Mapping[int, AddedToken]) -> None:
    """Raises TokenizerError if a token does not have the id that the file gives it."""
    texts = [token.content for token in added.values()]
    found = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    wrong = [i for i, ids in zip(added, found, strict=True) if ids != [i]]
    wrong += [i for i, token in enumerate(vocabulary.tokens) if tokenizer.id_to_token(i) != token]
    if wrong or tokenizer.get_vocab_size() != len(vocabulary.tokens):
        first = f", the first of them id {wrong[0]} ({vocabulary.tokens[wrong[0]]!r:.40})" if wrong else ""
        raise TokenizerError(
            f"the file's vocabulary of {len(vocabulary.tokens)} tokens does not come out as the file has it: "
            f"{len(wrong)} differ{first}. Use the Hugging Face folder that it was made from"
        )

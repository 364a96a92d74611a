"""Every vocabulary that llama.cpp is tested with, and the texts and ids that it is held to.

They lie in the source package of llama-cpp-python, which has all of llama.cpp; `make soak` fetches it by its name.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from agentkv_runtime.errors import TokenizerError
from agentkv_runtime.gguf.metadata import read_metadata
from agentkv_runtime.gguf.tokenizer import make_tokenizer, tokenizer_config
from agentkv_runtime.text.tokenizer import Tokenizer

from .sources import llama_cpp_files

REFUSED = {"bert-bge": "bert", "nomic-bert-moe": "t5"}  # encoders; what their tokenizers call themselves
BARE = {"aquila", "baichuan", "gpt-neox"}  # without texts
TEXTS = {
    **dict.fromkeys(("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm"), 47),
    **dict.fromkeys(("mpt", "phi-3", "qwen2", "refact", "starcoder"), 47),
    "gemma-4": 46,
    "qwen35": 51,
}


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files by their names."""
    folder = llama_cpp_files(tmp_path_factory.mktemp("references"), "/models/ggml-vocab-")
    return {path.stem.removeprefix("ggml-vocab-"): path for path in folder.rglob("ggml-vocab-*.gguf")}


@pytest.mark.soak
def test_every_file_is_read_or_refused_by_name(vocabularies: dict[str, Path]) -> None:
    read: dict[str, int] = {}
    refused: dict[str, str] = {}
    for name, path in sorted(vocabularies.items()):
        metadata = read_metadata(path)
        try:
            library = make_tokenizer(metadata)
        except TokenizerError as error:
            refused[name] = str(error)
            print(f"{name}: {error}")
            continue
        tokenizer = Tokenizer(library, config=tokenizer_config(metadata))
        wanted = references(path)
        wrong = [text for text, ids in wanted if tokenizer.encode(text, parse_special=False) != ids]
        print(f"{name}: {len(wanted) - len(wrong)} of {len(wanted)} texts" if wanted else f"{name}: read; has no texts")
        assert not wrong, f"{name}: {wrong[0]!r}"
        read[name] = len(wanted)
    assert read.items() >= {**TEXTS, **dict.fromkeys(BARE, 0)}.items()
    assert {name: model for name, model in REFUSED.items() if f"model is '{model}'" in refused[name]} == REFUSED
    assert len(read) + len(refused) == len(vocabularies)


def references(path: Path) -> list[tuple[str, list[int]]]:
    """Texts and their ids, where the file has some."""
    texts, ids = path.with_name(f"{path.name}.inp"), path.with_name(f"{path.name}.out")
    if not texts.exists():
        return []
    parts = texts.read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = ids.read_text().split("\n")[: len(parts)]  # a line each; some files end with one more
    return [(text, [int(i) for i in line.split()]) for text, line in zip(parts, lines, strict=True)]


@pytest.mark.soak
def test_llama_2s_vocabulary(vocabularies: dict[str, Path]) -> None:
    tokenizer = Tokenizer(make_tokenizer(read_metadata(vocabularies["llama-spm"])))
    assert tokenizer.encode(" Hello") == [29871, 15043]
    assert tokenizer.encode("<s>[INST] Hello [/INST]")[:3] == [1, 518, 25580]


@pytest.mark.soak
def test_llama_3s_vocabulary(vocabularies: dict[str, Path]) -> None:
    metadata = read_metadata(vocabularies["llama-bpe"])
    tokenizer = Tokenizer(make_tokenizer(metadata))
    assert tokenizer.encode("C\u1eeda Vi\u1ec7t") == [34, 91163, 101798]
    assert (tokenizer.bos_ids, tokenizer.vocab_size) == ([128000], len(metadata["tokenizer.ggml.tokens"]))


@pytest.mark.soak
def test_deepseeks_control_tokens(vocabularies: dict[str, Path]) -> None:
    for name in ("deepseek-llm", "deepseek-coder"):
        metadata = read_metadata(vocabularies[name])
        tokens, tokenizer = metadata["tokenizer.ggml.tokens"], Tokenizer(make_tokenizer(metadata))
        for i, kind in enumerate(metadata["tokenizer.ggml.token_type"]):
            if kind in (3, 4):
                assert (tokenizer.encode(tokens[i]), tokenizer.decode([i], skip_special=False)) == ([i], tokens[i])

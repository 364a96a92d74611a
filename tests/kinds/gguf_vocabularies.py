"""GGUF files of tiny vocabularies: of SentencePiece's kind, and of byte-level BPE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentkv_runtime.gguf.metadata import read_metadata
from agentkv_runtime.gguf.tokenizer import make_tokenizer, tokenizer_config
from agentkv_runtime.text.tokenizer import Tokenizer
from gguf import GGUFWriter
from tokenizers import pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


@dataclass(frozen=True)
class File:
    """What a file says under `tokenizer.`; `keys` are added, changed, or left out where they are None."""

    model: str
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float] | None = None
    merges: Sequence[str] | None = None
    keys: dict[str, Any] = field(default_factory=dict)

    def but(self, **keys: Any) -> File:
        """The same with other keys."""
        return replace(self, keys={**self.keys, **keys})

    @property
    def metadata(self) -> dict[str, Any]:
        """The keys with their full names."""
        lists = {"tokens": self.tokens, "token_type": self.types, "scores": self.scores, "merges": self.merges}
        every = {"model": self.model, **lists, **self.keys}
        return {f"tokenizer.ggml.{name}": value for name, value in every.items() if value is not None}

    def write(self, path: Path) -> Path:
        """Writes the file, without any tensor."""
        writer = GGUFWriter(path, "llama")
        for key, value in self.metadata.items():
            if isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_int32(key, value)
            else:
                writer.add_array(key, list(value))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    def open(self, folder: Path, **config: Any) -> Tokenizer:
        """The tokenizer that is read from it."""
        metadata = read_metadata(self.write(folder / "vocabulary.gguf"))
        described = {**tokenizer_config(metadata), **config}
        return Tokenizer(make_tokenizer(metadata), config=described, chat_template=described.get("chat_template"))


def sentencepiece(*words: str, added: Sequence[tuple[str, int]] = (), **keys: Any) -> File:
    """`words` are tokens beside bytes and letters, the best score first; `added` come behind them, with their types."""
    first = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    byte_tokens = [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    letters = dict.fromkeys(["\u2581", *map(chr, range(33, 127)), *"".join(words)])
    normal = [(token, NORMAL) for token in dict.fromkeys([*words, *letters])]
    tokens = [*first, *byte_tokens, *normal, *added]
    scores = [-float(i) for i in range(len(tokens))]
    return File("llama", [token for token, _ in tokens], [kind for _, kind in tokens], scores=scores, keys=keys)


def byte_level(*merges: str, added: Sequence[tuple[str, int]] = (), **keys: Any) -> File:
    """`merges` make tokens of the 256 bytes, in the alphabet of byte-level BPE; `added` come behind them."""
    made = [merge.replace(" ", "") for merge in merges]
    normal = dict.fromkeys([*sorted(pre_tokenizers.ByteLevel.alphabet()), *made])
    tokens = [*((token, NORMAL) for token in normal), *added]
    return File("gpt2", [token for token, _ in tokens], [kind for _, kind in tokens], merges=merges, keys=keys)


def joining(text: str, pre: str) -> File:
    """A vocabulary in which whatever a text is cut into becomes one token a piece."""
    [(spelled, _)] = _BYTE_LEVEL.pre_tokenize_str(text)
    ends = range(len(spelled) + 1)
    pairs = ((spelled[i:j], spelled[j:k]) for i in ends for j in ends[i + 1 :] for k in ends[j + 1 :])
    return byte_level(*dict.fromkeys(" ".join(pair) for pair in pairs), pre=pre)

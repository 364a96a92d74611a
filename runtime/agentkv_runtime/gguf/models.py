"""Tokenizers by `tokenizer.ggml.model`, without control tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from agentkv_runtime.gguf.pre_tokenizers import PreTokenizer
from agentkv_runtime.gguf.vocabulary import TokenType, Vocabulary

__all__ = ["MODELS"]

_SPACE = "\u2581"
_MERGED = (TokenType.NORMAL, TokenType.USER_DEFINED)


def sentencepiece(vocabulary: Vocabulary, _: PreTokenizer) -> Tokenizer:
    """SentencePiece's BPE, which merges the neighbours whose token has the highest score, the leftmost first."""
    model = models.BPE(
        vocab=vocabulary.ids,
        merges=list(_scored_merges(vocabulary)),
        unk_token=vocabulary.tokens[vocabulary.id("unknown") or 0],
        fuse_unk=True,
        byte_fallback=True,
    )
    prefixed = vocabulary.flag("add_space_prefix") is not False
    return _spaced(Tokenizer(model), prefixed)


def bpe(vocabulary: Vocabulary, pre: PreTokenizer) -> Tokenizer:
    """BPE by merges, over bytes or over characters."""
    model = models.BPE(
        vocab=vocabulary.ids,
        merges=vocabulary.merges,
        ignore_merges=pre.ignore_merges,
        byte_fallback=not pre.byte_level,
    )
    cuts: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in pre.cuts]
    tokenizer = Tokenizer(model)
    if pre.byte_level:
        if pre.nfc:
            tokenizer.normalizer = normalizers.NFC()
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer = _spaced(tokenizer, prefixed=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    return tokenizer


MODELS: dict[str, Callable[[Vocabulary, PreTokenizer], Tokenizer]] = {
    "llama": sentencepiece,
    "gpt2": bpe,
    "gemma4": bpe,
}
"""Functions that make a tokenizer of a vocabulary, by `tokenizer.ggml.model`."""


def _spaced(tokenizer: Tokenizer, prefixed: bool) -> Tokenizer:
    """Adds U+2581 for spaces and byte fallback to a tokenizer; with `prefixed`, also a space in front of texts."""
    visible = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), visible]) if prefixed else visible
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return tokenizer


def _scored_merges(vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    """Yields every pair of tokens that spells a third, in the order of the third's score, highest first."""
    mergeable = {
        token: score
        for token, kind, score in zip(vocabulary.tokens, vocabulary.types, vocabulary.scores, strict=True)
        if kind in _MERGED
    }
    for token in sorted(mergeable, key=mergeable.__getitem__, reverse=True):
        for border in range(1, len(token)):
            if token[:border] in mergeable and token[border:] in mergeable:
                yield token[:border], token[border:]

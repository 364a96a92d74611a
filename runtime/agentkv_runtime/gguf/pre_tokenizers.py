r"""Pre-tokenizers by the value of `tokenizer.ggml.pre`, the name that llama.cpp's converter gives a model's tokenizer.

A pre-tokenizer cuts texts before merging. The expressions are those of the models' own `tokenizer.json`, in the syntax
of the library tokenizers.

Each expression of a family cuts the pieces that the ones before it made, into matches and the text between them.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRE_TOKENIZERS", "PreTokenizer"]


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Expressions and settings of one pre-tokenizer."""

    cuts: tuple[str, ...]
    ignore_merges: bool = False
    """Whether a piece that is in the vocabulary is one token, even if merges would give another result."""
    bos: bool = False
    """Whether texts begin with BOS if the file does not say."""
    nfc: bool = False
    """Whether texts are brought into Unicode's normal form C first."""
    byte_level: bool = True
    """Whether tokens use the alphabet of byte-level BPE; otherwise they are characters, with U+2581 for spaces."""


def _any(*expressions: str) -> str:
    return "|".join(expressions)


# Of GPT-2, and of GPT-4 and those that came after it.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"  # what a word takes with it
_WORD = _BEFORE + r"\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SIGNS_AND_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LINES = r"\s*[\r\n]+"
_SPACES = r"\s+(?!\S)|\s+"
_DIGIT, _DIGITS_BY_3 = r"\p{N}", r"\p{N}{1,3}"
_GPT4_BY_1 = _any(_ENGLISH, _WORD, _DIGIT, _SIGNS, _LINES, _SPACES)
_GPT4_BY_3 = _any(_ENGLISH, _WORD, _DIGITS_BY_3, _SIGNS, _LINES, _SPACES)

# Of GPT-4o: words end where lower case is followed by upper case.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (f"{_BEFORE}{_UPPER}*{_LOWER}+", f"{_BEFORE}{_UPPER}+{_LOWER}*")
_CASED_ENGLISH = tuple(f"{word}{_ENGLISH}?" for word in _CASED)
_GPT4O = _any(*_CASED_ENGLISH, _DIGITS_BY_3, _SIGNS_AND_PATHS, _LINES, _SPACES)

# Of DeepSeek's third version.
_LATIN_BEHIND_SIGN = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_BARE_WORD = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_CHINESE_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3 = _any(_LATIN_BEHIND_SIGN, _BARE_WORD, r" ?[\p{P}\p{S}]+[\r\n]*", _LINES, _SPACES)
_SPARK = _any(_LATIN_BEHIND_SIGN, _BARE_WORD, r" ?[\p{P}\p{S}]+", r"[\r\n]", _SPACES)

# Of its first: words of letters that have two cases, signs of Latin and Chinese texts.
_TWO_CASED_WORD = (
    r"\s?["
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943]+"
)
_LATIN_AND_CHINESE_SIGNS = r"\s?[!-/:-~" + "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

# Of others.
_MARKED_WORD = _BEFORE + r"[\p{L}\p{M}]+"
_PHRASE = _BEFORE + r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
_LINE_BY_LINE = r"[^\n]+|\n+"
_BY_3_FROM_THE_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_HALVED_SPACES = _any(*(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1)), r"\s{1,2}(?!\S)", r"\s")
_BLOOM = r" ?[^(\s|.,!?" + "\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_NOT_HAN_UPPER, _NOT_HAN_LOWER = (rf"{letters[:-1]}&&[^\p{{Han}}]]" for letters in (_UPPER, _LOWER))
_NOT_HAN_WORDS = (
    f"{_BEFORE}{_NOT_HAN_UPPER}*{_NOT_HAN_LOWER}+{_ENGLISH}?",
    f"{_BEFORE}{_NOT_HAN_UPPER}+{_NOT_HAN_LOWER}*{_ENGLISH}?",
)
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    "\ufe30-\ufe4f]+|[\u3105-\u312f]+|" + _CHINESE_AND_KANA
)
_AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)


def _named(names: str, *cuts: str, **settings: bool) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names.split(), PreTokenizer(cuts, **settings))


PRE_TOKENIZERS = {
    **_named("default", r"[\p{P}$+<=>\^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    **_named("gpt-2 phi-2 gigachat a.x-4.0 mellum modern-bert jais trillion granite-docling exaone4", _GPT2),
    **_named("jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe", _GPT2),
    **_named("mpt olmo", _GPT2, nfc=True),
    **_named("starcoder refact smollm codeshell exaone minerva-7b mellum2", _DIGIT, _GPT2),
    **_named("command-r", _DIGIT, _GPT2, nfc=True),
    **_named("falcon", r"[\p{P}$+<=>\^~|`]+", _GPT2, "[0-9][0-9][0-9]"),
    **_named("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral", _GPT4_BY_3, ignore_merges=True, bos=True),
    **_named("midm-2.0 lfm2 jina-v5-nano", _GPT4_BY_3, ignore_merges=True, bos=True),
    **_named("glm4 glm5", _GPT4_BY_3, ignore_merges=True),
    **_named("chatglm-bpe dbrx smaug-bpe", _GPT4_BY_3),
    **_named("qwen2 deepseek-r1-qwen kormo f2llmv2", _GPT4_BY_1, nfc=True),
    **_named("megrez stablelm2 hunyuan solar-open grok-2", _GPT4_BY_1),
    # Qwen's own file also brings texts into normal form C; llama.cpp's reference texts of this name are not.
    **_named("qwen35", _any(_ENGLISH, _MARKED_WORD, _DIGIT, r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _LINES, _SPACES)),
    **_named("laguna", _LINE_BY_LINE, _GPT4_BY_1),
    **_named("ufakzeka", _any(_WORD, _DIGIT, _SIGNS, _LINES, _SPACES)),
    **_named("minicpm5", _DIGITS_BY_3, _any(_ENGLISH, _WORD, r"\p{N}+", _SIGNS, _LINES, _SPACES), ignore_merges=True),
    **_named("jais-2", _any(_ENGLISH, _WORD, _DIGITS_BY_3, _SIGNS, _LINES, _HALVED_SPACES)),
    **_named("seed-coder", _any(_ENGLISH, _WORD, _DIGIT, r" ?[^\s\p{L}\p{N}\r\n]+", _LINES, _SPACES)),
    **_named("bailingmoe bailingmoe2 llada-moe", _BAILING),
    **_named("exaone-moe", _any(_ENGLISH, _PHRASE, _DIGIT, r" ?[^\s\p{L}\p{N}]+[\r\n/]?", r"\s*[\r\n]", _SPACES)),
    **_named("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT4O),
    **_named("granite-embed-multi-97m", _GPT4O, ignore_merges=True),
    **_named("tiny_aya cohere2moe", _BY_3_FROM_THE_RIGHT, _GPT4O),
    **_named("tekken", _any(*_CASED, _DIGIT, _SIGNS_AND_PATHS, _LINES, _SPACES), ignore_merges=True, bos=True),
    **_named("youtu", _YOUTU, _any(*_CASED_ENGLISH, _DIGIT, _SIGNS_AND_PATHS, _LINES, _SPACES), ignore_merges=True),
    **_named("kimi-k2", _any(r"\p{Han}+", *_NOT_HAN_WORDS, _DIGITS_BY_3, _SIGNS, _LINES, _SPACES)),
    **_named("deepseek-llm", r"[\r\n]", _TWO_CASED_WORD, _LATIN_AND_CHINESE_SIGNS, r"\s+$", _EAST_ASIAN, _DIGIT),
    **_named("deepseek-coder", r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _DIGIT),
    **_named("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DIGITS_BY_3, _CHINESE_AND_KANA, _DEEPSEEK3),
    **_named("spark2_5", _DIGITS_BY_3, _CHINESE_AND_KANA, _SPARK, _DIGIT),
    **_named("afmoe", _BY_3_FROM_THE_RIGHT, _AFMOE_SCRIPTS, _DEEPSEEK3),
    **_named("poro-chat bloom gpt3-finnish", _BLOOM),
    **_named("viking", _BLOOM, _DIGIT),
    **_named("superbpe", r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    **_named(
        "chameleon",
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        _DIGIT,
        r"[\p{P}!-/:-@\[-`{-~]",
        _GPT2,
        bos=True,
    ),
    **_named("gemma4 granite-embed-multi-311m", _LINE_BY_LINE, bos=True, byte_level=False),
    **_named("sarvam-moe", _LINE_BY_LINE, byte_level=False),
}
"""The names that llama.cpp knows, without `whitespace`, whose models are not causal."""

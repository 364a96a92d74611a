"""Tokenizers of GGUF files, of every kind that is read: small files made here, each a row of a table.

A new case is one more row: of `CUTS` how a `tokenizer.ggml.pre` cuts a text, of `TEXTS` which tokens a vocabulary makes
of one, of `BEGINNINGS` what a file puts in front of texts, of `REFUSED` what is wrong with a vocabulary.
`gguf_vocabularies.py` has the small vocabularies. `test_gguf_references.py` holds the reader to llama.cpp's own files,
in `make soak`.
"""

from __future__ import annotations

import json
import logging
import random
import re
import struct
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from agentkv_runtime.errors import ExportError, GGUFError, TokenizerError
from agentkv_runtime.gguf.metadata import read_metadata
from agentkv_runtime.gguf.models import MODELS
from agentkv_runtime.gguf.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from agentkv_runtime.gguf.tokenizer import make_tokenizer, write_tokenizer
from agentkv_runtime.gguf.vocabulary import Vocabulary
from agentkv_runtime.notes import shown_by
from agentkv_runtime.sources.gguf import load_gguf
from agentkv_runtime.sources.source import described
from agentkv_runtime.text.added_tokens import ControlledText
from agentkv_runtime.text.tokenizer import Tokenizer
from gguf import GGMLQuantizationType

import agentkv as kv
from tests.agentkv.chat.test_continuation import Log
from tests.kinds.gguf_vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    File,
    byte_level,
    joining,
    sentencepiece,
)
from tests.models import tiny_model, tiny_spec
from tests.runtime.sources.gguf_files import write_gguf

# How families cut a text into words, as the models' own tokenizer.json says; names of one family are one row.
SIGNS = "It'S  1234567 (hi)!!\n\n  y"
SCRIPTS = "aB/CDe\u4e2d\u6587\u304b'll 5."
CUTS = [
    ("default", SIGNS, ["It", "'", "S", " ", " ", "123", "456", "7", " ", "(", "hi", ")!!", "\n\n ", " y"]),
    ("gpt-2", SIGNS, ["It", "'", "S", " ", " 1234567", " (", "hi", ")!!", "\n\n ", " y"]),
    ("smollm", SIGNS, ["It", "'", "S", "  ", *"1234567", " (", "hi", ")!!", "\n\n ", " y"]),
    ("smollm", "    5", ["    ", "5"]),
    ("falcon", SIGNS, ["It", "'", "S", " ", " ", "123", "456", "7", " ", "(", "hi", ")!!", "\n\n ", " y"]),
    ("llama-bpe", SIGNS, ["It", "'S", " ", " ", "123", "456", "7", " (", "hi", ")!!\n\n", " ", " y"]),
    ("qwen2", SIGNS, ["It", "'S", " ", " ", *"1234567", " (", "hi", ")!!\n\n", " ", " y"]),
    ("qwen2", "a\u0323b", ["\u1ea1b"]),  # normal form C, as Qwen's own file has it
    ("qwen35", "a\u0323b", ["a\u0323b"]),
    ("megrez", "a\u0323b", ["a", "\u0323b"]),
    ("laguna", SIGNS, ["It", "'S", " ", " ", *"1234567", " (", "hi", ")!!", "\n\n", " ", " y"]),
    ("ufakzeka", "It's", ["It", "'s"]),
    ("minicpm5", SIGNS, ["It", "'S", "  ", "123", "456", "7", " (", "hi", ")!!\n\n", " ", " y"]),
    ("jais-2", "a" + 7 * " " + "b", ["a", "    ", "  ", " b"]),
    ("seed-coder", SIGNS, ["It", "'S", " ", " ", *"1234567", " (", "hi", ")!!", "\n\n", " ", " y"]),
    ("bailingmoe2", "a\n\nb", ["a", "\n\n", "b"]),
    ("exaone-moe", SIGNS, ["It", "'S", " ", " ", *"1234567", " (", "hi", ")!!\n", "\n", " ", " y"]),
    ("exaone-moe", "two words", ["two words"]),
    ("gpt-4o", SIGNS, ["It'S", " ", " ", "123", "456", "7", " (", "hi", ")!!\n\n", " ", " y"]),
    ("gpt-4o", SCRIPTS, ["a", "B", "/CDe\u4e2d\u6587\u304b'll", " ", "5", "."]),
    ("tiny_aya", SIGNS, ["It'S", "  ", "1", "234", "567", " (", "hi", ")!!\n\n", " ", " y"]),
    ("tekken", SCRIPTS, ["a", "B", "/CDe\u4e2d\u6587\u304b", "'ll", " ", "5", "."]),
    ("youtu", SCRIPTS, ["a", "B", "/CDe", "\u4e2d\u6587\u304b", "'ll", " ", "5", "."]),
    ("kimi-k2", SCRIPTS, ["a", "B", "/CDe", "\u4e2d\u6587", "\u304b'll", " ", "5", "."]),
    ("deepseek-llm", SCRIPTS, ["aB", "/", "CDe", "\u4e2d\u6587\u304b", "'", "ll", " ", "5", "."]),
    ("deepseek-coder", SCRIPTS, ["aB", "/", "CDe", "\u4e2d\u6587\u304b", "'", "ll", " ", "5", "."]),
    ("deepseek-v3", SCRIPTS, ["aB", "/CDe", "\u4e2d\u6587\u304b", "'ll", " ", "5", "."]),
    ("deepseek-v3", SIGNS, ["It", "'S", "  ", "123", "456", "7", " (", "hi", ")!!\n\n", " ", " y"]),
    ("spark2_5", SIGNS, ["It", "'S", "  ", *"1234567", " (", "hi", ")!!", "\n", "\n", " ", " y"]),
    ("afmoe", SIGNS, ["It", "'S", "  ", "1", "234", "567", " (", "hi", ")!!\n\n", " ", " y"]),
    ("bloom", SIGNS, ["It'S", " ", " 1234567", " (", "hi", ")!!\n\n ", " y"]),
    ("viking", SIGNS, ["It'S", " ", " ", *"1234567", " (", "hi", ")!!\n\n ", " y"]),
    ("superbpe", SIGNS, ["It'S  ", "1", "234", "567", " (hi)!!\n\n  y"]),
    ("chameleon", SIGNS, ["It", "'", "S", "  ", *"1234567", " ", "(", "hi", ")", "!", "!", "\n", "\n", "  ", "y"]),
]


@pytest.mark.parametrize(("pre", "text", "pieces"), CUTS)
def test_texts_are_cut_as_the_name_says(tmp_path: Path, pre: str, text: str, pieces: list[str]) -> None:
    tokenizer = joining("".join(pieces), pre).open(tmp_path)
    assert [tokenizer.decode([i]) for i in tokenizer.encode(text)] == pieces


def test_every_family_that_cuts_bytes_has_a_row() -> None:
    assert {PRE_TOKENIZERS[pre].cuts for pre, _, _ in CUTS} == {
        family.cuts for family in PRE_TOKENIZERS.values() if family.byte_level
    }


# Which tokens texts become, as the file spells them. Control tokens are those that a template writes.
WORDS = ("\u2581H", "el", "lo", "ello", "Hello", "\u2581Hello", "\u2581[", "IN", "ST", "INST", "ab")
SPM = sentencepiece(*WORDS)
UNPREFIXED = SPM.but(add_space_prefix=False)
GPT2 = byte_level("h e", "l l", "he ll", "hell o", pre="gpt-2")
BOS, USER = "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cUser\uff5c>"
DEEPSEEK = byte_level("h e", added=[(BOS, CONTROL), (USER, CONTROL)], pre="deepseek-v3", bos_token_id=257)
VIET = "Vi\u00e1\u00bb\u0129t"  # the bytes of a word
LLAMA3 = byte_level("h e", added=[(VIET, NORMAL), ("<|eot_id|>", CONTROL)], pre="llama-bpe")
GEMMA4 = replace(sentencepiece("\u2581a", "\n\n"), model="gemma4", merges=["\u2581 a", "\n \n"], scores=None)
BYTELESS = replace(SPM, types=[kind if kind != BYTE else UNUSED for kind in SPM.types]).but(
    tokens=[f"{token}?" if kind == BYTE else token for token, kind in zip(SPM.tokens, SPM.types, strict=True)]
)
TEXTS = [
    (SPM, "", []),
    (SPM, "Hello", ["\u2581Hello"]),
    (SPM.but(padding_token_id=99999), "Hello", ["\u2581Hello"]),  # nothing is padded
    (SPM, " Hello", ["\u2581", "\u2581Hello"]),
    (SPM, "  Hello", ["\u2581", "\u2581", "\u2581Hello"]),
    (SPM, "<s>[INST]", ["<s>", "\u2581[", "INST", "]"]),
    (SPM, "<s></s>ab</s> ab", ["<s>", "</s>", "\u2581", "ab", "</s>", "\u2581", "\u2581", "ab"]),
    (SPM, "\u00e9\n", ["\u2581", "<0xC3>", "<0xA9>", "<0x0A>"]),
    (SPM, "<0x41>", ["\u2581", *"<0x41>"]),  # spells a byte's token, and is text
    (BYTELESS, "\u00e9\u00e8a", ["\u2581", "<unk>", "a"]),
    (UNPREFIXED, "Hello", ["Hello"]),
    (UNPREFIXED, "<s>Hello Hello", ["<s>", "Hello", "\u2581Hello"]),
    (sentencepiece("bc", "ab"), "abc", ["\u2581", "a", "bc"]),  # the better score
    (sentencepiece("aa"), "aaa", ["\u2581", "aa", "a"]),  # of the same, the leftmost
    (sentencepiece("ab", added=[("abc", UNUSED)]), "abc", ["\u2581", "ab", "c"]),
    (sentencepiece(added=[("  ", USER_DEFINED)]), "a  b", ["\u2581", "a", "  ", "\u2581", "b"]),
    (sentencepiece(added=[("\u2581<PRE>", CONTROL)]), "\u2581<PRE>a", ["\u2581<PRE>", "\u2581", "a"]),
    (GPT2, "hello hello", ["hello", "\u0120", "hello"]),
    (GPT2.but(merges=["h e", "l l", "l l", "he ll", "hell o"]), "hello", ["hello"]),
    (DEEPSEEK, f"{BOS}{USER}he 5", [BOS, USER, "he", "\u0120", "5"]),
    (DEEPSEEK, "he\uff5cUser\uff5c", ["he", "\u00ef", "\u00bd", "\u013e", *"User", "\u00ef", "\u00bd", "\u013e"]),
    (
        byte_level("h e", added=[("\uff2f\u00f5", USER_DEFINED)], pre="gpt-2"),
        "a\uff2f\u00f5b",
        ["a", "\uff2f\u00f5", "b"],
    ),
    (LLAMA3, "Vi\u1ec7t<|eot_id|>", [VIET, "<|eot_id|>"]),
    (LLAMA3.but(pre="smaug-bpe"), "Vi\u1ec7t", [*VIET]),
    (GEMMA4, " a\n\n\u00e9", ["\u2581a", "\n\n", "<0xC3>", "<0xA9>"]),
]


@pytest.mark.parametrize(("file", "text", "spelled"), TEXTS)
def test_texts_become_the_tokens_of_the_vocabulary(tmp_path: Path, file: File, text: str, spelled: list[str]) -> None:
    tokens = file.metadata["tokenizer.ggml.tokens"]
    tokenizer = file.open(tmp_path)
    ids = tokenizer.encode(text)
    assert [tokens[i] for i in ids] == spelled
    if file.model == "gpt2" or not {"<unk>", "<s>", "</s>", "  "} & {*spelled}:  # behind those the space stays
        assert tokenizer.decode(ids, skip_special=False) == text
    write_tokenizer(read_metadata(tmp_path / "vocabulary.gguf"), tmp_path)
    assert Tokenizer.from_folder(tmp_path).encode(text) == ids


@pytest.mark.parametrize("file", [SPM, UNPREFIXED, DEEPSEEK, LLAMA3, GEMMA4, *(file for file, _, _ in TEXTS[12:])])
def test_every_id_is_what_the_file_says(tmp_path: Path, file: File) -> None:
    tokens, types = file.metadata["tokenizer.ggml.tokens"], file.metadata["tokenizer.ggml.token_type"]
    tokenizer = file.open(tmp_path)
    assert tokenizer.vocab_size == len(tokens)
    for i, token in enumerate(tokens):
        if types[i] in (UNKNOWN, CONTROL, USER_DEFINED):
            assert tokenizer.encode(token) == [i]
            assert token.isspace() or tokenizer.decode([i], skip_special=False) == token
            assert tokenizer.token_bytes()[i] == token.encode()
            assert token.isspace() or i not in tokenizer.encode(token, parse_special=False)


def test_single_letters_that_are_added_are_text(tmp_path: Path) -> None:
    letter = "\u00f5"  # DeepSeek's files have it instead of a byte that no text has
    types = [USER_DEFINED if token == letter else NORMAL for token in GPT2.tokens]
    tokenizer = replace(GPT2, types=types).open(tmp_path)
    ids = [GPT2.tokens.index(token) for token in ("he", letter, "a")]
    assert tokenizer.encode(f"he{letter}a") == tokenizer.encode(f"he{letter}a", parse_special=False) == ids
    assert tokenizer.decode(ids) == f"he{letter}a"
    assert letter not in tokenizer.added_ids


BEGINNINGS = [
    (SPM, ["<s>"]),
    (SPM.but(bos_token_id=2), ["</s>"]),
    (SPM.but(add_bos_token=False), []),
    (GEMMA4.but(bos_token_id=1), ["<s>"]),
    (LLAMA3, []),  # names none
    (LLAMA3.but(bos_token_id=258), ["<|eot_id|>"]),
    (LLAMA3.but(bos_token_id=258, add_bos_token=False), []),
    (DEEPSEEK, []),
    (DEEPSEEK.but(add_bos_token=True), [BOS]),
]


@pytest.mark.parametrize(("file", "spelled"), BEGINNINGS)
def test_texts_begin_as_the_file_or_its_family_says(tmp_path: Path, file: File, spelled: list[str]) -> None:
    tokenizer = file.open(tmp_path)
    assert [file.tokens[i] for i in tokenizer.bos_ids] == spelled
    assert tokenizer.encode("a", bos=True) == tokenizer.bos_ids + tokenizer.encode("a")


# Parts of a conversation: what stands before a part says whether it gets a space of its own.
PARTS = [
    (SPM, "Hello", True, ["\u2581Hello"]),
    (SPM, "Hello", False, ["Hello"]),
    (SPM, " Hello", False, ["\u2581Hello"]),
    (SPM, "ab</s>ab", False, ["ab", "</s>", "\u2581", "ab"]),
    (SPM, "</s>ab", True, ["</s>", "\u2581", "ab"]),
    (UNPREFIXED, "Hello", True, ["Hello"]),
    (DEEPSEEK, f"he{USER}he", False, ["he", USER, "he"]),
    (DEEPSEEK, f"he{USER}he", True, ["he", USER, "he"]),
]


@pytest.mark.parametrize(("file", "text", "after_control", "spelled"), PARTS)
def test_parts_of_a_text_go_on_from_what_stands_before(
    tmp_path: Path, file: File, text: str, after_control: bool, spelled: list[str]
) -> None:
    ids = file.open(tmp_path).encode_next(ControlledText(text), after_control=after_control)
    assert [file.tokens[i] for i in ids] == spelled


def test_control_tokens_come_from_the_template_alone(tmp_path: Path) -> None:
    template = "{% for m in messages %}<s>[INST]{{ m.content }}</s>{% endfor %}"
    tokenizer = SPM.open(tmp_path, chat_template=template)
    ids = tokenizer.apply_chat([{"role": "user", "content": "</s>"}, {"role": "user", "content": " Hello"}])
    first = ["<s>", "\u2581[", "INST", "]", *"</s>", "</s>"]
    assert [SPM.tokens[i] for i in ids] == [*first, "<s>", "\u2581[", "INST", "]", "\u2581Hello", "</s>"]


def test_what_a_template_writes_behind_a_reply_gets_no_space_of_its_own(tmp_path: Path) -> None:
    turns = "{% for m in messages %}{{ m.role }}={{ m.content }}\n{% endfor %}"
    template = turns + "{% if add_generation_prompt %}assistant={% endif %}"
    log = Log(SPM.open(tmp_path, chat_template=template))
    log.extend([{"role": "user", "content": "Hello"}])
    log.tokens.extend(SPM.tokens.index(token) for token in ("Hello", "ab"))
    assert log.extend([{"role": "user", "content": "ab"}]) == 0
    table = log.tokenizer.token_bytes()
    spelled = b"".join(table[i] for i in log.tokens).decode()
    assert spelled == " user=Hello\nassistant=Helloab\nuser=ab\nassistant="


def test_merging_by_score_is_that_of_sentencepiece(tmp_path: Path) -> None:
    rng = random.Random(7)
    for _ in range(20):
        words = dict.fromkeys("".join(rng.choices("\u2581ab", k=rng.randint(2, 5))) for _ in range(25))
        file = sentencepiece(*words)
        tokenizer = file.open(tmp_path)
        scores = {token: score for token, score in zip(file.tokens, file.scores or (), strict=True)}
        for _ in range(50):
            text = "".join(rng.choices(" ab", k=rng.randint(1, 12)))
            assert [file.tokens[i] for i in tokenizer.encode(text)] == merged(
                "\u2581" + text.replace(" ", "\u2581"), scores
            )


def merged(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule, done as it is said: always the best pair, the leftmost of the same."""
    pieces = list(text)
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not pairs:
            return pieces
        _, i = min(pairs)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


def test_nanos_vocabulary_is_read_as_its_folder_is(tmp_path: Path) -> None:
    folder = Path(kv.models.nano())
    own = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)  # a cut that GGUF files can name
    added = {i: USER_DEFINED if not token.special else CONTROL for i, token in own.get_added_tokens_decoder().items()}
    tokens = [own.id_to_token(i) for i in range(own.get_vocab_size())]
    merges = [" ".join(pair) for pair in json.loads(own.to_str())["model"]["merges"]]
    types = [added.get(i, NORMAL) for i in range(len(tokens))]
    read = File("gpt2", tokens, types, merges=merges, keys={"pre": "gpt-2"}).open(tmp_path)
    theirs, rng = Tokenizer(own), random.Random(3)
    parts = [
        "    ",
        "\n\n",
        "def f(x):",
        " 3.14",
        "\u4e2d\u6587",
        "e\u0301",
        "\U0001f680",
        "it's",
        "<",
        *read.added_ids,
    ]
    assert (read.added_ids, read.token_bytes()) == (theirs.added_ids, theirs.token_bytes())
    for _ in range(2000):
        text = "".join(rng.choice([*parts, chr(rng.randrange(0xD800))]) for _ in range(rng.randint(1, 12)))
        assert read.encode(text) == theirs.encode(text)
        assert read.encode(text, parse_special=False) == theirs.encode(text, parse_special=False)


def test_a_file_that_does_not_say_how_it_cuts_is_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "agentkv")
    notes: list[str] = []
    with shown_by(notes.append):
        GPT2.open(tmp_path)
        assert not notes
        tokenizer = GPT2.but(pre=None).open(tmp_path)
    assert [record.message for record in caplog.records] == notes
    assert len(notes) == 1
    assert "no tokenizer.ggml.pre" in notes[0]
    assert tokenizer.encode("hello") == GPT2.but(pre="default").open(tmp_path).encode("hello")


# Vocabularies that cannot be read right, and what is said of them.
REFUSED: list[tuple[File, str]] = [
    *(
        (SPM.but(model=model), f"tokenizer.ggml.model is '{model}'.*Hugging Face folder")
        for model in ("bert", "t5", "rwkv", "plamo2", "hybriddna", "whitespace", "none", "no_vocab", "invented")
    ),
    (SPM.but(model=None), "tokenizer.ggml.model is None"),
    (SPM.but(model=3), "tokenizer.ggml.model is 3"),
    (GPT2.but(pre="invented"), "tokenizer.ggml.pre is 'invented', which is not known"),
    (GPT2.but(pre="whitespace"), "tokenizer.ggml.pre is 'whitespace'"),
    (GPT2.but(pre=7), "tokenizer.ggml.pre is 7"),
    (GPT2.but(pre=["gpt-2"]), r"tokenizer.ggml.pre is \['gpt-2'\]"),
    (SPM.but(model=["llama"]), r"tokenizer.ggml.model is \['llama'\]"),
    (GPT2.but(merges=None), "tokenizer.ggml.merges is missing"),
    (GPT2.but(merges=[1, 2]), "tokenizer.ggml.merges is no list of str"),
    (GPT2.but(merges=["h e", "he"]), "entry 1 of tokenizer.ggml.merges is 'he', and must be two tokens"),
    (GPT2.but(merges=["h e", "he zz"]), "entry 1 of tokenizer.ggml.merges is 'he zz'"),
    (GPT2.but(merges=["h l"]), "entry 0 of tokenizer.ggml.merges is 'h l', and must be two tokens that make a third"),
    (GPT2.but(merges=["", "h e"]), "entry 0 of tokenizer.ggml.merges is ''"),
    (SPM.but(tokens=None), "tokenizer.ggml.tokens is missing"),
    (SPM.but(tokens="abc"), "tokenizer.ggml.tokens is no list of str: it is 'abc'"),
    (SPM.but(tokens=[1, 2, 3]), "tokenizer.ggml.tokens is no list of str"),
    (SPM.but(tokens=[*SPM.tokens[:-1], "<s>"]), r"ids 1 and \d+ are the same token, '<s>'"),
    (SPM.but(token_type=None), "tokenizer.ggml.token_type is missing"),
    (SPM.but(token_type=[1.5] * len(SPM.tokens)), "tokenizer.ggml.token_type is no list of int"),
    (SPM.but(token_type=SPM.types[:-1]), r"tokenizer.ggml.token_type has \d+ entries for \d+ tokens"),
    (SPM.but(token_type=[*SPM.types[:-1], 17]), r"token_type of id \d+ is 17, and must be from 0 to 6"),
    (SPM.but(scores=None), "tokenizer.ggml.scores is missing"),
    (SPM.but(scores=["a"] * len(SPM.tokens)), "tokenizer.ggml.scores is no list of float or int"),
    (SPM.but(scores=[0.5]), r"tokenizer.ggml.scores has 1 entries for \d+ tokens"),
    (SPM.but(bos_token_id=99999), r"tokenizer.ggml.bos_token_id is 99999, and ids are from 0 to \d+"),
    (SPM.but(eos_token_id=-1), "tokenizer.ggml.eos_token_id is -1"),
    (SPM.but(eos_token_id="</s>"), "tokenizer.ggml.eos_token_id is '</s>'"),
    (SPM.but(unknown_token_id=True), "tokenizer.ggml.unknown_token_id is True"),
    (SPM.but(eot_token_id=99999), "tokenizer.ggml.eot_token_id is 99999"),
    (GPT2.but(add_bos_token=True), "add_bos_token is true, but there is no tokenizer.ggml.bos_token_id"),
    (GPT2.but(add_bos_token=1), "tokenizer.ggml.add_bos_token is 1, and must be true or false"),
    (SPM.but(add_space_prefix="no"), "tokenizer.ggml.add_space_prefix is 'no'"),
]


@pytest.mark.parametrize(("file", "words"), REFUSED)
def test_a_vocabulary_that_cannot_be_read_is_refused_by_name(tmp_path: Path, file: File, words: str) -> None:
    with pytest.raises(TokenizerError, match=words) as error:
        file.open(tmp_path)
    assert re.search("Convert the model again|Hugging Face folder", str(error.value))


def test_an_id_that_comes_out_otherwise_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def turned(vocabulary: Vocabulary, pre: PreTokenizer) -> tokenizers.Tokenizer:
        ids = {token: len(vocabulary.ids) - 1 - i for token, i in vocabulary.ids.items()}
        return tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=[]))

    monkeypatch.setitem(MODELS, "llama", turned)
    with pytest.raises(TokenizerError, match=r"does not come out as the file has it.*id 0 \('<unk>'\)"):
        make_tokenizer(SPM.metadata)


def test_an_export_says_which_file_it_is_about(tmp_path: Path) -> None:
    from agentkv_runtime.gguf.description import write_description

    path = tmp_path / "odd.gguf"
    write_gguf(path, tiny_model(tiny_spec("llama", layers=1)), "llama", GGMLQuantizationType.F32)
    path.write_bytes(path.read_bytes().replace(b"gpt-2", b"gpt-?"))
    with pytest.raises(ExportError, match=r"odd\.gguf: tokenizer\.ggml\.pre is 'gpt-\?'"):
        write_description(path, tmp_path)


def test_a_padding_token_that_the_file_does_not_have_is_nobodys_trouble(tmp_path: Path) -> None:
    path, model = tmp_path / "padded.gguf", tiny_model(tiny_spec("llama", layers=1))
    write_gguf(path, model, "llama", GGMLQuantizationType.F32, {"tokenizer.ggml.padding_token_id": 99999})
    with described(path) as words:
        assert load_gguf(path, words.folder).config.pad_token_id is None


def number(format: str, value: float) -> bytes:
    return struct.pack(f"<{format}", value)


def string(text: bytes) -> bytes:
    return number("Q", len(text)) + text


# Files as bytes, and what is said of them.
HEAD = b"GGUF" + number("I", 3) + number("Q", 0)
ONE = HEAD + number("Q", 1) + string(b"key")
DAMAGED = [
    (b"", "its header needs 4 more bytes, and 0 are left"),
    (b"GGML" + HEAD[4:], "begins with b'GGML' instead of b'GGUF'. Give a GGUF file"),
    (b"GGUF" + number("I", 1), "it is of GGUF version 1, not 2 or 3"),
    (b"GGUF" + struct.pack(">I", 3), "it is written for big-endian machines"),
    (HEAD + number("Q", 1 << 60), f"key 1 of {1 << 60} needs 8 more bytes"),
    (HEAD + number("Q", 1) + number("Q", 1 << 60), f"key 1 of 1 needs {1 << 60} more bytes"),
    (ONE + number("I", 13), "key has a value of type 13"),
    (ONE + number("I", 9) + number("I", 9) + number("Q", 1), "key has a value of type 9"),
    (ONE + number("I", 9) + number("I", 5) + number("Q", 1 << 60), f"key needs {1 << 62} more bytes"),
    (ONE + number("I", 8) + string(b"\xff"), "key holds a string that is no UTF-8"),
    (HEAD + number("Q", 2) + 2 * (string(b"key") + number("I", 0) + b"\1"), "key is there twice"),
]


@pytest.mark.parametrize(("data", "words"), DAMAGED)
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(GGUFError, match=r"bad\.gguf: cannot be read as a GGUF file: .*" + re.escape(words)):
        read_metadata(path)


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"none\.gguf: cannot be read as a GGUF file: No such file"):
        read_metadata(tmp_path / "none.gguf")


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    tiny = File("llama", ["a", "b"], [1, 1], scores=[0.0, 1.0], keys={"add_bos_token": False, "eos_token_id": 1})
    whole, path = tiny.write(tmp_path / "tiny.gguf").read_bytes(), tmp_path / "cut.gguf"
    assert read_metadata(tmp_path / "tiny.gguf").items() >= tiny.metadata.items()
    for size in range(len(whole) - 16):  # behind what was written there is room up to an alignment
        path.write_bytes(whole[:size])
        with pytest.raises(GGUFError, match="cut or damaged"):
            read_metadata(path)


def test_random_damage_is_told_in_our_words(tmp_path: Path) -> None:
    whole, path, rng = SPM.write(tmp_path / "whole.gguf").read_bytes(), tmp_path / "bad.gguf", random.Random(5)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[int(len(data) * rng.random() ** 2)] = rng.choice([0, 1, 9, 127, 255])
        path.write_bytes(data)
        try:
            make_tokenizer(read_metadata(path))
        except (GGUFError, TokenizerError):
            refused += 1
    assert refused > 100

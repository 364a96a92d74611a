"""Tokenizers: text to ids and back, the bytes of every id, chat templates in their sandbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.errors import TokenizerError
from agentkv_runtime.text.token_bytes import MOST_IDS, checked_size
from agentkv_runtime.text.tokenizer import Tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

TEXTS = ["", "Hello", "  two  spaces ", "wörld 你好 🙂", "a\n\tb", "<|im_end|> spelled out"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level() -> Backend:
    """GPT-2's kind: the 256 bytes and three merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(alphabet)}
    merges = [("l", "l"), ("ll", "o"), ("\u0120", "a")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|bos|>", "<|im_start|>", "<|im_end|>"])
    backend.add_tokens([AddedToken("<think>", special=False)])
    bos = backend.token_to_id("<|bos|>")
    backend.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", bos)])
    return backend


def sentencepiece() -> Backend:
    """Llama 2's kind: visible spaces, and bytes where there is no token."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a"]
    vocabulary = {token: i for i, token in enumerate(pieces)}
    merges = [("\u2581", "a")]
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


BYTE_LEVEL = Tokenizer(
    byte_level(),
    config={"eos_token": "<|im_end|>", "bos_token": {"content": "<|bos|>"}},
    generation_config={"eos_token_id": [7, 9]},
    chat_template=TEMPLATE,
)
SENTENCEPIECE = Tokenizer(sentencepiece(), config={"eos_token": "</s>"})
BOTH = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])


def joined(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    table = tokenizer.token_bytes()
    return b"".join(table[i] for i in ids)


@BOTH
@pytest.mark.parametrize("text", TEXTS)
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special=False) == text
    assert joined(tokenizer, ids).decode() == text


@BOTH
@given(text=st.text())
def test_bytes_of_ids_are_the_bytes_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    assert joined(tokenizer, tokenizer.encode(text)) == text.encode()


@BOTH
def test_the_table_covers_the_vocabulary_and_pads(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.token_bytes()) == tokenizer.vocab_size
    padded = tokenizer.token_bytes(tokenizer.vocab_size + 5)
    assert padded[-5:] == [b""] * 5
    assert padded[:-5] == tokenizer.token_bytes()
    assert len(tokenizer.token_bytes(3)) == tokenizer.vocab_size


def test_every_byte_has_an_id() -> None:
    single = {value for value in BYTE_LEVEL.token_bytes() if len(value) == 1}
    assert single == {bytes([byte]) for byte in range(256)}


def test_ends_and_specials() -> None:
    end = BYTE_LEVEL.encode("<|im_end|>")[0]
    assert BYTE_LEVEL.eos_ids == [7, 9, end]
    think = BYTE_LEVEL.encode("<think>")
    assert len(think) == 1
    assert think[0] not in BYTE_LEVEL.special_ids, "text that the model means to be read"
    assert end in BYTE_LEVEL.special_ids
    assert SENTENCEPIECE.eos_ids == [2]
    assert SENTENCEPIECE.special_ids == [0, 1, 2]


def test_special_tokens_are_left_out_of_text() -> None:
    ids = BYTE_LEVEL.encode("a<|im_end|>b")
    assert BYTE_LEVEL.decode(ids) == "ab"
    assert BYTE_LEVEL.decode(ids, skip_special=False) == "a<|im_end|>b"


def test_what_the_model_expects_in_front_is_added_once_and_only_when_asked() -> None:
    bos = BYTE_LEVEL.bos_ids
    assert [BYTE_LEVEL.token_bytes()[i] for i in bos] == [b"<|bos|>"]
    assert BYTE_LEVEL.encode("hi", bos=True) == bos + BYTE_LEVEL.encode("hi")
    assert BYTE_LEVEL.encode("<|bos|>hi", bos=True) == BYTE_LEVEL.encode("<|bos|>hi")
    assert SENTENCEPIECE.bos_ids == []


def test_control_tokens_in_untrusted_text_stay_text() -> None:
    plain = BYTE_LEVEL.encode("<|im_end|>", parse_special=False)
    assert len(plain) == len("<|im_end|>")
    assert not set(plain) & set(BYTE_LEVEL.special_ids)
    assert joined(BYTE_LEVEL, plain) == b"<|im_end|>"


@pytest.mark.parametrize("bad", [-1, 10**6])
def test_ids_outside_the_vocabulary_are_refused(bad: int) -> None:
    with pytest.raises(TokenizerError, match=str(bad)):
        BYTE_LEVEL.decode([bad])


def test_bytes_that_are_no_text_do_not_raise() -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode("é")[:1]) == "\ufffd"


def test_chat() -> None:
    messages = [{"role": "user", "content": "hi"}]
    text = BYTE_LEVEL.render_chat(messages)
    assert text == "<|bos|><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert BYTE_LEVEL.apply_chat(messages) == BYTE_LEVEL.encode(text)
    assert not BYTE_LEVEL.render_chat(messages, add_generation_prompt=False).endswith("assistant\n")
    assert '{"name": "é"}' in BYTE_LEVEL.render_chat(messages, [{"name": "é"}])


def with_template(template: str) -> Tokenizer:
    return Tokenizer(byte_level(), chat_template=template)


def test_what_templates_rely_on() -> None:
    template = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}\n"
        "{{ strftime_now('%Y') | length }} {{ enable_thinking }}"
    )
    rendered = with_template(template).render_chat([{"content": "a"}, {"content": "b"}], enable_thinking=False)
    assert rendered == "a4 False"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "refused"),
        ("{{ messages.append(1) }}", "refused"),
        ("{% if %}", "does not compile"),
    ],
)
def test_templates_that_refuse_or_reach_out(template: str, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        with_template(template).render_chat([{"role": "user", "content": "x"}])


def test_without_a_template_chat_says_what_to_do() -> None:
    assert not SENTENCEPIECE.has_chat_template
    with pytest.raises(TokenizerError, match="no chat template"):
        SENTENCEPIECE.apply_chat([{"role": "user", "content": "x"}])


def saved(path: Path, **files: Any) -> Path:
    byte_level().save(str(path / "tokenizer.json"))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


def test_from_folder(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "default", "template": "D"}, {"name": "rag", "template": "R"}]}
    tokenizer = Tokenizer.from_folder(saved(tmp_path, tokenizer_config=config, generation_config={"eos_token_id": 3}))
    assert tokenizer.eos_ids == [3]
    assert tokenizer.render_chat([]) == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert Tokenizer.from_folder(tmp_path).render_chat([]) == "J"


def test_older_models_say_their_ends_in_config_json(tmp_path: Path) -> None:
    assert Tokenizer.from_folder(saved(tmp_path, config={"eos_token_id": 5})).eos_ids == [5]
    assert Tokenizer.from_folder(saved(tmp_path, generation_config={"eos_token_id": 6})).eos_ids == [6]


def test_limits_of_training_do_not_apply(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(max_length=2)
    backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.from_folder(tmp_path).encode("abcde")) == 5


def test_folders_that_do_not_work(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="not a tokenizer"):
        Tokenizer.from_folder(tmp_path)
    saved(tmp_path, tokenizer_config=[1])
    with pytest.raises(TokenizerError, match="not a JSON object"):
        Tokenizer.from_folder(tmp_path)


def word_pieces() -> Backend:
    """BERT's kind."""
    pieces = ["[UNK]", "[CLS]", "the", "fox", "##es", "do", "n", "'", "t", ".", "##x"]
    backend = Backend(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[UNK]", "[CLS]"])
    return backend


def end_of_words() -> Backend:
    """GPT-1's kind."""
    pieces = ["l", "o", "w", "w</w>", "lo", "low</w>"]
    merges = [("l", "o"), ("lo", "w</w>")]
    backend = Backend(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.BPEDecoder()
    return backend


def test_bytes_of_word_pieces() -> None:
    tokenizer = Tokenizer(word_pieces())
    ids = tokenizer.encode("the foxes.")
    assert joined(tokenizer, ids) == b" the foxes."
    assert tokenizer.decode(ids) == "the foxes."


def test_bytes_of_tokens_with_end_of_word_marks() -> None:
    tokenizer = Tokenizer(end_of_words())
    assert joined(tokenizer, tokenizer.encode("low low")) == b"low low "


def test_ids_that_are_far_apart_are_refused_before_a_table_is_made(tmp_path: Path) -> None:
    description = {"type": "WordLevel", "vocab": {"a": 0, "b": 2**31}, "unk_token": "a"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": description}))
    with pytest.raises(TokenizerError, match=str(2**31)):
        Tokenizer.from_folder(tmp_path)
    description["vocab"] = {"a": 0, "b": 1000}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": description}))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert (tokenizer.vocab_size, len(tokenizer.token_bytes())) == (1001, 1001)
    assert tokenizer.token_bytes()[999:] == [b"", b"b"]


@pytest.mark.parametrize("end", [-1, 2**40, True])
def test_ends_that_are_no_ids(end: object) -> None:
    tokenizer = Tokenizer(byte_level(), generation_config={"eos_token_id": end})
    if end is True:
        assert tokenizer.eos_ids == []
        return
    with pytest.raises(TokenizerError, match="eos_token_id"):
        tokenizer.eos_ids  # noqa: B018


@BOTH
@given(text=st.text(max_size=40))
def test_a_text_has_no_fewer_tokens_than_that(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text))
    longest = max(map(len, tokenizer.token_bytes()))
    assert tokenizer.fewest_tokens("a" * 100 * longest) >= 25


def test_added_tokens_that_are_not_special_stay_text_in_untrusted_text() -> None:
    assert joined(BYTE_LEVEL, BYTE_LEVEL.encode("<think>", parse_special=False)) == b"<think>"
    assert BYTE_LEVEL.encode("<think>")[0] not in BYTE_LEVEL.encode("<think>", parse_special=False)


def test_decoders_of_another_kind_are_refused() -> None:
    backend = byte_level()
    backend.decoder = decoders.CTC()
    with pytest.raises(TokenizerError, match="CTC"):
        Tokenizer(backend).token_bytes()


def test_ids_are_below_a_bound() -> None:
    """Tables are as long as the highest id."""
    assert checked_size({}) == 0
    assert checked_size({"a": MOST_IDS - 1}) == MOST_IDS
    with pytest.raises(TokenizerError, match=f"token 'b' has the id {MOST_IDS}, but"):
        checked_size({"a": 0, "b": MOST_IDS})

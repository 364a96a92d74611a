"""GGUF files as other makers write them: how they scale positions, what they are called, and what was done to them.

One more case is a row of `LINEAR` (keys of a file's metadata, and what positions are divided by), of `NAMES` (what a
file is called), of `BROKEN` (what became of a file) or of `TEMPLATES`. All scalings: `tests/runtime/gguf/test_rope.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from agentkv_runtime.errors import ExportError, UnsupportedModelError
from agentkv_runtime.export import export_folder
from agentkv_runtime.sources.source import described, is_gguf
from agentkv_runtime.text.tokenizer import Tokenizer

import agentkv as kv
from tests.models import CHAT_TEMPLATE, END_OF_TEXT, TURN_END, tiny_model, tiny_spec
from tests.runtime.sources.gguf_files import write_gguf
from tests.runtime.sources.test_gguf import SHAPE, difference, tiny

gguf = pytest.importorskip("gguf")
F32 = gguf.GGMLQuantizationType.F32

LINEAR = [
    ("llama", {".rope.scale_linear": 4.0}, 4.0),
    ("qwen2", {".rope.scaling.factor": 4.0}, 4.0),
    ("qwen3", {".rope.scaling.type": "linear", ".rope.scaling.factor": 8.0}, 8.0),
    ("gemma3", {".rope.scaling.type": "linear", ".rope.scaling.factor": 8.0}, 8.0),  # of the layers without a window
]


@pytest.mark.parametrize(("kind", "keys", "factor"), LINEAR, ids=lambda value: str(value)[:40])
def test_logits_are_those_of_transformers_with_linear_scaling(
    tmp_path: Path, kind: str, keys: dict[str, str | float], factor: float
) -> None:
    import transformers

    plain = tiny(kind)
    rules = plain.config.rope_parameters
    rules.get("full_attention", rules).update(rope_type="linear", factor=factor)
    model = transformers.AutoModelForCausalLM.from_config(plain.config).eval()
    model.load_state_dict(plain.state_dict())
    kept = write_gguf(tmp_path / "model.gguf", model, kind, F32, keys)
    assert difference(tmp_path / "model.gguf", model, kept) < 1e-4


def test_two_scalings_at_once_are_refused(tmp_path: Path) -> None:
    model = tiny_model(tiny_spec("llama", layers=1, **SHAPE))
    model.rope_freqs = (model.model.rotary_emb.inv_freq * 0 + 1).numpy()
    write_gguf(tmp_path / "model.gguf", model, "llama", F32, {".rope.scale_linear": 4.0})
    with pytest.raises(UnsupportedModelError, match="in two ways at once"), described(tmp_path / "model.gguf"):
        pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    write_gguf(path, tiny_model(tiny_spec("llama", layers=1)), "llama", F32)
    return path.read_bytes()


NAMES = ["model.gguf", "model.GGUF", "Model.Gguf", "model", "model.bin", "sha256-4f5c", "gguf"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_known_by_how_it_begins_whatever_it_is_called(tmp_path: Path, name: str, whole: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(whole)
    assert is_gguf(path)
    with described(path) as words:
        assert Tokenizer.from_folder(words.folder).encode("a branch")


def data_of(whole: bytes) -> int:
    """Where the tensors' numbers begin, near enough."""
    return whole.rindex(b"output_norm.weight") + 64


BROKEN: list[tuple[str, str, Callable[[bytes], bytes], str]] = [
    # What it is called, what was done to it, and what is said.
    ("e.gguf", "empty", lambda _: b"", "e.gguf: "),
    ("m.gguf", "another kind", lambda _: b"PK\x03\x04 a zip archive", "GGUF"),
    ("t.gguf", "a page of an error", lambda _: b"<!doctype html><title>404</title>", "GGUF"),
    ("t", "no GGUF file, and not called one", lambda _: b"some text", "a file, but no GGUF file"),
    ("t.bin", "empty, and not called one", lambda _: b"", "a file, but no GGUF file"),
    ("c.gguf", "cut in its header", lambda data: data[:12], "c.gguf: "),
    ("c", "cut within its keys", lambda data: data[:200], "c: "),
    ("c.GGUF", "cut in its vocabulary", lambda data: data[:2000], "c.GGUF: "),
    ("c.gguf", "cut in its list of tensors", lambda data: data[: data_of(data) - 80], "cut or damaged|c.gguf: "),
    ("c.gguf", "cut in its tensors", lambda data: data[: (data_of(data) + len(data)) // 2], "cut or damaged"),
    ("c.gguf", "the last byte is gone", lambda data: data[:-64], "cut or damaged"),
]


@pytest.mark.parametrize(("name", "what", "broken", "said"), BROKEN, ids=[row[1] for row in BROKEN])
def test_files_that_cannot_be_read_are_refused_in_words(
    tmp_path: Path, name: str, what: str, broken: Callable[[bytes], bytes], said: str, whole: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(broken(whole))
    with pytest.raises(ExportError, match=said) as refused:
        export_folder(path, tmp_path / "out")
    assert str(path) in str(refused.value)
    assert not any(word in str(refused.value) for word in ("mmap", "buffer", "reshape", "array", "unpack", "index"))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    assert not is_gguf(tmp_path / "folder.gguf")
    with pytest.raises(ExportError, match=r"not a Hugging Face folder.* Give the whole folder .*, or a GGUF file"):
        export_folder(tmp_path / "folder.gguf", tmp_path / "out")
    with pytest.raises(ExportError, match=r"nothing\.GGUF: no such file"):
        export_folder(tmp_path / "nothing.GGUF", tmp_path / "out")


@pytest.mark.anyio
async def test_a_context_of_what_is_no_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "e.gguf").write_bytes(b"")
    (tmp_path / "text").write_bytes(b"text")
    for name, said in (("e.gguf", "e.gguf: "), ("text", "a file, not a model folder")):
        with pytest.raises(kv.ModelError, match=said):
            async with kv.Context.open(tmp_path / name):
                pass


TEMPLATES: list[tuple[dict[str, str | float], str, str]] = [
    # Keys of the file; what a conversation gets without tools, and with them.
    ({}, "<|im_start|>user\n.<|im_end|>\n", "<|im_start|>user\n.<|im_end|>\n"),
    (
        {"tokenizer.chat_template.tool_use": "T", "tokenizer.chat_template.rag": "R"},
        "<|im_start|>user\n.<|im_end|>\n",
        "T",
    ),
    ({"tokenizer.chat_template.rag": "R"}, "<|im_start|>user\n.<|im_end|>\n", "<|im_start|>user\n.<|im_end|>\n"),
]


@pytest.mark.parametrize(("keys", "plain", "with_tools"), TEMPLATES, ids=lambda value: str(value)[:40])
def test_named_templates_and_ends_of_turn(
    tmp_path: Path, keys: dict[str, str | float], plain: str, with_tools: str
) -> None:
    path, model = tmp_path / "model.gguf", tiny_model(tiny_spec("llama", layers=1))
    write_gguf(path, model, "llama", F32, keys)
    users, tools = [{"role": "user", "content": "."}], [{"type": "function", "function": {"name": "f"}}]
    assert "tools" not in CHAT_TEMPLATE
    with described(path) as words:
        tokenizer = Tokenizer.from_folder(words.folder)
    made = [tokenizer.render_chat(users, given, add_generation_prompt=False) for given in (None, tools)]
    assert made == [plain, with_tools]


@pytest.mark.parametrize("template", [True, False], ids=["by its template", "by its name"])
def test_a_file_whose_end_is_that_of_texts_ends_turns_too(tmp_path: Path, whole: bytes, template: bool) -> None:
    path = tmp_path / "model.gguf"
    key = b"tokenizer.ggml.eos_token_id"
    at = whole.index(key) + len(key) + 4  # a number of four bytes follows its type
    assert whole[at : at + 4] == (2).to_bytes(4, "little")  # <|im_end|>
    data = bytearray(whole)
    data[at : at + 4] = (0).to_bytes(4, "little")  # <|endoftext|>
    if not template:
        data = data.replace(b"tokenizer.chat_template", b"tokenizer.chat_tomplate")
    path.write_bytes(data)
    with described(path) as words:
        tokenizer = Tokenizer.from_folder(words.folder)
    assert tokenizer.has_chat_template == template
    assert tokenizer.eos_ids == [tokenizer.added_ids[END_OF_TEXT], tokenizer.added_ids[TURN_END]]

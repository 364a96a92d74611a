"""Chat templates as other makers ship them: under which names and in which files, and what ends a turn in them.

One more case is a row of `NAMED` (what a folder holds, and which template a conversation without and with tools gets)
or of `ENDS` (a template, and which token ends a turn).
"""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.folder.staging import install
from agentkv_runtime.store.content import content_digest
from agentkv_runtime.text.ends_of_turn import usual_ends
from agentkv_runtime.text.tokenizer import TOKENIZER_FILES, Tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

import agentkv as kv

USER = [{"role": "user", "content": "."}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]


def byte_level(*special: str) -> Backend:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(special))
    return backend


@dataclass(frozen=True)
class Named:
    """A folder's templates: `stated` in tokenizer_config.json, and `files`; each writes its name, "D" or "T"."""

    name: str
    plain: str | None
    with_tools: str | None
    stated: object = None
    files: dict[str, str] = field(default_factory=dict)


def listed(**templates: object) -> list[dict[str, object]]:
    return [{"name": name, "template": template} for name, template in templates.items()]


JINJA, TOOL_USE, RAG = (
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "additional_chat_templates/rag.jinja",
)
LEGACY = "chat_template.json"
NAMED = [
    Named("one template", "D", "D", "D"),
    Named("a list (Command R, Hermes 2 Pro)", "D", "T", listed(default="D", tool_use="T", rag="R")),
    Named("a list without default", "T", "T", listed(tool_use="T")),
    Named("a list of others", None, None, listed(rag="R")),
    Named("a mapping", "D", "T", {"default": "D", "tool_use": "T", "rag": "R"}),
    Named("a file", "D", "D", None, {JINJA: "D"}),
    Named("a file and one for tools", "D", "T", None, {JINJA: "D", TOOL_USE: "T", RAG: "R"}),
    Named("one for tools beside the config's", "D", "T", "D", {TOOL_USE: "T"}),
    Named("files come before the config's", "D", "D", listed(default="R", tool_use="R"), {JINJA: "D"}),
    Named("one for tools alone", "T", "T", None, {TOOL_USE: "T"}),
    Named("one for another purpose alone", None, None, None, {RAG: "R"}),
    Named("a processor's file", "D", "D", None, {LEGACY: json.dumps({"chat_template": "D"})}),
    Named(
        "a processor's list", "D", "T", None, {LEGACY: json.dumps({"chat_template": listed(default="D", tool_use="T")})}
    ),
    Named("a processor's file beside the config's", "D", "D", "D", {LEGACY: json.dumps({"chat_template": "R"})}),
]
ODD = Named("a list with what is no template", "D", "D", [*listed(default="D", tool_use=None), "T", 3])
BY_NAME = pytest.mark.parametrize("case", [*NAMED, ODD], ids=lambda case: case.name)


def write_named(case: Named, folder: Path) -> Path:
    folder.mkdir()
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": case.stated} if case.stated else {}))
    for name, text in case.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def written(tokenizer: Tokenizer, tools: list[dict[str, Any]] | None) -> str | None:
    return tokenizer.render_chat(USER, tools) if tokenizer.has_chat_template else None


@BY_NAME
def test_the_template_that_is_meant_is_taken(tmp_path: Path, case: Named) -> None:
    tokenizer = Tokenizer.from_folder(write_named(case, tmp_path / "model"))
    assert (written(tokenizer, None), written(tokenizer, TOOLS)) == (case.plain, case.with_tools)
    assert written(tokenizer, []) == case.plain


@pytest.mark.parametrize("case", NAMED, ids=lambda case: case.name)
def test_templates_are_as_transformers_takes_them(tmp_path: Path, case: Named) -> None:
    """Where it takes any: of a list without default, and of a processor's file, it takes none."""
    transformers = pytest.importorskip("transformers")
    folder = write_named(case, tmp_path / "model")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    for tools, expected in ((None, case.plain), (TOOLS, case.with_tools)):
        try:
            text = theirs.apply_chat_template(USER, tools=tools, tokenize=False)
        except ValueError:
            continue
        assert text == expected


@BY_NAME
def test_templates_travel_with_an_export(tmp_path: Path, case: Named) -> None:
    folder, staging, out = write_named(case, tmp_path / "model"), tmp_path / "staging", tmp_path / "out"
    shutil.copytree(folder, staging)
    for name, text in {"agentkv.json": "old", JINJA: "old", TOOL_USE: "old"}.items():
        (out / name).parent.mkdir(exist_ok=True, parents=True)
        (out / name).write_text(text)
    (staging / "agentkv.json").write_text("{}")
    install(staging, out, TOKENIZER_FILES, "agentkv.json")
    tokenizer = Tokenizer.from_folder(out)
    assert (written(tokenizer, None), written(tokenizer, TOOLS)) == (case.plain, case.with_tools)


def test_another_template_for_tools_is_another_model(tmp_path: Path) -> None:
    folder = write_named(Named("", None, None, None, {JINJA: "D", TOOL_USE: "T"}), tmp_path / "model")
    before = content_digest(folder)
    (folder / TOOL_USE).write_text("T2")
    assert content_digest(folder) != before


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}{% if loop.last and m.role == 'assistant' %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Ends:
    """A template and its tokens; `stated` are ends by generation_config.json, `found` those and what ends a turn."""

    name: str
    template: str | None
    special: tuple[str, ...]
    stated: tuple[str, ...]
    found: tuple[str, ...]


EOT = "<|endoftext|>"
ENDS = [
    Ends("ChatML on a base model's config", CHATML, (EOT, "<|im_start|>", "<|im_end|>"), (EOT,), (EOT, "<|im_end|>")),
    Ends("ChatML without a config", CHATML, ("<|im_start|>", "<|im_end|>"), (), ("<|im_end|>",)),
    Ends("ChatML that is no token", CHATML, (EOT,), (EOT,), (EOT,)),
    Ends("a base model", None, (EOT, "<|im_start|>", "<|im_end|>"), (EOT,), (EOT,)),
    Ends(
        "Llama 3, whose first config had one end",
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
        "{% endfor %}",
        ("<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        ("<|end_of_text|>",),
        ("<|end_of_text|>", "<|eot_id|>"),
    ),
    Ends(
        "Gemma",
        "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}"
        "<end_of_turn>\n{% endfor %}",
        ("<eos>", "<start_of_turn>", "<end_of_turn>"),
        ("<eos>",),
        ("<eos>", "<end_of_turn>"),
    ),
    Ends(
        "Phi 3, with a token behind all",
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}{{ '<|endoftext|>' }}",
        (EOT, "<|user|>", "<|assistant|>", "<|end|>"),
        (EOT,),
        (EOT, "<|end|>"),
    ),
    Ends(
        "white space before the end",
        "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }} </s>"
        "{% endif %}{% endfor %}",
        ("<s>", "</s>"),
        (),
        ("</s>",),
    ),
    Ends(
        "the end of parts of a message (Harmony)",
        HARMONY,
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"),
        (),
        ("<|return|>",),
    ),
    Ends(
        "what begins the next turn",
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>",
        (EOT, "<|user|>", "<|assistant|>"),
        (EOT,),
        (EOT,),
    ),
    Ends(
        "text before the token",
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: <think>",
        (EOT, "<think>"),
        (EOT,),
        (EOT,),
    ),
    Ends("a template that refuses", "{{ raise_exception('no') }}", (EOT, "<|im_end|>"), (EOT,), (EOT,)),
    Ends("a template without an end", "{% for m in messages %}{{ m.content }}{% endfor %}", (EOT,), (EOT,), (EOT,)),
    Ends("a template that drops answers", "{{ messages[0].content }}<|im_end|>", (EOT, "<|im_end|>"), (EOT,), (EOT,)),
    Ends(
        "a template that does not end",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        (EOT,),
        (EOT,),
        (EOT,),
    ),
]


@pytest.mark.parametrize("case", ENDS, ids=lambda case: case.name)
def test_what_the_template_writes_after_a_message_ends_a_turn(case: Ends) -> None:
    backend = byte_level(*case.special)
    stated = [backend.token_to_id(token) for token in case.stated]
    tokenizer = Tokenizer(backend, generation_config={"eos_token_id": stated}, chat_template=case.template)
    assert tokenizer.eos_ids == [backend.token_to_id(token) for token in case.found]
    assert set(tokenizer.eos_ids) <= set(tokenizer.special_ids)


DEEPSEEK = "<\uff5cend\u2581of\u2581sentence\uff5c>"
USUAL = [
    (("<|im_start|>", "<|im_end|>", EOT), ("<|im_end|>", EOT)),
    (("<|eot_id|>", "<|eom_id|>", "<|start_header_id|>"), ("<|eot_id|>", "<|eom_id|>")),
    (("<|user|>", "<|end|>"), ("<|end|>",)),
    (("<|end|>", "<|return|>", "<|call|>", "<|channel|>"), ("<|return|>", "<|call|>")),
    (("<\uff5cUser\uff5c>", DEEPSEEK), (DEEPSEEK,)),
    (("<s>", "</s>", "[INST]"), ("</s>",)),
    (("<think>", "<|user|>"), ()),
]


@pytest.mark.parametrize(("added", "ends"), USUAL, ids=lambda names: "".join(names))
def test_usual_names_of_ends(added: tuple[str, ...], ends: tuple[str, ...]) -> None:
    ids = {token: i for i, token in enumerate(added)}
    assert {added[i] for i in usual_ends(ids)} == set(ends)


SHOWN = [
    ("{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML, None, None),
    (CHATML, None, None),  # told in words
    (CHATML, "plain", ["get_weather"]),  # which spells no calls
    ({"default": CHATML, "tool_use": "{{ tools | tojson }}" + CHATML}, None, None),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("template", "form", "untold"), SHOWN, ids=["shown", "told", "not shown", "named"])
async def test_tools_that_a_template_does_not_show_are_logged(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    template: str | dict[str, str],
    form: str | None,
    untold: list[str] | None,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(kv.models.nano(), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    with caplog.at_level(logging.WARNING, "agentkv"):
        async with kv.Context.open(folder, call_format=form) as ctx:
            branch = await ctx.branch(USER, tools=TOOLS)
            assert ("get_weather" in branch.text) == (untold is None)
            await ctx.branch(USER, tools=TOOLS)
    said = [record.message for record in caplog.records if "does not tell" in record.message]
    assert len(said) == (untold is not None)
    assert untold is None or f"untold={untold}" in said[0]

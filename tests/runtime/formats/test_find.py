"""Which format a folder's model writes: found by what its chat template writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats import FAMILIES, Family, find_format, format_name
from agentkv_runtime.formats.call_spelling import JsonCall
from agentkv_runtime.formats.spelling import Calls
from agentkv_runtime.text.tokenizer import Tokenizer

from tests.runtime.chat_styles import STYLES, byte_level, write_style

_CHATML = """
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') }}@calls@
{{- '<|im_end|>\\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n@opened@' }}{% endif %}"""
_EACH = "{% for call in message.tool_calls or [] %}{% set f = call.function %}@call@{% endfor %}"


def chatml(call: str, begin: str = "", end: str = "", opened: str = "") -> str:
    calls = "{% if message.tool_calls %}" + begin + _EACH + end + "{% endif %}"
    return _CHATML.replace("@calls@", calls).replace("@call@", call).replace("@opened@", opened)


def tags(before: str, after: str) -> str:
    pair = before + "{{ v }}" + after
    return "{% for k, v in f.arguments.items() %}" + pair + "{% endfor %}"


def control(words: str) -> str:
    return f"<\uff5ctool\u2581{words.replace(' ', chr(0x2581))}\uff5c>"


_JSON = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_WITH_ID = _JSON[:-1] + ', "id": "{{ call.id }}"}'
_COMMA = "{{ ', ' if not loop.last }}"
_PYTHON = "{{ f.name }}(" + tags("{{ k }}=", "").replace("v }}", "v | tojson }}{{ ', ' if not loop.last }}") + ")"
_GEMMA = (
    "{% for k, v in f.arguments.items() %}{{ k }}:{% if v is string %}@{{ v }}@{% else %}{{ v }}{% endif %}"
    "{{ ',' if not loop.last }}{% endfor %}{{ '}' }}"
)
_ALL, _CALL = (control("calls begin"), control("calls end")), (control("call begin"), control("call end"))

# How templates of each family write calls.
TEMPLATES = {
    "hermes": chatml("\n<tool_call>\n" + _JSON + "\n</tool_call>"),
    "nano": chatml("\n<tool_call>" + _JSON + "</tool_call>"),
    "qwen-xml": chatml(
        "\n<tool_call>\n<function={{ f.name }}>\n"
        + tags("<parameter={{ k }}>\n", "\n</parameter>\n")
        + "</function>\n</tool_call>"
    ),
    "glm": chatml(
        "\n<tool_call>{{ f.name }}\n"
        + tags("<arg_key>{{ k }}</arg_key>\n<arg_value>", "</arg_value>\n")
        + "</tool_call>"
    ),
    "mistral": chatml(_WITH_ID + _COMMA, "[TOOL_CALLS][", "]</s>"),
    "mistral-spaced": chatml(_WITH_ID + _COMMA, "[TOOL_CALLS] [", "]</s>"),
    "mistral-args": chatml("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
    "harmony": """
{%- for message in messages %}{% if message.tool_calls %}{% set f = message.tool_calls[0].function %}
{{- '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' }}
{{- f.arguments | tojson + '<|call|>' }}
{%- else %}{{ '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}""",
    "deepseek-v3": chatml(
        _CALL[0]
        + "function"
        + control("sep")
        + "{{ f.name }}\n```json\n{{ '' + f.arguments }}\n```"  # it takes text alone
        + _CALL[1]
        + "{{ '\n' if not loop.last }}",
        *_ALL,
    ),
    "deepseek-v3.1": chatml(
        _CALL[0] + "{{ f.name }}" + control("sep") + "{{ f.arguments | tojson }}" + _CALL[1], *_ALL, opened="<think>"
    ),
    "phi4": chatml(_JSON + _COMMA, "<|tool_call|>[", "]<|/tool_call|>"),
    "granite": chatml(_JSON + _COMMA, "<|tool_call|>[", "]"),
    "lfm2": chatml(_PYTHON + _COMMA, "<|tool_call_start|>[", "]<|tool_call_end|>"),
    "gemma": chatml("<|tool_call>call:{{ f.name + '{' }}" + _GEMMA.replace("@", '<|"|>') + "<tool_call|>"),
    "functiongemma": chatml(
        "<start_function_call>call:{{ f.name + '{' }}" + _GEMMA.replace("@", "<escape>") + "<end_function_call>"
    ),
    "llama-json": STYLES["headers"].template.replace("{{- bos_token }}", ""),
    "pythonic": chatml(_PYTHON + _COMMA, "[", "]<|eot|>"),
    "generic": chatml(""),
}


def tokenizer(template: str, tokens: tuple[str, ...] = (), **config: Any) -> Tokenizer:
    backend = byte_level()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>", *tokens])
    return Tokenizer(backend, config={"eos_token": "<|im_end|>", **config}, chat_template=template)


def test_every_family_is_tried() -> None:
    assert TEMPLATES.keys() == FAMILIES.keys() - {"plain"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_chat_template_tells_the_family(name: str) -> None:
    made = tokenizer(TEMPLATES[name])
    assert format_name(made) == name
    found = find_format(made)
    assert (found.name, found.thinking) == (name, ("<think>", "</think>") if name == "deepseek-v3.1" else None)
    header = {"harmony": "<|start|>assistant", "llama-json": "<|start_header_id|>assistant<|end_header_id|>\n\n"}
    assert found.template.source["start_anchor"] == [header.get(name, "<|im_start|>assistant\n")]
    if name == "deepseek-v3.1":
        assert found.parser(prefix="x<|im_start|>assistant\n<think>").in_reasoning


@pytest.mark.parametrize(
    ("style", "name"),
    [
        ("chatml", "hermes"), ("thinking", "hermes"), ("headers", "llama-json"), ("instructions", "mistral-spaced"),
        ("turns", "generic"), ("roles", "generic"), ("parameters", "generic"), ("unigram", "hermes"),
    ],
)  # fmt: skip
def test_styles_of_known_models(style: str, name: str, tmp_path: Path) -> None:
    made = Tokenizer.from_folder(write_style(STYLES[style], tmp_path))
    assert format_name(made) == name
    assert (find_format(made).thinking is not None) == ("<think>" in STYLES[style].controls)


def test_without_a_chat_template_it_is_plain() -> None:
    made = Tokenizer(byte_level())
    assert find_format(made).name == "plain"


def test_a_response_template_comes_first() -> None:
    template = FAMILIES["qwen-xml"].template()
    made = tokenizer(TEMPLATES["hermes"], response_template=template)
    assert format_name(made) == "response_template"
    found = find_format(made)
    assert found.name == "response_template"
    assert found.template.source == template
    assert found.spelling == FAMILIES["qwen-xml"].spelling  # the one that it reads
    assert found.thinking == ("<think>", "</think>")
    assert find_format(made, "hermes").name == "hermes"
    assert find_format(tokenizer(TEMPLATES["hermes"]), template).template.source == template


def test_calls_of_a_response_template_that_no_format_spells_are_generic_ones() -> None:
    fields = {"tool_calls": {"open": "@", "close": "@", "content": "json"}, "content": {}}
    found = find_format(tokenizer(TEMPLATES["hermes"]), {"start_anchor": "x", "fields": fields})
    assert [call.name for call in found.parse('a @{"name": "f"}@').calls] == ["f"]
    definition = {"type": "function", "function": {"name": "f"}}
    assert '"```json\\n[' in found.grammar([definition])
    written = found.parse(found.write("", [("f", {})]), tools=[definition])
    assert [(call.name, call.rescued) for call in written.calls] == [("f", None)]


def test_names_and_formats_may_be_given() -> None:
    made = tokenizer(TEMPLATES["hermes"], ("<call>",))
    mine = Family(
        "mine",
        {"open": "<call>", "close": "</call>", "content": "json", "transform": {"function": "{content}"}},
        Calls(JsonCall(), "<call>", "</call>"),
    )
    found = find_format(made, mine)
    assert found.tokens["<call>"] == made.added_ids["<call>"]
    assert found.parse(found.write("a", [("f", {})])).calls[0].name == "f"
    assert f"<[{made.added_ids['<call>']}]>" in found.grammar([{"name": "f"}])
    assert find_format(made, found) is found
    with pytest.raises(FormatError, match="there is no format 'hermess'; known are hermes"):
        find_format(made, "hermess")


def test_a_reply_begins_after_the_last_header_whatever_came_before_it(tmp_path: Path) -> None:
    """Templates without a header of their own end the message before the reply, and a tool's result otherwise."""
    made = Tokenizer.from_folder(write_style(STYLES["instructions"], tmp_path))
    found = find_format(made)
    assert found.template.source["start_anchor"] == ["[/INST]", "}[/TOOL_RESULTS]"]
    calls = [{"id": "call00000", "function": {"name": "f", "arguments": {}}}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "[1]"},
    ]
    for length in (1, 3):
        prompt = made.render_chat(messages[:length])
        assert found.parse("Hello", prefix=prompt).calls == ()
        assert found.parse("Hello", prefix=prompt).content == "Hello"


def test_what_ends_a_generation_may_be_missing() -> None:
    field = {"open": "[TOOL_CALLS]", "close": "</s>", "content": "json", "transform": {"function": "{content}"}}
    template = {"start_anchor": "[/INST]", "fields": {"tool_calls": field, "content": {}}}
    made = tokenizer(TEMPLATES["hermes"], ("</s>",), eos_token="</s>")
    found, text = find_format(made, template), '[TOOL_CALLS]{"name": "f", "arguments": {"a": 1}}'
    assert found.parse(text) == found.parse(text + "</s>")
    assert found.parse(text[:-1]).calls[0].error
    assert found.parse(text).calls[0].error is None
    assert find_format(tokenizer(TEMPLATES["hermes"]), template).parse(text).calls[0].error == "the call is cut off"

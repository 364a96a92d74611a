"""Response templates that use every feature, each with the pieces that texts for it are made of."""

from __future__ import annotations

from typing import Any

from agentkv_runtime.formats import FAMILIES

CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "i": {"type": "integer"},
                    "n": {"type": "number"},
                    "b": {"type": "boolean"},
                    "z": {"type": ["null", "string"]},
                    "o": {"type": "object"},
                    "a": {"type": "array", "items": {"type": "integer"}},
                    "u": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
                    "s": {"type": "string"},
                    "m": {"type": "integer", "nullable": True},
                },
            },
        },
    }
]

# Templates in the manner of those that publishers ship, and the pieces that random texts are made of.
TEMPLATES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "json calls": (
        {
            "defaults": {"role": "assistant"},
            "start_anchor": "<|im_start|>assistant\n",
            "fields": {
                "reasoning_content": {"open": "<think>", "close": "</think>"},
                "tool_calls": {
                    "open_pattern": r"\s*<tool_call>",
                    "close": "</tool_call>",
                    "repeats": True,
                    "content": "json",
                    "transform": {"type": "function", "function": "{content}"},
                },
                "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)"},
            },
        },
        [
            *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "\n", " ", "Hi", "<", "<tool"),
            *('{"name": "f", "arguments": {"i": "3"}}', '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
        ],
    ),
    "tagged calls": (
        {
            "start_anchor_pattern": r"<\|im_start\|>assistant\s",
            "fields": {
                "thinking": {"open": ["<think>", "<thinking>"], "close": ["</think>", "</thinking>"]},
                "tool_calls": {
                    "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                    "close_pattern": r"</function>\s*</tool_call>",
                    "repeats": True,
                    "content": "xml-inline",
                    "content_args": {
                        "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>",
                        "merge_duplicates": True,
                    },
                    "transform": CALL,
                },
                "content": {"repeats": True, "join": " | "},
            },
        },
        [
            *("<think>", "</think>", "<thinking>", "</thinking>", "Hi", "\n", " ", "<", "</function>", "</tool_call>"),
            *("<tool_call>\n<function=f>\n", "\n</function>\n</tool_call>", "<parameter=i>\n3\n</parameter>"),
            *("<parameter=n>3.50</parameter>", "<parameter=b>True</parameter>", "<parameter=z>null</parameter>"),
            *('<parameter=o>{"a": 1}</parameter>', "<parameter=a>[1, 2]</parameter>", "<parameter=u>1</parameter>"),
            *("<parameter=s>3</parameter>", "<parameter=m>None</parameter>", "<parameter=x>y</parameter>"),
            "<parameter=i>3.0</parameter>",
        ],
    ),
    "channels": (
        {
            "defaults": {"role": "assistant", "tool_calls": []},
            "start_anchor": "<|start|>assistant",
            "fields": {
                "thinking": {"open": "<|channel|>analysis<|message|>", "close": ["<|end|>", "<|return|>"]},
                "content": {"open": "<|channel|>final<|message|>", "close_pattern": r"<\|end\|>|<\|return\|>"},
                "tool_calls": {
                    "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
                    "close": "<|call|>",
                    "content": "json",
                    "repeats": True,
                    "transform": CALL,
                },
            },
        },
        [
            *("<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|end|>", "<|return|>", "<|call|>"),
            *("<|channel|>commentary to=functions.f <|constrain|>json<|message|>", '{"i": 1}', "Hi ", "<|", "{}"),
        ],
    ),
    "own notation": (
        {
            "start_anchor": ["<|turn>model\n", "<tool_response|>"],
            "fields": {
                "reasoning_content": {"open": "<|channel>thought\n", "close": "<channel|>"},
                "tool_calls": {
                    "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                    "close": "<tool_call|>",
                    "repeats": True,
                    "content": "json",
                    "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
                    "transform": CALL,
                },
                "content": {"close": ["<turn|>", "<|tool_response>", "<eos>"]},
            },
        },
        [
            *("<|channel>thought\n", "<channel|>", "<|tool_call>call:f", "<tool_call|>", "<turn|>", "<eos>", " Hi "),
            *('{s:<|"|>a: {b}<|"|>,i:3}', "{}", "{a:[1,2],o:{k:null}}", "<|", "|>"),
        ],
    ),
    "lists and numbers": (
        {
            "start_anchor": "[/INST]",
            "fields": {
                "tool_calls": {
                    "open": "[TOOL_CALLS]",
                    "close_pattern": r"</s>|$",
                    "content": "json",
                    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
                    "transform_each": True,
                },
                "score": {"open": "<score>", "close": "</score>", "content": "float"},
                "count": {"open": "<count>", "close": "</count>", "content": "int", "repeats": True},
                "sure": {"open": "<sure>", "close": "</sure>", "content": "bool"},
                "meta": {
                    "open": "<meta>",
                    "close": "</meta>",
                    "content": "kv-lines",
                    "content_args": {"kv_sep": "=", "value_parser": {"name": "json", "args": {"allow_non_json": True}}},
                },
                "content": {"content_args": {"strip": False}},
            },
        },
        [
            *("[TOOL_CALLS]", '[{"name": "f", "arguments": {"i": "3"}}]', '[{"name": "g", "arguments": {}}]', "</s>"),
            *("<score>1.5</score>", "<count> 3</count>", "<sure>True</sure>", "<meta>a=1\nb = x\n\nc</meta>", " Hi "),
            *("<score>", "</score>", "<count>4"),
        ],
    ),
    **{
        name: (family.template(), [*tags, " ", "\n", "Hi", "{}", '{"a": 1}'])
        for name, tags in {
            "hermes": ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}', "</s>"],
            "harmony": [
                *("<|start|>assistant", "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|end|>"),
                *(
                    "<|channel|>commentary to=functions.f",
                    " to=functions.f<|channel|>commentary",
                    " json",
                    "<|message|>",
                ),
                "<|call|>",
            ],
            "llama-json": [
                '{"name": "f", "parameters": {"i": 1}}',
                "<|python_tag|>",
                "<|eot_id|>",
                "<think>",
                "</think>",
            ],
        }.items()
        if (family := FAMILIES[name])
    },
}

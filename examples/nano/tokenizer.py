"""The nano model's tokenizer (byte-level BPE, one token per digit) and its chat template."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .data import Conversation, conversation, lesson

VOCAB_SIZE = 1024
VOCABULARY = Path(__file__).with_name("vocabulary.json")  # what `build` once made; every run shares it
CONTROL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")

# A capitalised word never takes the space before it, and digits, upper-case letters and punctuation stand
# alone: a name is the same tokens in a sentence, after a quote and in a JSON value, so it can be copied.
PIECES = r"\p{N}| ?\p{Ll}+|\p{Lu}\p{Ll}*|[^\p{L}\p{N}\s][^\p{L}\p{N}\n]*|\s+|."

CHAT_TEMPLATE = """\
{%- macro define(tool) -%}
{%- set f = tool.function if tool.function is defined else tool -%}
{"name": "{{ f.name }}", "description": "{{ f.description }}", "parameters": {
{%- for key, value in f.parameters.properties.items() -%}
"{{ key }}": "{{ value.type }}"{{ ", " if not loop.last }}
{%- endfor -%}
}}
{%- endmacro -%}
{%- set listed = tools if tools is defined and tools else [] -%}
{%- if messages[0].role == "system" -%}
{%- set opening = messages[0].content -%}
{%- set rest = messages[1:] -%}
{%- else -%}
{%- set opening = "You are Nano, a desk agent." -%}
{%- set rest = messages -%}
{%- endif -%}
{{ "<|im_start|>system\\n" + opening }}
{%- if listed -%}
{{ "\\n<tools>" }}
{%- for tool in listed -%}{{ "\\n" + define(tool) }}{%- endfor -%}
{{ "\\n</tools>" }}
{%- endif -%}
{{ "<|im_end|>\\n" }}
{%- for message in rest -%}
{{ "<|im_start|>" + message.role + "\\n" }}
{%- if message.role == "tool" and "<tool_response>" not in message.content -%}
{{ "<tool_response>" + message.content + "</tool_response>" }}
{%- else -%}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] -%}
{%- set f = call.function if call.function is defined else call -%}
{{ "\\n" if message.content or not loop.first }}
{{- "<tool_call>" + {"name": f.name, "arguments": f.arguments} | tojson + "</tool_call>" }}
{%- endfor -%}
{%- endif -%}
{{ "<|im_end|>\\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ "<|im_start|>assistant\\n" }}
{%- endif -%}
"""


def _define(tool: dict[str, Any]) -> str:
    function = tool["function"]
    fields = ", ".join(f'"{k}": "{v["type"]}"' for k, v in function["parameters"]["properties"].items())
    return f'{{"name": "{function["name"]}", "description": "{function["description"]}", "parameters": {{{fields}}}}}'


def render(talk: Conversation) -> str:
    """What the chat template makes of a conversation, without the cost of the template engine."""
    system, *rest = talk.messages()
    text = f"<|im_start|>system\n{system['content']}"
    if talk.tools():
        text += "\n<tools>" + "".join(f"\n{_define(tool)}" for tool in talk.tools()) + "\n</tools>"
    text += "<|im_end|>\n"
    return text + "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in rest)


def corpus(seed: int, size: int) -> Iterator[str]:
    """Training conversations to learn the merges from."""
    rng = random.Random(seed)
    for index in range(size):
        yield render(lesson(rng) if index % 10 == 0 else conversation(rng, "train"))


def build(seed: int = 0, size: int = 6000) -> PreTrainedTokenizerFast:
    """Train the tokenizer on generated conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [AddedToken(token, special=True, normalized=False) for token in CONTROL]
    tags = [AddedToken(token, special=False, normalized=False) for token in TAGS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(tags),
        special_tokens=control,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The tags would otherwise be learnt as ordinary text.
    texts = (_without_tags(text) for text in corpus(seed, size))
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(tags)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return _with_template(tokenizer)


def load() -> PreTrainedTokenizerFast:
    """The tokenizer that the shipped model has."""
    return _with_template(Tokenizer.from_file(str(VOCABULARY)))


def _with_template(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _without_tags(text: str) -> str:
    for tag in (*TAGS, *CONTROL):
        text = text.replace(tag, "\n")
    return text


def save(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, the chat template inside the latter."""
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that older versions know, too
    path.write_text(json.dumps(config, indent=2) + "\n")

"""Small tokenizers with chat templates in the styles of well-known models, as folders that transformers reads too."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = (
    "You are a helpful assistant. What is the weather in Oslo today? It is sunny, and 21 degrees.",
    'def add(a, b):\n    return a + b  # <b>bold</b>\n\nfor i in range(10):\n    print(f"{i} < {add(i, 1)}")\n',
    '{"name": "search", "arguments": {"query": "weather", "limit": 3}} user system tool think role im_start end',
    "one two three four five, six; seven | eight [nine] and <ten>. Bj\u00f8rn \u4f60\u597d \u3053\u3093\u306b",
)

CHATML = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\nAnswer with <tool_call></tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

THINKING = """
{%- macro shown(content) %}{{ content if content is string else '' }}{% endmacro -%}
{%- set ns = namespace(last=messages | length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if not ns.found and message.role == 'user'
        and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.last = index %}{%- set ns.found = true %}
    {%- endif %}
{%- endfor %}
{%- if tools %}{{- '<|im_start|>system\\n<tools>' }}{{- tools | map('tojson') | join('\\n') }}
{{- '</tools><|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {%- set content = shown(message.content) | trim %}
    {%- if message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' ~ content ~ '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}{{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

HEADERS = """
{{- bos_token }}
{%- if tools is not none %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\nEnvironment: ipython\\n' }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}{{- '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or message.tool_calls) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}
        {{- '<|eot_id|>' }}
    {%- elif message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if message.content is mapping %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

INSTRUCTIONS = """
{{- bos_token }}
{%- set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST] ' + (system if loop.last else '') + message.content + ' [/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}{{- call.function | tojson }}{{- ', ' if not loop.last }}{%- endfor %}
        {{- ']' + eos_token }}
    {%- elif message.role == 'assistant' %}{{- ' ' + message.content | trim + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + '}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""

TURNS = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set first = messages[0]['content'] + '\\n\\n' %}{%- set rest = messages[1:] %}
{%- else %}{%- set first = '' %}{%- set rest = messages %}{%- endif %}
{%- for message in rest %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\\n' + (first if loop.first else '') }}
    {%- if message['content'] is string %}{{- message['content'] | trim }}
    {%- elif message['content'] is iterable %}
        {%- for item in message['content'] %}{{- item['text'] | trim }}{%- endfor %}
    {%- endif %}
    {{- '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""

ROLES = """
{%- for message in messages -%}
{{ '<|' + message['role'] + '|>\\n' + (message['content'] or '') + '<|end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- else -%}{{ eos_token }}{%- endif -%}
"""

PARAMETERS = """
{%- macro fields(values) %}
{%- for key, value in values | dictsort %}{{ '\\n<' ~ key ~ '>' ~ value ~ '</' ~ key ~ '>' }}{% endfor %}
{%- endmacro -%}
{%- for tool in tools or [] %}{{ '<tools><name>' ~ tool.function.name ~ '</name>' }}
{{- fields(tool.function.parameters.properties) }}{{ '</tools>' }}{% endfor %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content %}{% set text %}{{ message.content }}{% endset %}{{ text }}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }}{{ fields(call.function.arguments) }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@dataclass(frozen=True)
class Style:
    """A template, and the added tokens of its tokenizer: special ones, and those that are not."""

    template: str
    special: tuple[str, ...]
    other: tuple[str | AddedToken, ...] = ()
    backend: Callable[[], Tokenizer] | None = None
    tools: bool = True

    @property
    def controls(self) -> list[str]:
        """The added tokens that are more than white space."""
        every = [*self.special, *(getattr(token, "content", token) for token in self.other)]
        return [token for token in every if token.strip()]


def byte_level() -> Tokenizer:
    """GPT-2's kind, trained on a few lines."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    """Llama 2's kind: a space in front of the text (and of the text alone), bytes where there is no token. Its own
    pieces come together as `</s>`, and as control tokens of its vocabulary."""
    pieces = ["<unk>", "<s>", "</s>", "[INST]", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    pieces += [chr(c) for c in range(33, 127)]
    merges = [("<", "s"), ("<s", ">"), ("/", "s"), ("<", "/s"), ("</s", ">"), ("\u2581", "t"), ("\u2581t", "h")]
    merges += [("[", "I"), ("[I", "N"), ("[IN", "S"), ("[INS", "T"), ("[INST", "]"), ("o", "u"), ("i", "n")]
    vocabulary: dict[str, int] = {}
    for piece in [*pieces, *(a + b for a, b in merges)]:
        vocabulary.setdefault(piece, len(vocabulary))
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def prefixed() -> Tokenizer:
    """As files of Llama 2's kind have it elsewhere: a space also in front of what follows a control token."""
    tokenizer = sentencepiece()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.pre_tokenizer = None
    return tokenizer


def unigram() -> Tokenizer:
    """T5's kind: control tokens are pieces of the vocabulary like any other; compatibility forms are one."""
    pieces = [("<unk>", 0.0), ("<|im_start|>", 0.0), ("<|im_end|>", 0.0), ("\u2581", -3.0), ("\u2581the", -4.0)]
    pieces += [(chr(c), -5.0) for c in range(33, 127)] + [("\u4f60", -6.0), ("\n", -5.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


_TOOLS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
_THINK = ("<think>", "</think>")
_LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>")
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>", "<s>", "</s>")
STYLES = {
    "chatml": Style(CHATML, ("<|im_start|>", "<|im_end|>"), _TOOLS),
    "thinking": Style(THINKING, ("<|im_start|>", "<|im_end|>"), (*_TOOLS, *_THINK)),
    "headers": Style(HEADERS, _LLAMA),
    "instructions": Style(
        INSTRUCTIONS,
        ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        backend=sentencepiece,
    ),
    "prefixed": Style(INSTRUCTIONS, ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"), backend=prefixed),
    "turns": Style(TURNS, ("<bos>", "<start_of_turn>", "<end_of_turn>"), ("<b>", "\n\n", "    "), tools=False),
    "roles": Style(
        ROLES,
        (),
        (*(AddedToken(t, rstrip=True, normalized=False) for t in _ROLES), AddedToken("<w>", single_word=True)),
        tools=False,
    ),
    "parameters": Style(PARAMETERS, ("<|im_start|>", "<|im_end|>"), (*_TOOLS, *_THINK)),
    "unigram": Style(CHATML, ("<|im_start|>", "<|im_end|>"), (*_TOOLS, AddedToken("<w>", lstrip=True)), unigram),
}


def write_style(style: Style, folder: Path) -> Path:
    """Writes tokenizer.json and tokenizer_config.json; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = (style.backend or byte_level)()
    tokenizer.add_special_tokens(list(style.special))
    tokenizer.add_tokens([t if isinstance(t, AddedToken) else AddedToken(t, normalized=False) for t in style.other])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": style.template,
        "clean_up_tokenization_spaces": False,
        "bos_token": next((t for t in ("<s>", "<bos>", "<|begin_of_text|>") if t in style.controls), None),
        "eos_token": next(
            (t for t in ("</s>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>") if t in style.controls), None
        ),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder

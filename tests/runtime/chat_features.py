"""Chat templates of our own that use what the well-known families' templates rely on, each in several."""

from __future__ import annotations

from .chat_styles import Style

# Command R, Granite: documents, a date, unknown roles refused, loop controls, filters over attributes.
DOCUMENTS = """
{%- set found = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | list %}
{{- '<|im_start|>system\\nToday is ' + strftime_now('%d %B %Y') + '.' }}
{%- if found %}{{ ' ' ~ found | first }}{% endif %}
{%- if documents %}
    {%- for document in documents %}
        {{- '\\n[' ~ loop.index ~ '/' ~ loop.length ~ '] ' ~ document.title | upper | default('UNTITLED', true) }}
        {{- ': ' ~ document['text'] | replace('\\n', ' ') }}
    {%- endfor %}
{%- endif %}
{%- for tool in tools or [] %}
    {{- '\\n' ~ loop.cycle('- ', '* ') ~ tool.function.name ~ '(' }}
    {%- for key, value in (tool.function.parameters.properties or {}) | items %}
        {{- key ~ (', ' if not loop.last else '') }}
    {%- endfor %}
    {{- '): ' ~ tool.function | tojson(indent=2) }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if message.role not in ['user', 'assistant', 'tool'] %}
        {{- raise_exception('There is no role ' ~ message.role ~ '.') }}
    {%- endif %}
    {%- if message.role == 'user' and message.content == 'stop' %}{% break %}{% endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ (message.content or '') | trim }}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {{- '<tool_call>' ~ message.tool_calls | map(attribute='function') | list | tojson ~ '</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% if think is defined and not think %}
{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif -%}
"""

# gpt-oss: recursive macros, namespaces, type tests, reasoning in a channel of its own, default values of variables.
CHANNELS = """
{%- macro kind(spec, depth=0) -%}
    {%- if spec is not mapping %}any
    {%- elif spec.enum is defined %}{{ spec.enum | map('tojson') | join(' | ') }}
    {%- elif spec.type == 'array' %}{{ kind(spec['items'], depth + 1) }}[]
    {%- elif spec.type == 'object' or spec.properties is defined -%}
        { {%- for key, value in spec.properties.items() -%}
            {{ key }}{{ '?' if key not in spec.get('required', []) }}: {{ kind(value, depth + 1) }}
            {{- '; ' if not loop.last }}
        {%- endfor -%} }
    {%- else %}{{ spec.type | default('any') }}{% endif -%}
{%- endmacro -%}
{%- macro written(message, channel) -%}
    <|im_start|>{{ caller() }}[{{ channel }}]
{%- endmacro -%}
{%- set effort = effort if effort is defined else 'medium' -%}
{{- '<|im_start|>system[effort ' ~ effort ~ ']' }}
{%- for tool in tools or [] %}
    {%- set f = tool.function %}
    {{- '\\ntype ' ~ f.name ~ ' = (_: ' ~ kind(f.parameters) ~ ') => any; // ' ~ f.description | default('') }}
{%- endfor %}
{{- '<|im_end|>' }}
{%- set ns = namespace(last_tool=none, final=-1) %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and not message.tool_calls %}{% set ns.final = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages -%}
    {%- if message.role == 'assistant' %}
        {%- if 'thinking' in message and loop.index0 >= ns.final %}
            {%- call written(message, 'analysis') %}assistant{% endcall %}{{ message.thinking ~ '<|im_end|>' }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set ns.last_tool = call.function.name %}
            {{- '<|im_start|>assistant to=' ~ ns.last_tool ~ '[commentary]' ~ call.function.arguments | tojson }}
            {{- '<|im_end|>' }}
        {%- else %}
            {%- call written(message, 'final') %}assistant{% endcall %}{{ message.content ~ '<|im_end|>' }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}
        {%- if ns.last_tool is none %}
            {{- raise_exception('There is a tool message, but no assistant message with a call before it!') }}
        {%- endif %}
        {{- '<|im_start|>' ~ ns.last_tool ~ ' to=assistant' ~ message.content | tojson ~ '<|im_end|>' }}
    {%- else %}{{- '<|im_start|>' ~ message.role ~ '[]' ~ message.content ~ '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant{% endif -%}
"""

# Mistral, Gemma, Llama 2: turns must alternate; system and tools go into a user's turn; ids are checked.
ALTERNATING = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system, rest = messages[0]['content'] ~ '\\n\\n', messages[1:] %}
{%- else %}{% set system, rest = '', messages %}{% endif %}
{%- set users = rest | selectattr('role', 'equalto', 'user') | list %}
{%- set ns = namespace(index=0) %}
{%- for message in rest %}
    {%- if not (message.role == 'tool' or message.tool_calls) %}
        {%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}
            {{- raise_exception('After the system message, conversation roles must alternate user/assistant') }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in rest %}
    {%- if message['role'] == 'user' %}
        {%- if tools is not none and message == users[-1] %}{{- '[TOOLS]' ~ tools | tojson ~ '[/TOOLS]' }}{% endif %}
        {{- '[INST] ' ~ (system if loop.first) ~ message['content'] ~ ' [/INST]' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {%- if message.tool_calls | length == 0 %}{{ raise_exception('No calls.') }}{% endif %}
        {{- '[CALLS][' }}
        {%- for call in message.tool_calls %}
            {%- if call.id is not defined or call.id is not string or call.id | length != 9 %}
                {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
            {%- endif %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] ~ ', "id": "' ~ call.id[:9] ~ '"}' ~ (', ' if not loop.last else '') }}
        {%- endfor %}
        {{- ']' ~ eos_token }}
    {%- elif message['role'] == 'assistant' %}{{- ' ' ~ message['content'] | trim ~ eos_token }}
    {%- elif message['role'] == 'tool' %}
        {%- set content = message.content.content if message.content is mapping else message.content %}
        {{- '[RESULTS]{"content": ' ~ content | tojson ~ ', "call_id": "' ~ message.tool_call_id ~ '"}[/RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""

# DeepSeek: one long line, content that is or is not none, thoughts cut off by what ends them.
FOLDED = (
    "{%- if not add_generation_prompt is defined %}{%- set add_generation_prompt = false %}{%- endif %}"
    "{%- set ns = namespace(is_first=true, is_tool=false, system='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{%- set ns.system = ns.system + ('' if ns.is_first else '\\n\\n') + message['content'] %}"
    "{%- set ns.is_first = false %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system }}"
    "{%- for tool in tools or [] %}{{ '\\n' + (tool | tojson) }}{%- endfor %}"
    "{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}"
    "{{ '<User>' + message['content'] }}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['tool_calls'] %}"
    "{{ '<Assistant>' + (message['content'] or '') }}"
    "{%- for call in message['tool_calls'] %}{{ '<call>' + call['function']['name'] + '<sep>' }}"
    "{{- (call['function']['arguments'] if call['function']['arguments'] is string"
    " else call['function']['arguments'] | tojson) + '</call>' }}{%- endfor %}{{ '</s>' }}"
    "{%- elif message['role'] == 'assistant' and message['content'] is not none %}"
    "{%- set content = message['content'] %}"
    "{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}"
    "{{ ('' if ns.is_tool else '<Assistant>') + content + '</s>' }}{%- set ns.is_tool = false %}{%- endif %}"
    "{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}"
    "{{ '<output>' + message['content'] + '</output>' }}{%- endif %}{%- endfor -%}"
    "{% if add_generation_prompt and not ns.is_tool %}{{ '<Assistant><think>\\n' }}{% endif %}"
)

_CHATML = ("<|im_start|>", "<|im_end|>")
FEATURES = {
    "documents": Style(DOCUMENTS, _CHATML, ("<tool_call>", "</tool_call>", "<think>", "</think>")),
    "channels": Style(CHANNELS, _CHATML),
    "alternating": Style(
        ALTERNATING,
        ("<s>", "</s>", "[INST]", "[/INST]", "[TOOLS]", "[/TOOLS]", "[CALLS]", "[RESULTS]", "[/RESULTS]"),
    ),
    "folded": Style(
        FOLDED,
        ("<s>", "</s>", "<User>", "<Assistant>", "<call>", "<sep>", "</call>", "<output>", "</output>"),
        ("<think>", "</think>"),
    ),
}

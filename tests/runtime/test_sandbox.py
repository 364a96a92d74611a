"""The sandbox of chat templates: whatever a template does, it ends, within bounds, with a typed error."""

from __future__ import annotations

import copy
import time
import tracemalloc
from typing import Any

import pytest
from agentkv_runtime.errors import TemplateTimeout, TokenizerError
from agentkv_runtime.text.sandbox import MOST_CHARACTERS
from agentkv_runtime.text.tokenizer import Tokenizer

from tests.waiting import SOON

from .chat_styles import byte_level

BACKEND = byte_level()
MESSAGES = [{"role": "user", "content": "hello <b> there"}]


def render(template: str, seconds: float = 10.0, **variables: Any) -> str:
    return Tokenizer(BACKEND, chat_template=template).render(MESSAGES, None, True, variables, seconds).text


FAILURES = {
    "division": "{{ 1 / 0 }}",
    "modulo": "{{ 1 % 0 }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "overflow": "{{ 10.0 ** 400 }}",
    "attribute": "{{ messages.nothing.more }}",
    "index": "{{ messages[9].content }}",
    "type": "{{ 'a' + 1 }}",
    "unpacking": "{% for a, b in messages[0].content %}{% endfor %}",
    "surrogate": "{{ '\\ud800' }}",
    "escape": "{{ messages.__class__.__mro__ }}",
    "raised": "{{ raise_exception('no') }}",
    "unknown filter at run time": "{{ messages | map('wordwrap') | list }}",
    "imports": "{% include 'x' %}",
}


@pytest.mark.parametrize("template", FAILURES.values(), ids=FAILURES)
def test_what_a_template_raises_is_a_typed_error(template: str) -> None:
    with pytest.raises(TokenizerError):
        render(template)


BOMBS = {
    "multiplied text": "{{ 'x' * 10**10 }}",
    "multiplied text, the other way": "{{ 10**10 * messages[0].content }}",
    "multiplied list": "{{ [1] * 10**10 }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "power of a variable": "{{ messages | length ** 2 + 2 ** (9 ** 12) }}",
    "large numbers": (
        "{% set ns = namespace(n=10**4000) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}"
    ),
    "center": "{{ 'x' | center(10**10) }}",
    "center method": "{{ 'x'.center(10**10) }}",
    "ljust": "{{ messages[0].content.ljust(10**10) }}",
    "zfill": "{{ '1'.zfill(width=10**10) }}",
    "indent": "{{ ('\\n' * 10**6) | indent(10**5) }}",
    "indent text": "{{ 'x' | indent('y' * 10**6, true) }}",
    "replace": "{{ ('x' * 10**6) | replace('x', 'y' * 10**6) }}",
    "replace method": "{{ ('x' * 10**6).replace('x', 'y' * 10**6) }}",
    "join": "{{ range(99999) | join('y' * 10**6) }}",
    "join method": "{{ ('y' * 10**6).join(('x' * 10**6) | list) }}",
    "format": "{{ '%1000000000d' | format(1) }}",
    "format operator": "{{ '%*d' % (10**9, 1) }}",
    "format method": "{{ '{:1000000000}'.format(1) }}",
    "nested format": "{{ '{:{}}'.format(1, 10**9) }}",
    "tabs": "{{ ('\\t' * 10**6).expandtabs(10**5) }}",
    "translate": "{{ ('x' * 10**6).translate({120: 'y' * 10**6}) }}",
    "bytes": "{{ (5).to_bytes(10**10, 'big') }}",
    "json": "{{ messages | tojson(indent=10**10) }}",
    "batch": "{{ [1] | batch(10**10, 1) | list }}",
    "round": "{{ 1.5 | round(10**9, 'ceil') }}",
    "doubling": "{% set ns = namespace(t='x') %}{% for i in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
    "doubling by adding": (
        "{% set ns = namespace(t='x') %}{% for i in range(99) %}{% set ns.t = ns.t + ns.t %}{% endfor %}"
    ),
    "doubling in a block": (
        "{% set ns = namespace(t='x') %}{% for i in range(99) %}{% set t %}{{ ns.t }}{{ ns.t }}{% endset %}"
        "{% set ns.t = t %}{% endfor %}"
    ),
    "output": "{% set t = 'x' * 10**6 %}{% for i in range(99999) %}{{ t }}{% endfor %}",
    "range": "{{ range(10**9) | list }}",
}


@pytest.mark.parametrize("template", BOMBS.values(), ids=BOMBS)
def test_what_would_be_large_is_refused_before_it_is_made(template: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TokenizerError):
            render(template)
        assert tracemalloc.get_traced_memory()[1] < 2 * MOST_CHARACTERS
    finally:
        tracemalloc.stop()


CHANGES = {
    "a message's part": "{{ messages[0].content[0].update(text='other') }}",
    "a message's parts": "{{ messages[0].content.append('other') }}",
    "a part, by its class": "{{ dict.update(messages[0].content[0], text='other') }}",
    "a tool, by its class": "{{ dict.pop(tools[0].function, 'name') }}",
    "a tool, by a filter": "{{ (dict | attr('clear'))(tools[0].function) }}",
    "a document, by an alias of the class": "{{ dict['any'].setdefault(documents[0], 'other', 1) }}",
}


@pytest.mark.parametrize("template", CHANGES.values(), ids=CHANGES)
def test_a_template_changes_nothing_of_what_it_is_given(template: str) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    tools = [{"type": "function", "function": {"name": "add"}}]
    variables = {"documents": [{"title": "one"}]}
    before = copy.deepcopy((messages, tools, variables))
    with pytest.raises(TokenizerError, match="unsafe"):
        Tokenizer(BACKEND, chat_template=template).render(messages, tools, True, variables, 10.0)
    assert (messages, tools, variables) == before


ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for a in range(99999) %}{% for b in range(99) if b > 99 %}{% endfor %}{% endfor %}",
    "recursive loops": (
        "{% for a in [range(9999)] recursive %}{{ loop(range(9999)) if loop.depth < 5 else '' }}{% endfor %}"
    ),
    "macros": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "calls": "{% macro f() %}{{ caller() }}{% endmacro %}{% for a in range(99999) %}{% for b in range(9999) %}"
    "{% call f() %}x{% endcall %}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_a_template_without_an_end_is_ended(template: str) -> None:
    with pytest.raises(TemplateTimeout, match=rf"{SOON} seconds"):
        render(template, seconds=SOON)


def test_a_template_is_not_too_slow_because_the_machine_is_busy() -> None:
    class Waits:
        """Takes the time of others."""

        def __str__(self) -> str:
            time.sleep(0.002)
            return "x"

    assert render("{% for a in range(200) %}{{ waits }}{% endfor %}", seconds=0.2, waits=Waits()) == "x" * 200


USUAL = {
    "{{ 'a' ~ 1 ~ none }}": "a1None",
    "{{ 'ab' * 3 + 'c' }}": "abababc",
    "{{ 7 % 4 }} {{ 2 ** 10 }} {{ 'it is %d' % 3 }} {{ '%s-%s' | format('a', 'b') }}": "3 1024 it is 3 a-b",
    "{{ '{}: {:>4}'.format('a', 3) }}": "a:    3",
    "{{ '%(a)s' % {'a': 1} }}": "1",
    "{{ ['a', 'b'] | join(', ') }} {{ [{'n': 'x'}] | join('', 'n') }} {{ '-'.join(['a', 'b']) }}": "a, b x a-b",
    "{{ 'a\\nb\\n\\nc' | indent }}": "a\n    b\n\n    c",
    "{{ 'a\\nb' | indent(2, true) }}": "  a\n  b",
    "{{ 'aXbX' | replace('X', '-') | replace('-', '+', 1) }}": "a+b-",
    "{{ 'x' | center(5) }}|{{ [1, 2, 3] | batch(2) | list }}": "  x  |[[1, 2], [3]]",
    "{{ {'a': ['\u00e9', 1]} | tojson }}": '{"a": ["\u00e9", 1]}',
    "{% for a in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}": "1/3,2/3,3/3",
    "{% set t %}a{{ 1 }}{% endset %}{{ t }}{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(2) }}": "a1[2]",
    "{{ strftime_now('%Y') | int > 2000 }}": "True",
}


@pytest.mark.parametrize(("template", "text"), USUAL.items())
def test_what_templates_do_works_as_ever(template: str, text: str) -> None:
    assert render(template) == text

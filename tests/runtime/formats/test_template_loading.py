"""Response templates are loaded, and refused where they are malformed, as transformers does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from agentkv_runtime.errors import FormatError
from agentkv_runtime.formats.template import load_template
from transformers.utils.chat_parsing.response_templates import load_response_template

from .response_templates import TEMPLATES

MALFORMED: list[Any] = [
    [],
    {"fields": {}},
    {"start_anchor": "a", "fields": []},
    {"fields": {"content": {}}},
    {"version": 2, "start_anchor": "a", "fields": {"content": {}}},
    {"start_anchor": "a", "fields": {"content": {}}, "other": 1},
    {"start_anchor": "a", "defaults": [], "fields": {"content": {}}},
    {"start_anchor": "a", "start_anchor_pattern": "a", "fields": {"content": {}}},
    {"start_anchor": "a", "fields": {"content": {}, "other": {}}},
    *(
        {"start_anchor": "a", "fields": {"content": field}}
        for field in [
            3,
            {"opens": "a"},
            {"content": "yaml"},
            {"open": ""},
            {"open": []},
            {"open": [1]},
            {"open": 1},
            {"open_pattern": "("},
            {"open": "a", "open_pattern": "a"},
            {"join": "a"},
            {"join": 1, "repeats": True},
            {"open_pattern": "(?P<a>b)"},
            {"transform_each": True},
            {"transform_each": 1, "transform": "{content}"},
            {"transform": "a {content}"},
            {"content_args": []},
            {"content": "xml-inline"},
            {"content": "xml-inline", "content_args": {"tag_pattern": "("}},
            {"content": "xml-inline", "content_args": {"tag_pattern": "(?P<name>a)"}},
            {"content": "kv-lines", "content_args": {"kv_sep": ""}},
            {"content": "kv-lines", "content_args": {"value_parser": {"name": "yaml"}}},
            {"content": "json", "content_args": {"string_delims": [["a"]]}},
            {"transform": ["{content}", {"a": "b{content}"}]},
        ]
    ),
]


@pytest.mark.parametrize("template", MALFORMED, ids=str)
def test_malformed_templates_are_refused_alike(template: Any) -> None:
    field = template["fields"].get("content") if isinstance(template, dict) and template.get("fields") else None
    if not isinstance(field, dict) or not field.keys() & {"content", "content_args"} or field.get("content") == "yaml":
        with pytest.raises(ValueError, match=r"."):  # which looks at content_args when it has something to parse
            load_response_template(template)
    with pytest.raises(FormatError, match=r"."):
        load_template(template)


@pytest.mark.parametrize("name", TEMPLATES)
def test_good_templates_are_loaded_alike(name: str) -> None:
    ours, theirs = load_template(TEMPLATES[name][0]), load_response_template(copy.deepcopy(TEMPLATES[name][0]))
    assert list(ours.fields) == list(theirs.fields)
    assert (ours.implicit.name if ours.implicit else None) == theirs.implicit

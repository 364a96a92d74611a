"""Whatever template feature the well-known families rely on: text and tokens as transformers makes them."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.errors import TokenizerError
from agentkv_runtime.text.tokenizer import Tokenizer

from .chat_features import FEATURES
from .chat_styles import Style, write_style
from .test_chat_styles import plain_text

Pair = tuple[str, Tokenizer, Any]


@pytest.fixture(scope="module", params=list(FEATURES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A style's name, its tokenizer here, and the same in transformers."""
    from transformers import AutoTokenizer

    style: Style = FEATURES[request.param]
    folder: Path = write_style(style, tmp_path_factory.mktemp(request.param))
    return request.param, Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)


class Chats:
    """Random conversations: turns, calls and results, tools with nested schemas, documents, variables; some wrong."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def _text(self) -> str:
        return plain_text(self.rng)

    def _schema(self, depth: int = 0) -> dict[str, Any]:
        kind = self.rng.choice(["string", "integer", "enum", "array", "object"] if depth < 3 else ["string", "enum"])
        if kind == "enum":
            return {"enum": [self._text(), 3, None, True]}
        if kind == "array":
            return {"type": "array", "items": self._schema(depth + 1)}
        if kind == "object":
            names = [f"{self.rng.choice('abc')}{i}" for i in range(self.rng.randint(1, 3))]
            return {
                "type": "object",
                "properties": {name: self._schema(depth + 1) for name in names},
                "required": names[: self.rng.randint(0, 2)],
            }
        return {"type": kind, "description": self._text()}

    def _tool(self) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"a": self._schema(), "b": self._schema()}, "required": ["a"]}
        function: dict[str, Any] = {"name": self.rng.choice(["look", "find"]), "parameters": parameters}
        if self.rng.random() < 0.7:
            function["description"] = self._text()
        return {"type": "function", "function": function}

    def _calls(self) -> dict[str, Any]:
        calls = []
        for _ in range(self.rng.randint(1, 2)):
            arguments = {"a": self._text(), "b": self.rng.choice([1, 2.5, None, True, [1, "x"], {"c": self._text()}])}
            call_id = "call00000" if self.rng.random() < 0.9 else "x"
            function = {"name": "look", "arguments": arguments}
            calls.append({"id": call_id, "type": "function", "function": function})
        content = self.rng.choice(["", self._text()])
        return {"role": "assistant", "content": content, "tool_calls": calls}

    def chat(self) -> dict[str, Any]:
        """What both renderers are given."""
        rng = self.rng
        messages: list[dict[str, Any]] = []
        if rng.random() < 0.5:
            messages.append({"role": "system", "content": self._text()})
        for _ in range(rng.randint(1, 3)):
            messages.append({"role": "user", "content": rng.choice([self._text(), "stop"])})
            if rng.random() < 0.4:
                messages += [self._calls(), {"role": "tool", "content": self._text(), "tool_call_id": "call00000"}]
            answer = rng.choice(["", "<think>\nwell\n</think>\n"]) + self._text()
            messages.append({"role": "assistant", "content": answer})
            if rng.random() < 0.3:
                messages[-1]["thinking"] = self._text()
        if rng.random() < 0.6:
            messages.pop()  # the assistant's turn
        if rng.random() < 0.1:
            messages.append({"role": rng.choice(["critic", "tool"]), "content": self._text(), "tool_call_id": "x"})
        chat: dict[str, Any] = {"messages": messages, "add_generation_prompt": rng.random() < 0.6}
        chat["tools"] = [self._tool() for _ in range(rng.randint(1, 2))] if rng.random() < 0.5 else None
        if rng.random() < 0.5:
            chat["documents"] = [{"title": rng.choice(["", "Notes"]), "text": self._text()} for _ in range(2)]
        if rng.random() < 0.3:
            chat |= {"think": rng.random() < 0.5, "effort": "high"}
        return chat


def check(pair: Pair, count: int, seed: int) -> tuple[int, int]:
    """Compares so many conversations; how many were rendered and how many both refused."""
    _, ours, reference = pair
    chats, made, refused = Chats(seed), 0, 0
    for _ in range(count):
        chat = chats.chat()
        given = {**chat, "conversation": chat["messages"]}
        del given["messages"]
        why = refusal(reference, given)
        if why is not None:
            with pytest.raises(TokenizerError, match=re.escape(why)):
                ours.render_chat(**chat)
            refused += 1
            continue
        text = reference.apply_chat_template(tokenize=False, **given)
        assert ours.render_chat(**chat) == text, chat
        spelled = any(token in str(chat) for token in ("<think>", "</think>"))
        if not spelled:  # of content those are text here, and control tokens there
            assert ours.apply_chat(**chat) == reference.apply_chat_template(return_dict=False, **given), chat
        made += 1
    return made, refused


def test_features_as_transformers_makes_them(pair: Pair) -> None:
    made, refused = check(pair, 150, seed=1)
    assert made > 50
    assert refused or pair[0] == "folded"


def refusal(reference: Any, given: dict[str, Any]) -> str | None:
    """Why transformers refuses a conversation; None where it does not."""
    try:
        reference.apply_chat_template(tokenize=False, **given)
    except Exception as error:
        return str(error)
    return None


@pytest.mark.soak
def test_many_features(pair: Pair, soak_count: int) -> None:
    print(pair[0], check(pair, soak_count, seed=2))

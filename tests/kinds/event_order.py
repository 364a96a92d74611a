"""What holds of every stream of a protocol: the order of its events, their numbers, and that they add up to its end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Events = Sequence[tuple[str, Any]]


def check_chat(events: Events) -> None:
    """Chunks of one choice: the role, then parts; calls are counted from 0 and written one after another; one end."""
    chunks = [choice for _, chunk in events for choice in chunk["choices"]]
    assert chunks[0]["delta"]["role"] == "assistant"
    assert [place for place, each in enumerate(chunks) if each["finish_reason"] is not None] == [len(chunks) - 1]
    parts = [part for each in chunks for part in each["delta"].get("tool_calls") or ()]
    opened = [part["index"] for part in parts if "id" in part]
    assert opened == list(range(len(opened)))
    assert [part["index"] for part in parts] == sorted(part["index"] for part in parts)
    for index in opened:
        first, *rest = (part for part in parts if part["index"] == index)
        assert first["function"]["name"]
        assert isinstance(json.loads("".join(part["function"]["arguments"] for part in [first, *rest])), dict)
        assert not any("id" in part for part in rest)


def check_responses(events: Events) -> None:
    """Items one after another, each told in full and as the last event has it."""
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    assert all(name == event["type"] for name, event in events)
    kinds = [name.removeprefix("response.") for name, _ in events]
    assert kinds[:2] == ["created", "in_progress"]
    last = events[-1][1]["response"]
    open_item: dict[str, Any] | None = None
    texts: list[str] = []
    done: list[Any] = []
    for name, event in events[2:-1]:
        kind = name.removeprefix("response.")
        if kind == "in_progress":
            continue
        assert event["output_index"] == len(done)
        if kind == "output_item.added":
            assert open_item is None
            open_item, texts = event["item"], []
            assert open_item is not None
            assert open_item["status"] == "in_progress"
            continue
        assert open_item is not None
        assert (event["item"]["id"] if "item" in event else event["item_id"]) == open_item["id"]
        if kind.endswith(".delta"):
            texts.append(event["delta"])
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == "".join(texts)
        elif kind == "function_call_arguments.done":
            assert event["arguments"] == "".join(texts)
            assert isinstance(json.loads(event["arguments"]), dict)
        elif kind == "output_item.done":
            done.append(event["item"])
            open_item = None
    assert open_item is None
    assert done == last["output"]
    ended = "incomplete" if kinds[-1] == "incomplete" else "completed"
    assert last["status"] == ended
    assert all(item["status"] == "completed" for item in last["output"][:-1])


def check_messages(events: Events) -> None:
    """Blocks are counted from 0, each closed before the next is opened; then one reason, and the end."""
    kinds = [name for name, _ in events if name != "ping"]
    assert all(name == event["type"] for name, event in events)
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    opened, block, text = 0, None, ""
    for name, event in events:
        match name:
            case "content_block_start":
                assert (block, event["index"]) == (None, opened)
                block, text = event["content_block"]["type"], ""
                opened += 1
            case "content_block_delta":
                assert event["index"] == opened - 1
                wanted = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
                assert event["delta"]["type"] == wanted[str(block)]
                text += event["delta"].get("partial_json", "")
            case "content_block_stop":
                assert (event["index"], block is None) == (opened - 1, False)
                assert block != "tool_use" or isinstance(json.loads(text), dict)
                block = None
            case "message_delta":
                assert block is None
                assert event["delta"]["stop_reason"] is not None

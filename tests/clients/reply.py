"""What the scripted model says: enough for a tool, its result, and answers that can be told apart."""

from __future__ import annotations

from collections.abc import Callable

from agentkv.testing import Call, Reply

TITLE = '{"title": "A note"}'


def desk(read: Call) -> Callable[[str], Reply]:
    """Reads the note where the user's last word asks for it, and says what it says; numbers other answers."""

    def reply(prompt: str) -> Reply:
        *_, last, _ = prompt.split("<|im_start|>")
        asked = prompt.rpartition("<|im_start|>user")[2]
        if "<tools>" not in prompt:
            return TITLE
        if last.startswith("tool"):
            return "The password is tulip-42." if "tulip-42" in last else f"It failed: {last}"
        return [read] if "note" in asked else f"Answer {prompt.count('Answer ') + 1}."

    return reply

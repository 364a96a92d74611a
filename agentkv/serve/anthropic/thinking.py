"""What a client asks of the model's thinking, held against what the model can."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..refused import Refused

if TYPE_CHECKING:
    from ..asked import Asked
    from ..server import Server
    from .message_request import CountRequest


def asked_of(server: Server, body: CountRequest) -> Asked:
    """What a client asks of this model. Raises Refused, also where it is to think for so long; in a strict server where
    one is to think that does not, or one not to that has no switch."""
    reasons = server.context._home.format.thinking is not None
    kind = None if body.thinking is None else body.thinking.type
    if not reasons and kind not in (None, "disabled"):
        server.ignored.leave_out("thinking", "the model does not reason")
    if not reasons and body.effort:
        server.ignored.leave_out("output_config.effort", "the model does not reason")
    if reasons and kind == "enabled":
        told = "the model's thinking cannot be bounded by itself; ask for adaptive thinking, bounded by max_tokens"
        raise Refused("invalid", told, param="thinking.budget_tokens")
    if reasons and kind == "disabled" and not _has_switch(server):
        server.ignored.leave_out("thinking", "the model's template cannot turn reasoning off")
    asked = body.asked()
    return server.checked(asked if reasons else replace(asked, reasoning={}))


def _has_switch(server: Server) -> bool:
    question = [{"role": "user", "content": "."}]
    on, off = (server.context.tokenizer.render_chat(question, enable_thinking=value) for value in (True, False))
    return on != off

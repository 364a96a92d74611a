"""What a client asks of the model's thinking, held against what the model can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..refused import Refused

if TYPE_CHECKING:
    from ..server import Server
    from .message_request import CountRequest


def check_thinking(server: Server, body: CountRequest) -> None:
    """Raises Refused where a model is to think for so long, or one not to that has no switch; in a strict server also
    where one is to think that does not."""
    reasons = server.context._home.format.thinking is not None
    thinks = None if body.thinking is None else body.thinking.type != "disabled"
    bounded = body.thinking is not None and body.thinking.type == "enabled"
    if not reasons and server.ignored.strict:
        _refuse_thinking(body, bool(thinks))
    if bounded and reasons:
        told = "the model's thinking cannot be bounded by itself; ask for adaptive thinking, bounded by max_tokens"
        raise Refused("invalid", told, param="thinking.budget_tokens")
    if reasons and thinks is False and not _has_switch(server):
        raise Refused("invalid", "the model's template cannot turn reasoning off; leave it out", param="thinking")


def _refuse_thinking(body: CountRequest, thinks: bool) -> None:
    if thinks:
        raise Refused("invalid", "the model does not reason; leave it out", param="thinking")
    if body.effort:
        raise Refused("invalid", "the model does not reason; leave it out", param="output_config.effort")


def _has_switch(server: Server) -> bool:
    question = [{"role": "user", "content": "."}]
    on, off = (server.context.tokenizer.render_chat(question, enable_thinking=value) for value in (True, False))
    return on != off

"""What a client asks of the model's thinking, held against what the model can."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..._handle import core_of

if TYPE_CHECKING:
    from ..asked import Asked
    from ..server import Server
    from .message_request import CountRequest


def asked_of(server: Server, body: CountRequest) -> Asked:
    """What a client asks of this model. Raises Refused, also for a thought that leaves nothing for an answer; in a
    strict server where one is to think that does not."""
    if core_of(server.context).chat.format.thought is not None:
        body.check_budget()
        return server.checked(body.asked())
    if body.thinking is not None and body.thinking.type != "disabled":
        server.ignored.leave_out("thinking", "the model does not reason")
    if body.effort:
        server.ignored.leave_out("output_config.effort", "the model does not reason")
    return server.checked(replace(body.asked(), thinking=None, effort=None))

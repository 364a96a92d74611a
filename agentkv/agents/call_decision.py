"""Whether a question needs a tool, decided by asking the model on a fork."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .._chat.messages import text_of
from .._context.handle import handle_of
from .._types.errors import TooManyBranches
from .._types.log import log

if TYPE_CHECKING:
    from .._context.branch import Branch

QUESTION = "Is one of the functions made for this request? Answer yes or no."
_YES, _NO = ("Yes", "yes"), ("No", "no")


async def call_probability(branch: Branch) -> float | None:
    """Probability, from 0 to 1, that one of the tools fits the user's last message, according to the model.

    The question follows the user's words on a temporary fork: it costs the prefill of that message, and the branch is
    unchanged. None where the branch does not end with a user's message, and, with a warning in the log, where no
    branch is free for the fork.

    Raises as `Branch.fork`, `extend` and `select` do.
    """
    entries = handle_of(branch).state.conversation.entries
    if not entries or branch.messages[-1].role != "user":
        return None
    last = entries[-1]
    asked = f"{text_of(last.message)}\n\n{QUESTION}"
    try:
        fork = await branch.fork()
    except TooManyBranches:
        log.warning("no branch is free to ask whether a tool fits; the model decides by itself", branch=branch.id)
        return None
    async with fork:
        await fork.rollback(last.start)
        await fork.extend([{**last.message, "content": asked}])
        said = await fork.select([*_YES, *_NO])
    weights = [math.exp(logprob - max(said.logprobs)) for logprob in said.logprobs]
    return sum(weights[: len(_YES)]) / sum(weights)

"""What can be wrong with a request is found before its prompt is read: from then on its status is 200."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._errors import InvalidInput, PositionsExhausted
from .._request import GenerationRequest
from .._speculation import INHERIT
from ..output._state import ConstraintFailed
from .refused import Refused

if TYPE_CHECKING:
    from .._home import Home
    from .asked import Asked
    from .token_requests import GenerateTokens

NO_BRANCH = -1  # yet
_PREFIX = 64  # tokens before the message, in which a template may have begun it, with `<think>` say


def reply_prefix(home: Home, tokens: Sequence[int]) -> str:
    """What the chat template wrote of the message that is to come after these tokens."""
    spelled = home.token_bytes
    written = b"".join(spelled[token] for token in tokens[-_PREFIX:] if 0 <= token < len(spelled))
    return home.format.template.reply_in(written.decode("utf-8", "replace"))


async def check_reply(home: Home, asked: Asked, tokens: Sequence[int]) -> None:
    """Raises Refused or InvalidInput where no message can be asked for so, after these tokens."""
    request = GenerationRequest.checked(
        NO_BRANCH,
        max_tokens=asked.max_tokens or 1,
        stop=list(asked.stop) or None,
        sampling=asked.sampling,
        top_logprobs=asked.top_logprobs,
        output=asked.held(home.format, reply_prefix(home, tokens)),
        speculative=INHERIT,
        home=home,
        wait_for_room=True,
    )
    try:
        await request.prepare()
    except InvalidInput:
        asked.check_tools()
        raise


async def check_going_on(request: GenerationRequest, body: GenerateTokens) -> None:
    """Raises Refused, InvalidInput or PositionsExhausted where these tokens cannot be gone on with so."""
    await request.prepare()
    length, limit = len(body.tokens), request.home.context.model_info.max_positions
    if body.made > length:
        raise Refused("invalid", f"made is {body.made}, but there are {length} tokens", "invalid_value", "made")
    if limit is not None and length >= limit:
        raise PositionsExhausted(f"{length} tokens leave no position of the model's {limit}; give less")
    constraint = request.output.constraint
    if constraint is None or not body.output_made:
        return
    try:
        request.home.grammars.native(constraint).rule.begin().say(list(body.tokens[-body.output_made :]))
    except ConstraintFailed as error:
        what = f"the last {body.output_made} tokens are not the beginning of such an output: {error}"
        raise InvalidInput(what) from error

"""Checks of a request before its prompt is prefilled: after that its status is 200 already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentkv_runtime.formats.parsed import CallOpened

from .._context.generate import GenerationRequest
from .._model.generate_options import GenerateOptions
from .._types.errors import InvalidInput, PositionsExhausted
from ..output._matcher import ConstraintFailed
from .http.errors import ApiError

if TYPE_CHECKING:
    from .._chat.conversation import Conversation
    from .._chat.rerender import PromptUpdate
    from .._context.core import ContextCore
    from .completion import ReplyRequest
    from .tokens.bodies import GenerateTokens

NO_BRANCH = -1  # id in a request that is checked before its branch exists
_SOME_TEXT = "."


def begun_reply(home: ContextCore, conversation: Conversation, log: Sequence[int]) -> str:
    """The text that the message begins with: from the template, such as `<think>`, or from the client."""
    form, opened = home.chat.format, conversation.tail
    begun = form.template.begun_in(opened.text if opened else "")
    said = home.chat.detokenizer.visible_bytes(log[conversation.end :]).decode("utf-8", "replace")
    parser = form.parser(prefix=begun + said)
    if parser.in_call or any(isinstance(delta, CallOpened) for delta in parser.deltas_of_prefix):
        return begun + _SOME_TEXT  # text of the client is never parsed as a call
    return begun + said


async def check_reply(home: ContextCore, asked: ReplyRequest, made: PromptUpdate) -> None:
    """Raises ApiError or InvalidInput where the request cannot be generated behind this prompt."""
    assert made.conversation is not None
    prefix = begun_reply(home, made.conversation, made.added)
    options = GenerateOptions.checked(**asked.options(1))
    held = asked.held(home.chat.format, prefix)
    request = GenerationRequest.checked(NO_BRANCH, home, options, held, wait_for_room=True)
    try:
        await request.prepare()
    except InvalidInput:
        asked.check_tools()
        raise


async def check_going_on(request: GenerationRequest, body: GenerateTokens) -> None:
    """Raises ApiError, InvalidInput or PositionsExhausted where these tokens cannot be continued as requested."""
    await request.prepare()
    length, limit = len(body.tokens), request.home.context.model_info.max_positions
    if body.made > length:
        raise ApiError("invalid", f"made is {body.made}, but there are {length} tokens", "invalid_value", "made")
    if limit is not None and length >= limit:
        raise PositionsExhausted(f"{length} tokens leave no position of the model's {limit}; give less")
    constraint = request.output.constraint
    if constraint is None or not body.output_made:
        return
    try:
        request.home.compiler.native(constraint).rule.begin().say(list(body.tokens[-body.output_made :]))
    except ConstraintFailed as error:
        what = f"the last {body.output_made} tokens are not the beginning of such an output: {error}"
        raise InvalidInput(what) from error

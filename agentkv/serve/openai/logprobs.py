"""How likely the tokens of a message were, in the shape of OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Sequence

from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob
from openai.types.chat.chat_completion_token_logprob import TopLogprob as Top

from ..reply import Likely


def logprobs_of(likely: Sequence[Likely]) -> ChoiceLogprobs:
    """Of the content's tokens."""
    return ChoiceLogprobs(content=[_token(each) for each in likely])


def _token(likely: Likely) -> ChatCompletionTokenLogprob:
    return ChatCompletionTokenLogprob(
        token=likely.spelled.decode("utf-8", "replace"),
        bytes=list(likely.spelled),
        logprob=likely.logprob,
        top_logprobs=[Top(token=t.text, bytes=list(t.text.encode()), logprob=t.logprob) for t in likely.top],
    )

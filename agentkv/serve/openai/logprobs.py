"""Log probabilities in both of OpenAI's shapes: for chat messages and for raw texts."""

from __future__ import annotations

from collections.abc import Sequence

from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob
from openai.types.chat.chat_completion_token_logprob import TopLogprob as Top
from openai.types.completion_choice import Logprobs

from ..._chat.tokenizer import text_decoder
from ..._types.results import Token
from ..reply import TokenLogprob


def logprobs_of(likely: Sequence[TokenLogprob]) -> ChoiceLogprobs:
    """Log probabilities of the content's tokens."""
    return ChoiceLogprobs(content=[_token(each) for each in likely])


def _token(likely: TokenLogprob) -> ChatCompletionTokenLogprob:
    return ChatCompletionTokenLogprob(
        token=likely.spelled.decode("utf-8", "replace"),
        bytes=list(likely.spelled),
        logprob=likely.logprob,
        top_logprobs=[Top(token=t.text, bytes=list(t.text.encode()), logprob=t.logprob) for t in likely.top],
    )


class TextLogprobs:
    """Log probabilities of one text's tokens, piece by piece. Tokens whose text is held back, such as half a character,
    come with that text; tokens of a stop string and of the end are omitted.

    Args:
        spelled: the bytes of each token.
        begun: bytes of an incomplete character at the end of the prompt.
    """

    def __init__(self, spelled: Sequence[bytes], begun: bytes) -> None:
        self._spelled = spelled
        self._held: list[Token] = []
        self._decoder = text_decoder(begun)
        self._offset = 0

    def of(self, tokens: Sequence[Token]) -> Logprobs:
        """Log probabilities of the text of these tokens."""
        said: list[Token] = []
        for token in tokens:
            if token.id >= 0:
                self._held.append(token)
            if token.text:
                said += self._held
                self._held = []
        return Logprobs(
            text_offset=[self._place(token) for token in said],
            token_logprobs=[token.logprob for token in said],
            tokens=[self._name(token.id) for token in said],
            top_logprobs=[self._likely(token) for token in said],
        )

    def _place(self, token: Token) -> int:
        """Offset of the token in the text, in characters."""
        place = self._offset
        self._offset += len(self._decoder.decode(self._spelled[token.id]))
        return place

    def _likely(self, token: Token) -> dict[str, float]:
        """Log probabilities of the likeliest tokens and of the chosen one, by text."""
        likely = {self._name(other.id): other.logprob for other in token.top_logprobs}
        return {**likely, self._name(token.id): token.logprob}

    def _name(self, token: int) -> str:
        """Text of a token; for an incomplete character its bytes, in the protocol's notation."""
        spelled = self._spelled[token]
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

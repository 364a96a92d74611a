"""Log probabilities in the two shapes of OpenAI: those of a chat message, and those of a raw text."""

from __future__ import annotations

from collections.abc import Sequence

from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob
from openai.types.chat.chat_completion_token_logprob import TopLogprob as Top
from openai.types.completion_choice import Logprobs

from ..._chat.tokenizer import text_decoder
from ..._types.results import Token
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


class TextLogprobs:
    """How likely the tokens of one text are, piece by piece. Tokens whose text is held back, such as half a character,
    come with the text; those of a stop string and of the end never do.

    Args:
        spelled: the bytes of each token.
        begun: those of a character that the prompt begins.
    """

    def __init__(self, spelled: Sequence[bytes], begun: bytes) -> None:
        self._spelled = spelled
        self._held: list[Token] = []
        self._decoder = text_decoder(begun)
        self._offset = 0

    def of(self, tokens: Sequence[Token]) -> Logprobs:
        """Of the text of these tokens."""
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
        """Where it begins in the text, in characters."""
        place = self._offset
        self._offset += len(self._decoder.decode(self._spelled[token.id]))
        return place

    def _likely(self, token: Token) -> dict[str, float]:
        """The likeliest ones, and the one that was taken."""
        likely = {self._name(other.id): other.logprob for other in token.top_logprobs}
        return {**likely, self._name(token.id): token.logprob}

    def _name(self, token: int) -> str:
        """Its text. Where it is no whole character, its bytes as the protocol writes them."""
        spelled = self._spelled[token]
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

"""A chat engine of your own over a decode session: prefill what is new, sample, feed back. No event loop needed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from agentkv_runtime.sessions import DecodeSession, make_decode_session
from agentkv_runtime.text.tokenizer import Tokenizer

from agentkv.models import nano


class Engine:
    """A decode session and the tokens that it holds."""

    def __init__(self, session: DecodeSession) -> None:
        self.session = session
        self.cached: list[int] = []

    def generate(self, prompt: list[int], eos: set[int], temperature: float = 0.2, seed: int = 0) -> Iterator[int]:
        """Yields what follows the prompt. Only what differs from the conversation so far is fed."""
        rng = np.random.default_rng(seed)
        differ = (i for i, (a, b) in enumerate(zip(self.cached, prompt[:-1], strict=False)) if a != b)
        del self.cached[next(differ, min(len(self.cached), len(prompt) - 1)) :]
        self.session.rewind(len(self.cached))
        row = self._feed(prompt[len(self.cached) :])
        for _ in range(64):
            weights = np.exp((row - row.max()).astype(np.float64) / temperature)
            token = int(rng.choice(len(row), p=weights / weights.sum()))
            yield token
            if token in eos:
                return
            row = self._feed([token])

    def _feed(self, tokens: list[int]) -> npt.NDArray[np.float32]:
        most = self.session.max_tokens
        for part in (tokens[at : at + most] for at in range(0, len(tokens), most)):
            row = self.session.forward(part, rows=[len(part) - 1])[0]
            self.cached += part
        return row


def main() -> None:
    """Hold a conversation of three turns."""
    tokenizer = Tokenizer.from_folder(nano())
    engine = Engine(make_decode_session(nano(), capacity=512))
    messages: list[dict[str, str]] = []
    for question in ("Hello!", "Who are you?", "Thank you!"):
        messages.append({"role": "user", "content": question})
        prompt = tokenizer.apply_chat(messages)
        answer = tokenizer.decode(engine.generate(prompt, set(tokenizer.eos_ids)))
        messages.append({"role": "assistant", "content": answer})
        print(f"> {question}\n{answer}")
    print(f"\n{len(engine.session)} tokens in the cache, {engine.session.kv_bytes / 1024:.0f} KiB of keys and values")


if __name__ == "__main__":
    main()

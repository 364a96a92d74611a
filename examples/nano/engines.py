"""Ways to run the nano model: through transformers, or as branches of an agentkv context."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from transformers import AutoTokenizer, PreTrainedTokenizerBase

MAX_TOKENS = 200


@dataclass
class Chat:
    """Messages so far, and the tools they may use."""

    messages: list[dict[str, str]]
    tools: list[dict[str, Any]]


class Engine(Protocol):
    """Anything that can say the assistant's next turn."""

    async def complete(self, chats: Sequence[Chat]) -> list[str]:
        """The next assistant turn of each chat, greedily, without the closing token."""
        ...


def prompt(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> str:
    """A chat as text, up to where the assistant speaks."""
    text = tokenizer.apply_chat_template(
        chat.messages, tools=[*chat.tools] or None, tokenize=False, add_generation_prompt=True
    )
    return str(text)


class TransformersEngine:
    """Batched greedy decoding with left padding."""

    def __init__(self, folder: Path, int4: bool = False, batch: int = 32) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from .model import int4 as rounded

        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder)
        self._model.eval()
        if int4:
            with torch.no_grad():
                for parameter in (p for p in self._model.parameters() if p.ndim == 2):
                    parameter.copy_(rounded(parameter))
        self._batch = batch

    async def complete(self, chats: Sequence[Chat]) -> list[str]:
        """Decode chats of similar length together."""
        prompts = [prompt(self._tokenizer, chat) for chat in chats]
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        texts = [""] * len(prompts)
        for start in range(0, len(order), self._batch):
            chosen = order[start : start + self._batch]
            inputs = self._tokenizer(
                [prompts[index] for index in chosen], return_tensors="pt", padding=True, add_special_tokens=False
            )
            inputs.pop("token_type_ids", None)
            outputs = self._model.generate(**inputs, max_new_tokens=MAX_TOKENS, do_sample=False)
            fresh = outputs[:, inputs["input_ids"].shape[1] :]
            for index, row in zip(chosen, fresh, strict=True):
                texts[index] = str(self._tokenizer.decode(row, skip_special_tokens=True))
        return texts


class AgentKVEngine:
    """Every chat is a branch of one context; branches that are pending share their forwards."""

    def __init__(self, context: Any, tokenizer: PreTrainedTokenizerBase, concurrent: int = 8) -> None:
        self._context = context
        self._tokenizer = tokenizer
        self._concurrent = concurrent

    async def _one(self, chat: Chat) -> str:
        ids = self._tokenizer.encode(prompt(self._tokenizer, chat), add_special_tokens=False)
        async with await self._context.branch(ids) as branch:
            generation = await branch.generate(max_tokens=MAX_TOKENS)
        return str(self._tokenizer.decode(generation.tokens, skip_special_tokens=True))

    async def complete(self, chats: Sequence[Chat]) -> list[str]:
        """A few branches at a time."""
        import agentkv

        texts: list[str] = []
        for start in range(0, len(chats), self._concurrent):
            group = chats[start : start + self._concurrent]
            texts += await agentkv.gather(*(self._one(chat) for chat in group))
        return texts


@asynccontextmanager
async def open_engine(name: str, folder: Path, int4: bool = False, kv_dtype: str = "fp16") -> AsyncIterator[Engine]:
    """The engine called `transformers` or `agentkv`, over a model folder.

    `int4` rounds the former's weights; `kv_dtype` is of the latter's cache.
    """
    if name == "transformers":
        yield TransformersEngine(folder, int4)
    elif name == "agentkv":
        import agentkv

        async with agentkv.Context.open(folder, capacity=16384, kv_dtype=kv_dtype) as context:
            yield AgentKVEngine(context, AutoTokenizer.from_pretrained(folder))
    else:
        raise ValueError(f"unknown engine {name!r}: use transformers or agentkv")

"""Keywords that a call does not take: one row per name that users of other tools would give, and per typo."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import agentkv as kv

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def calls() -> Iterator[dict[str, Call]]:
    with kv.Context.open("nano", capacity=256).sync() as ctx:
        agent, branch = kv.Agent("You are Nano."), ctx.branch("Hello")
        yield {
            "open": lambda **how: kv.Context.open("nano", **how),
            "connect": lambda **how: kv.Context.connect("http://127.0.0.1:1/v1", **how),
            "generate": lambda **how: branch.generate(**how),
            "stream": lambda **how: branch.stream(**how),
            "Agent": lambda **how: kv.Agent("", **how),
            "run": lambda **how: branch.run(agent, "Hi", **how),
        }


ROWS = [
    ("open", "n_ctx", "Context.open has no option 'n_ctx'; did you mean 'capacity'?"),
    ("open", "num_thread", "did you mean 'threads'?"),
    ("open", "model_path", "did you mean 'model'?"),
    ("open", "thread", "did you mean 'threads'?"),
    ("open", "temperature", "belongs to Sampling: give sampling=kv.Sampling(temperature=...) to Branch.generate"),
    ("open", "max_tokens", "max_tokens is an option of Branch.generate and Branch.stream"),
    ("open", "n_predict", "did you mean 'max_tokens'? max_tokens is an option of Branch.generate"),
    ("open", "low_vram", "it takes model, capacity, kv_dtype"),
    ("open", "n_gpu_layers", "Context.open has no option 'n_gpu_layers'; did you mean 'device'?"),
    ("connect", "base_url", "Context.connect has no option 'base_url'; did you mean 'url'?"),
    ("generate", "temperature", "Branch.generate has no option 'temperature'; temperature belongs to Sampling"),
    ("generate", "temprature", "did you mean 'temperature'? temperature belongs to Sampling: give sampling=kv.S"),
    ("generate", "repeat_penalty", "did you mean 'repetition_penalty'? repetition_penalty belongs to Sampling"),
    ("generate", "max_new_tokens", "did you mean 'max_tokens'?"),
    ("generate", "stop_sequences", "did you mean 'stop'?"),
    ("generate", "response_format", "did you mean 'output'?"),
    ("generate", "capacity", "capacity is an option of Context.open"),
    ("stream", "top_p", "Branch.stream has no option 'top_p'; top_p belongs to Sampling"),
    ("Agent", "max_round", "Agent has no option 'max_round'; did you mean 'max_rounds'?"),
    ("Agent", "system_prompt", "did you mean 'instructions'?"),
    ("Agent", "temperature", "temperature belongs to Sampling: give sampling=kv.Sampling(temperature=...)"),
    ("Agent", "n_ctx", "did you mean 'capacity'? capacity is an option of Context.open"),
    ("run", "temperature", "a turn of an Agent has no option 'temperature'; temperature belongs to Sampling"),
    ("run", "max_rounds", "max_rounds is an option of Agent"),
    ("run", "toolchoice", "did you mean 'tool_choice'?"),
]


@pytest.mark.parametrize(("call", "name", "why"), ROWS, ids=[f"{call}-{name}" for call, name, _ in ROWS])
def test_an_unknown_keyword_is_told_where_it_lives(calls: dict[str, Call], call: str, name: str, why: str) -> None:
    with pytest.raises(kv.InvalidInput, match=re.escape(why)):
        calls[call](**{name: 1})


@pytest.mark.parametrize(
    ("call", "first"),
    [(kv.Context.open, "model"), (kv.Branch.generate, "self"), (kv.Branch.stream, "self"), (kv.Agent, "instructions")],
)
def test_signatures_are_those_that_were_written(call: Call, first: str) -> None:
    parameters = inspect.signature(call).parameters
    assert next(iter(parameters)) == first
    assert len(parameters) > 5
    assert not {"args", "kwargs", "options"} & parameters.keys()


def test_what_is_to_be_awaited_looks_so() -> None:
    assert inspect.iscoroutinefunction(kv.Branch.generate)
    assert not inspect.iscoroutinefunction(kv.Branch.stream)

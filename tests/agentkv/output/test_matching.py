"""Masks of a grammar are those of its text alone, whatever drafts were tried and whatever other outputs said."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np
import pytest
from agentkv_runtime.folder.model_folder import read_model_folder
from numpy.typing import NDArray

import agentkv as kv
from agentkv.output._grammar_matcher import GrammarRule, GrammarState, GrammarVocabulary
from agentkv.output._matcher import Masks


def _object(*names: str) -> str:
    properties = {name: {"type": "string"} for name in names}
    separators = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
    schema = {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    return json.dumps({**schema, "x-guidance": separators})


CALLS = f"""
start: call (", " call)*
call: "{{\\"name\\": \\"weather\\", " one | "{{\\"name\\": \\"stock\\", " other | "{{\\"name\\": \\"train\\", " both
one: %json {_object("city")}
other: %json {_object("product")}
both: %json {_object("origin", "to")}
"""
WEATHER = '{"name": "weather", {"city": "Tolvik"}'
STOCK = '{"name": "stock", {"product": "Lumora"}'
TRAIN = '{"name": "train", {"origin": "Tolvik", "to": "Brasno"}'
TEXTS = (WEATHER, f"{STOCK}, {WEATHER}", TRAIN)


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    folder = read_model_folder(kv.models.nano())
    return GrammarVocabulary(folder.tokenizer, folder.manifest.vocab_size)


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    tokenizer = read_model_folder(kv.models.nano()).tokenizer
    return [tokenizer.encode(text) for text in TEXTS]


def fresh(rule: GrammarRule, said: list[int]) -> GrammarState:
    state = rule.begin()
    assert isinstance(state, GrammarState)
    if said:
        state.advance(said)
    return state


def masks_of(state: GrammarState, tokens: list[int], parents: list[int], size: int) -> Masks:
    masks = np.zeros((1 + len(tokens), size // 32 + 1), np.uint32)
    state.fill_masks(tokens, parents, masks)
    return masks


def bits(row: NDArray[np.uint32]) -> list[int]:
    """Tokens that a row of a mask allows."""
    return [int(token) for token in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))]


def drafted(draw: random.Random, state: GrammarState, texts: list[list[int]]) -> tuple[list[int], list[int], int]:
    """A tree of what may follow: two pieces of what is said somewhere, and as its last nodes what must follow them."""
    tokens: list[int] = []
    parents: list[int] = []
    for _ in range(2):
        text = draw.choice(texts)
        begin = draw.randrange(len(text))
        piece = text[begin : begin + draw.randrange(14)]
        at = draw.randrange(-1, len(tokens))
        for token in piece:
            tokens.append(token)
            parents.append(at)
            at = len(tokens) - 1
    grown = state.grow(tokens, parents, draw.randrange(20))
    tokens, parents = [*tokens, *grown.tokens], [*parents, *grown.parents]
    nodes = [*grown.allowed, *range(len(tokens) - len(grown.tokens), len(tokens))]
    index = {node: i for i, node in enumerate(nodes)}
    return [tokens[node] for node in nodes], [index.get(parents[node], -1) for node in nodes], len(grown.tokens)


def output(draw: random.Random, rule: GrammarRule, texts: list[list[int]], size: int) -> Iterator[int]:
    """Says a text, some tokens at a time, with drafts that come to nothing; yields masks that were compared."""
    state, said = fresh(rule, []), list[int]()
    text = draw.choice(texts)
    while len(said) < len(text) and not state.complete:
        state.forced(draw.randrange(6))
        tokens, parents, added = drafted(draw, state, texts)
        found = masks_of(state, tokens, parents, size)
        paths: list[list[int]] = []
        for token, parent in zip(tokens, parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else []), token])
        for row, path in enumerate([[], *paths]):
            if not set(path) & {0, 1, 2}:
                expected = masks_of(fresh(rule, said + path), [], [], size)
                assert (found[row] == expected[0]).all(), (said, path)
        for node in range(len(tokens) - added, len(tokens)):
            assert bits(found[1 + parents[node]]) == [tokens[node]], said
        yield 1 + len(tokens)
        more = text[len(said) : len(said) + draw.randrange(1, 12)]
        state.advance(more)
        said += more
    rule.end(state)


@pytest.mark.parametrize("seed", range(6))
def test_masks_are_those_of_the_text_alone(vocabulary: GrammarVocabulary, texts: list[list[int]], seed: int) -> None:
    rule, draw, compared = GrammarRule(CALLS, vocabulary), random.Random(seed), 0
    running = [output(draw, rule, texts, vocabulary.size) for _ in range(3)]
    for _ in range(60):
        at = draw.randrange(len(running))
        try:
            compared += next(running[at])
        except StopIteration:
            running[at] = output(draw, rule, texts, vocabulary.size)
    assert compared > 50


def test_a_draft_that_was_taken_back_leaves_nothing_behind(
    vocabulary: GrammarVocabulary, texts: list[list[int]]
) -> None:
    rule = GrammarRule(CALLS, vocabulary)
    weather, _, train = texts
    same = next(i for i, (one, other) in enumerate(zip(weather, train, strict=False)) if one != other)
    for end in range(same, len(weather)):
        for said in range(same + 1, len(train)):
            state = fresh(rule, weather[:same])
            draft = weather[same:end]
            masks_of(state, draft, [*range(-1, len(draft) - 1)], vocabulary.size)
            state.advance(train[same:said])
            expected = masks_of(fresh(rule, train[:said]), [], [], vocabulary.size)
            assert (masks_of(state, [], [], vocabulary.size) == expected).all(), (end, said)
            rule.end(state)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "output",
    [
        kv.JsonSchema({"const": "<|im_end|>"}),
        kv.JsonSchema({"enum": ["<|im_start|>"]}),
        kv.JsonSchema({"type": "object", "properties": {"<|im_end|>": {"const": 1}}, "required": ["<|im_end|>"]}),
        kv.Regex(r"<\|im_start\|>x"),
    ],
)
async def test_a_control_token_that_a_grammar_spells_is_text(output: kv.JsonSchema) -> None:
    async with kv.Context.open(kv.models.nano(), capacity=1024, threads=1) as ctx:
        branch = await ctx.branch([{"role": "user", "content": "Who are you?"}])
        generation = await branch.generate(output=output, max_tokens=60)
        assert generation.finish_reason == "stop"
        assert not set(generation.tokens) & set(ctx.tokenizer.encode("<|im_start|><|im_end|>"))
        assert "<|im_" in str(generation.output)

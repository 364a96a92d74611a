"""Files of saved branches that are cut, flipped or hostile: a typed error, and nothing changes."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from agentkv_runtime.tensor_file import TensorSpec

import agentkv as kv
from tests.agentkv.saved_files import Tensors, put_together, taken_apart

pytestmark = pytest.mark.anyio

MESSAGES = [{"role": "system", "content": "You are Nano."}, {"role": "user", "content": "Who are you?"}]


async def saved_family(path: Path) -> dict[str, list[int]]:
    async with kv.Context.open(kv.models.nano(), capacity=256, threads=1) as ctx:
        trunk = await ctx.branch(MESSAGES)
        kid = await trunk.fork()
        await kid.generate(max_tokens=6)
        kid.mark("end")
        await kid.generate(max_tokens=3, output=kv.Regex("[a-z]{30}"))
        await ctx.save(path, {"trunk": trunk, "kid": kid})
        return {"trunk": trunk.tokens, "kid": kid.tokens}


async def what_it_holds(ctx: kv.Context, path: Path) -> tuple[Any, ...]:
    """Everything that comes back of a file, cells included; leaves no branch behind."""
    loaded = await ctx.load_all(path)
    seen: list[Any] = []
    for name, branch in loaded.items():
        seen += [name, branch.tokens, branch.messages, list(branch.marks), (await branch.logits()).tobytes()]
        seen.append(await ctx._core.loop.call(lambda engine, id=branch.id: engine.rng_stream(id)))  # type: ignore[attr-defined]
    await branch.rollback(len(branch) - 1)
    seen.append((await branch.logits()).tobytes())  # of a row that attends over every cell
    await ctx.keep()
    return tuple(seen)


def damaged(whole: bytes, draw: random.Random) -> tuple[str, bytes]:
    """What was done, and what came of it."""
    data = bytearray(whole)
    kind = draw.randrange(10)
    if kind == 0:
        return "cut", bytes(data[: draw.randrange(len(data))])
    if kind == 1:
        return "longer", bytes(data) + bytes(draw.randrange(1, 9))
    reach = draw.choice((16, 4000, 12000, len(data)))  # the header is the smallest part of a file
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(reach)
        data[at] ^= 1 << draw.randrange(8) if draw.random() < 0.7 else draw.randrange(1, 256)
    return "flipped", bytes(data)


async def check_damages(path: Path, count: int, seed: int) -> Counter[str]:
    """How often each damage was refused, and how often nothing of it showed."""
    await saved_family(path)
    whole = Path.read_bytes(path)
    draw = random.Random(seed)
    outcomes: Counter[str] = Counter()
    async with kv.Context.open(kv.models.nano(), capacity=256, threads=1) as ctx:
        expected = await what_it_holds(ctx, path)
        for _ in range(count):
            kind, data = damaged(whole, draw)
            Path.write_bytes(path, data)
            try:
                assert await what_it_holds(ctx, path) == expected
                outcomes[f"{kind}: the same bits"] += 1
            except kv.SnapshotError as error:
                outcomes[f"{kind}: {type(error).__name__}"] += 1
            assert ctx.branches == []
        await ctx.keep()
        assert ctx.stats.cells_used == 0
    return outcomes


async def test_damage_is_found(tmp_path: Path) -> None:
    outcomes = await check_damages(tmp_path / "file", 60, 1)
    assert outcomes["flipped: SnapshotError"] > 40, outcomes
    assert outcomes["cut: the same bits"] == outcomes["longer: the same bits"] == 0 < outcomes["cut: SnapshotError"]


@pytest.mark.soak
async def test_much_damage_is_found(tmp_path: Path) -> None:
    """10,000 files, half of them under each event loop."""
    seed = random.randrange(2**32)
    print(f"\nseed {seed}:", dict(await check_damages(tmp_path / "file", 5_000, seed)))


def with_document(change: Callable[[dict[str, Any]], Any]) -> Callable[[Tensors, dict[str, str]], None]:
    def apply(tensors: Tensors, metadata: dict[str, str]) -> None:
        document = json.loads(tensors["document"][1].tobytes())
        changed = change(document)
        text = changed if isinstance(changed, bytes) else json.dumps(document).encode()
        tensors["document"] = TensorSpec("document", "U8", (len(text),)), np.frombuffer(text, np.uint8)

    return apply


def with_tensor(name: str, array: np.ndarray, dtype: str = "I32") -> Callable[[Tensors, dict[str, str]], None]:
    def apply(tensors: Tensors, metadata: dict[str, str]) -> None:
        tensors[name] = TensorSpec(name, dtype, array.shape), array.reshape(-1).view(np.uint8)

    return apply


def without(name: str) -> Callable[[Tensors, dict[str, str]], None]:
    def apply(tensors: Tensors, metadata: dict[str, str]) -> None:
        del tensors[name]

    return apply


def int32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def first_state(document: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = document["conversations"]["states"][-1]
    return state


TOKENS = "branches.0.tokens"
ROWS = "branches.0.rows"
HOSTILE: dict[str, Callable[[Tensors, dict[str, str]], Any]] = {
    "no document": without("document"),
    "no tokens": without(TOKENS),
    "no rows": without(ROWS),
    "no logits": without("logits.0"),
    "an array without its rows": with_tensor("cells.layers.0.k", np.zeros(3, np.float16), "F16"),
    "other rows in one array": with_tensor("cells.layers.0.k", np.zeros((3, 2, 32), np.float16), "F16"),
    "a scalar for an array": with_tensor("cells.layers.0.k", np.zeros((), np.float16), "F16"),
    "tokens of another shape": with_tensor(TOKENS, int32([1, 2])),
    "tokens of another dtype": with_tensor(TOKENS, np.zeros(4, np.float32), "F32"),
    "a token beyond the vocabulary": with_tensor(TOKENS, int32(*[2**31 - 1] * 30)),
    "a negative token": with_tensor(TOKENS, int32(*[-1] * 30)),
    "more tokens than rows": with_tensor(TOKENS, int32(*[5] * 200)),
    "fewer tokens than rows": with_tensor(TOKENS, int32(5)),
    "no tokens at all": with_tensor(TOKENS, np.zeros(0, np.int32)),
    "rows out of range": with_tensor(ROWS, int32([2**30, 0, 20])),
    "negative rows": with_tensor(ROWS, int32([-5, 0, 20])),
    "negative counts": with_tensor(ROWS, int32([0, 0, -20])),
    "rows that overlap": with_tensor(ROWS, int32([0, 0, 10], [0, 10, 10])),
    "rows that overflow": with_tensor(ROWS, int32([2**31 - 1, 0, 2**31 - 1])),
    "positions with holes": with_tensor(ROWS, int32([0, 5, 15])),
    "rows of another shape": with_tensor(ROWS, int32([0, 1])),
    "short logits": with_tensor("logits.0", np.zeros(3, np.float32), "F32"),
    "another format": lambda tensors, metadata: metadata.update(format="other"),
    "a later version": lambda tensors, metadata: metadata.update(version="4"),
    "a version that it is not": lambda tensors, metadata: metadata.update(version="2"),
    "no branches": with_document(lambda d: d.pop("branches")),
    "branches of another type": with_document(lambda d: d.update(branches=[1])),
    "a branch without a name": with_document(lambda d: d["branches"].update({"": d["branches"]["trunk"]})),
    "more branches than tensors": with_document(lambda d: d["branches"].update({"x": d["branches"]["trunk"]})),
    "fields that nobody knows": with_document(lambda d: d.update(more=1)),
    "a stream beyond 64 bits": with_document(lambda d: d["branches"]["trunk"].update(rng_stream=2**64)),
    "a negative stream": with_document(lambda d: d["branches"]["trunk"].update(rng_stream=-1)),
    "a stream that is text": with_document(lambda d: d["branches"]["trunk"].update(rng_stream="1")),
    "many forks": with_document(lambda d: d["branches"]["trunk"].update(forks=2**32)),
    "logits that are not there": with_document(lambda d: d["branches"]["trunk"].update(logits=9)),
    "a conversation that is not there": with_document(lambda d: d["branches"]["trunk"].update(conversation=99)),
    "a mark beyond the end": with_document(lambda d: d["branches"]["trunk"].update(marks={"x": 1000})),
    "a negative mark": with_document(lambda d: d["branches"]["trunk"].update(marks={"x": -1})),
    "an output beyond the end": with_document(lambda d: d["branches"]["kid"]["output"].update(end=1000)),
    "an output of no grammar": with_document(lambda d: d["branches"]["kid"]["output"].update(grammar="{")),
    "a conversation before itself": with_document(lambda d: first_state(d).update(before=50)),
    "messages that are not there": with_document(lambda d: first_state(d).update(entries=[99])),
    "kept messages that were not": with_document(lambda d: first_state(d).update(kept=99)),
    "messages of no role": with_document(lambda d: d["conversations"]["entries"][0].update(message={"content": "x"})),
    "messages of numbers": with_document(lambda d: d["conversations"]["entries"][0].update(message={"role": 1})),
    "messages beyond the end": with_document(lambda d: d["conversations"]["entries"][0].update(end=9999)),
    "messages backwards": with_document(lambda d: d["conversations"]["entries"][0].update(start=9999)),
    "a conversation beyond the end": with_document(lambda d: first_state(d).update(end=9999)),
    "tools that are not there": with_document(lambda d: first_state(d).update(tools=3)),
    "variables that are not ours to set": with_document(lambda d: first_state(d).update(template={"messages": 1})),
    "deep JSON": with_document(lambda d: b"[" * 100_000),
    "deep messages": with_document(
        lambda d: json.dumps(d).encode().replace(b'"You are Nano."', b'{"a":' * 100 + b"1" + b"}" * 100, 1)
    ),
    "a bomb of values": with_document(lambda d: b"[" + b"[]," * 4_000_000 + b"[]]"),
    "a large number": with_document(lambda d: b'{"branches":' + b"9" * 1_000_000 + b"}"),
    "no text": with_document(lambda d: b"\xff\xfe"),
    "nothing": with_document(lambda d: b""),
}


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("family") / "file"
    anyio.run(saved_family, path)
    return path


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_hostile_files_are_refused(tmp_path: Path, family: Path) -> None:
    path = tmp_path / "file"
    async with kv.Context.open(kv.models.nano(), capacity=256, threads=1) as ctx:
        mine = await ctx.branch("mine")
        row, used = await mine.logits(), ctx.stats.cells_used
        expected: list[int] = (await ctx.load_all(family))["kid"].tokens
        await ctx.keep(mine)
        for name, change in HOSTILE.items():
            tensors, metadata = taken_apart(family)
            change(tensors, metadata)
            put_together(path, tensors, metadata)
            for recompute in (False, True):
                with pytest.raises(kv.SnapshotError) as caught:
                    await ctx.load_all(path, recompute=recompute)
                assert str(path) in str(caught.value), name
                assert type(caught.value) is kv.SnapshotError, name
        tensors, metadata = taken_apart(family)
        put_together(path, tensors, metadata)  # that which was not changed is good
        assert (await ctx.load_all(path))["kid"].tokens == expected
        await ctx.keep(mine)
        assert (ctx.branches, ctx.stats.cells_used) == ([mine], used)
        np.testing.assert_array_equal(await mine.logits(), row)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    async with kv.Context.open(kv.models.nano(), capacity=64, threads=1) as ctx:
        for names, said in (
            (("pipe", "folder", "loop", "zero"), "cannot be read"),
            (("missing", "missing/below", "x" * 300), "there is no file .*check the path"),
        ):
            for name in names:
                with pytest.raises(kv.SnapshotError, match=said):
                    await ctx.load(tmp_path / name)
        assert ctx.branches == []

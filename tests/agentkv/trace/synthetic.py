"""A long trace that nobody had to run: branches that come, talk, fork, roll back and go, so many at one time."""

from __future__ import annotations

import json
import random
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path

from agentkv.trace.records import (
    VERSION,
    AnyRecord,
    Began,
    Branched,
    CacheLevel,
    CallBegan,
    CallEnded,
    Conversed,
    Ended,
    GenerateParams,
    JobBegan,
    JobEnded,
    Logged,
    Noted,
    Stepped,
    TurnBegan,
    TurnEnded,
    ValueRecord,
    Verb,
)
from agentkv.trace.sinks import FileSink

_MODEL = {"path": "synthetic", "backend": "cpu", "quantization": "8da4w", "kv_dtype": "fp16", "vocab_size": 1000}
_MODEL |= {"fingerprint": "", "bit_exact": True}
_SHARE = struct.Struct("<qiiii")


def write_synthetic(path: Path, steps: int, *, seed: int = 0, together: int = 8) -> None:
    """A trace of so many steps."""
    sink = FileSink(path, lambda token: f" w{token}".encode())
    batch: list[AnyRecord] = []
    for record in _records(steps, random.Random(seed), together):
        batch.append(record)
        if len(batch) == 4096:
            sink.take(batch)
            batch = []
    sink.take(batch)
    sink.close()


def _records(steps: int, draw: random.Random, together: int) -> Iterator[AnyRecord]:
    at = 1_000_000
    how = GenerateParams(64, [], {"temperature": 0.0}, 0, "", True, False)
    yield Began(at, VERSION, 1_700_000_000_000_000_000, "0.1.0", "v4", _MODEL, {"capacity": 8192, "path": "synthetic"})
    yield Branched(at, "create", -1, [0], [0])
    logs = {0: array("i", [draw.randrange(1000) for _ in range(200)])}
    yield Logged(at, 0, 0, logs[0].tobytes())
    live: dict[int, tuple[int, int, list[int]]] = {}  # branch: its job, its turn, and the tokens that it has made
    branches, jobs, turns = 1, 0, 0
    for step in range(steps):
        while len(live) < together:
            number, branches = branches, branches + 1
            parent = draw.choice([0, 0, *live])
            yield Branched(at, "fork", parent, [number], [number])
            logs[number] = array("i", logs[parent])
            turns += 1
            yield TurnBegan(at, turns, number, "You answer.", ["look_up"])
            message = json.dumps({"role": "user", "content": f"question {number} </script><b>&amp; \u202e"})
            yield ValueRecord(number, message)
            yield Conversed(at, number, [(number, 150, 200, False)], -1, "{}", True, 0)
            yield JobBegan(at, jobs, number, "generate", 0, how)
            live[number] = jobs, turns, []
            jobs += 1
        took = int(draw.lognormvariate(0, 0.4) * 300_000)
        prompt = 300 if step % 97 == 0 else 0
        shares = b"".join(_SHARE.pack(branch, 1, 3, 2, step % 3) for branch in live)
        if prompt:
            shares += _SHARE.pack(0, 0, prompt, 0, 0)
            took *= 20
        yield Stepped(at, took, took * 9 // 10, took // 50, 1, shares)
        at += took + 20_000
        if step % 50 == 0:
            yield CacheLevel(at, len(live) + 1, 2000 + step % 3000, 800, 300, 1 << 24, 0, 0)
        for branch, (job, turn, made) in [*live.items()]:
            made.append(draw.randrange(1000))
            if len(made) < 20 + branch % 60:
                continue
            yield JobEnded(at, job, "eos", "", array("i", made).tobytes(), b"", 400_000)
            logs[branch].extend(made)
            yield Logged(at, branch, len(logs[branch]) - len(made), array("i", made).tobytes())
            if branch % 3 == 0:
                yield CallBegan(at, turn, f"call{branch}", "look_up", json.dumps({"q": branch}))
                yield CallEnded(at + 900_000, turn, f"call{branch}", "look_up", "done", '{"a": 1}', 900_000, 1)
            if branch % 5 == 0:
                yield Verb(at, "rollback", branch, [180, 0])
            if branch % 50 == 0:
                yield Noted(at, branch, "note", f"look here {branch}")
            yield TurnEnded(at, turn, "" if branch % 11 else "LimitReached: too many rounds", 1)
            yield Verb(at, "close", branch, [])
            del live[branch], logs[branch]
    yield Ended(at)

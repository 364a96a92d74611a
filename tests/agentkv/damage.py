"""Damage to model folders, and what opening a damaged one comes to. Run as a script, it works through a range of seeds.

python -m tests.agentkv.damage FOLDER FIRST_SEED LAST_SEED
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import anyio
from agentkv_runtime.errors import ModelFolderError, TokenizerError
from agentkv_runtime.folder.draft_manifest import read_draft_manifest
from agentkv_runtime.folder.model_folder import read_model_folder

import agentkv as kv

PROMPT = [10, 33, 250, 7, 120, 61]
Output = tuple[bytes, list[int]]
Damage = Callable[[random.Random, Path], None]

HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 3, 10**30, -(10**30), 2**31, 2**62, 1e308, float("nan"), float("inf"), 0.5, "", "a",
    "\x1b[31m\x00\r\n", "\ud800", "9" * 5000, "x" * 1_000_000, "sha256:" + "0" * 64, "cpu", "mlx", "none", "<0x41>",
    [], {}, [[]], [None], {"": None}, ["a"] * 1000, [0, 1, 2], {"type": "ByteLevel"}, {"content": 3}, "{{ x",
    "{% for m in messages %}{{ m.content.nothing.at_all }}{% endfor %}", "{{ 1 / 0 }}",
]  # fmt: skip


def flip_bits(rng: random.Random, file: Path) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 1, 3, 50))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def cut_short(rng: random.Random, file: Path) -> None:
    size = file.stat().st_size
    os.truncate(file, rng.choice((0, 1, size // 2, max(size - 1, 0), rng.randrange(size + 1))))


def extend(rng: random.Random, file: Path) -> None:
    with open(file, "ab") as out:
        out.write(rng.choice((b"\0", b"}", b" ", b"\n{}", rng.randbytes(1000))))


def overwrite(rng: random.Random, file: Path) -> None:
    size = file.stat().st_size
    file.write_bytes(rng.choice((rng.randbytes(size), bytes(size), b"[" * 100_000, b'{"a":' * 100_000, b"{}", b"[]")))


def make_huge(rng: random.Random, file: Path) -> None:
    os.truncate(file, rng.choice((2**24, 2**25, 2**29)))


def delete(rng: random.Random, file: Path) -> None:
    file.unlink()


def put_something_else(rng: random.Random, file: Path) -> None:
    file.unlink()
    what = rng.choice(("folder", "pipe", "/dev/zero", "/dev/null", "/nowhere", str(file)))
    if what == "folder":
        file.mkdir()
    elif what == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(what)


def swap(rng: random.Random, file: Path) -> None:
    other = rng.choice(sorted(path for path in file.parent.iterdir() if path != file))
    aside = file.with_name("aside")
    os.replace(file, aside)
    os.replace(other, file)
    os.replace(aside, other)


def lock(rng: random.Random, file: Path) -> None:
    file.chmod(0)  # root reads it anyway


def change_json(rng: random.Random, file: Path) -> None:
    try:
        value = json.loads(file.read_text())
    except (ValueError, RecursionError):
        return flip_bits(rng, file)
    for _ in range(rng.choice((1, 1, 2, 5))):
        node = value
        while True:
            if not isinstance(node, dict | list) or not node:
                break
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = rng.choice(keys)
            if rng.random() < 0.4 or not isinstance(node[key], dict | list):
                do = rng.random()
                if do < 0.15:
                    del node[key]
                elif do < 0.25 and isinstance(node, dict):
                    node[str(rng.choice(HOSTILE))[:100]] = node.pop(key)
                else:
                    node[key] = deepcopy(rng.choice(HOSTILE))  # a later change may go into it
                break
            node = node[key]
    file.write_text(json.dumps(value), encoding="utf-8")
    return None


DAMAGES: list[Damage] = [
    *[change_json] * 8, *[flip_bits] * 3, *[cut_short] * 2, extend, overwrite, make_huge, delete, put_something_else,
    swap, lock,
]  # fmt: skip


def damage(rng: random.Random, folder: Path) -> str:
    """Damages one to three files; says how."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        files = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
        texts = [path for path in files if path.suffix != ".pte"]
        if not files:
            break
        file = rng.choice(texts if texts and rng.random() < 0.8 else files)
        how = rng.choice([each for each in DAMAGES if each is not change_json or file.suffix == ".json"])
        how(rng, file)
        done.append(f"{how.__name__} {file.name}")
    return ", ".join(done)


def read(folder: Path) -> str:
    """What `agentkv inspect` reads of a folder."""
    try:
        model = read_model_folder(folder)
        model.verify()
        _ = model.tokenizer.vocab_size, model.generation_config
        if model.draft_path is not None:
            read_draft_manifest(folder / "draft.json")
    except (ModelFolderError, TokenizerError) as error:
        return type(error).__name__
    return "read"


async def output(folder: Path, eagle: bool) -> Output:
    """Bits of the logits after a prompt of ids, and the tokens that follow."""
    async with kv.Context.open(
        folder, capacity=512, kv_dtype="fp32", threads=1, speculative=kv.spec.Eagle() if eagle else None
    ) as ctx:
        branch = await ctx.branch(PROMPT)
        logits = (await branch.logits()).tobytes()
        generated = await branch.generate(max_tokens=8)
        assert isinstance(generated.text, str)
        return logits, list(generated.tokens)


def outcome(seed: int, source: Path, whole: Output) -> dict[str, Any]:
    """Damages a copy of a folder and opens it: what was done, and what came of it."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(source, Path(name) / "model"))
        done = damage(rng, folder)
        found = {"seed": seed, "damage": done, "read": read(folder)}
        try:
            logits, tokens = anyio.run(output, folder, rng.random() < 0.5)
        except kv.AgentKVError as error:
            return {**found, "opened": type(error).__name__, "said": str(error)[:200]}
        # Another end-of-sequence id ends it elsewhere, and changes no token before.
        same = logits == whole[0] and all(a == b for a, b in zip(tokens, whole[1], strict=False))
        return {**found, "opened": "same" if same else "OTHER OUTPUT"}


def main() -> None:
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # what asks for more is refused, not killed
    whole = anyio.run(output, folder, False)
    for seed in range(first, last):
        faulthandler.dump_traceback_later(60, exit=True)
        print(json.dumps(outcome(seed, folder, whole)), flush=True)


if __name__ == "__main__":
    main()

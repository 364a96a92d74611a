"""Determinism, DESIGN section 8: on the CPU backend a row's logits depend on its tokens alone, bit for bit.

The baseline feeds every sequence alone, token by token, on one thread. Each test then reaches the same rows another way
and counts the values whose bits differ; the count must be 0.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime import _core

from tests.conformance.configs import ALL_CONFIGS
from tests.conftest import FolderFactory
from tests.driver import Driver, Logits, native_driver
from tests.rows import one_in

VOCAB = 384
TRUNK, TAIL, BRANCHES = 64, 24, 64
LONG = 1100  # crosses the attention's segments of 512 positions twice
MODELS: dict[str, tuple[str, str]] = {
    "llama-none": ("llama-gqa2-d64", "none"),
    "llama-8da4w": ("llama-gqa2-d64", "8da4w"),
    "llama-q4": ("llama-gqa2-d64", "q4"),
    "mistral-none": ("mistral-gqa8-d80-w8", "none"),
    "qwen3-8da4w": ("qwen3-gqa4-d128-tied", "8da4w"),
}
# What attends otherwise; latents are kept as floats only.
OTHER_MODELS: dict[str, tuple[str, str]] = {
    "gemma3-none": ("gemma3-gqa2-d64-w8-tied", "none"),
    "gemma2-none": ("gemma2-capped-w8", "none"),
    "gemma4-8da4w": ("gemma4-shapes-shared-w8", "8da4w"),
    "granite-8da4w": ("granite-sinks-w8", "8da4w"),
    "deepseek3-none": ("deepseek3-latent", "none"),
    "qwen3moe-none": ("qwen3-experts", "none"),
    "qwen3moe-8da4w": ("qwen3-experts", "8da4w"),
    "qwen3moe-q4": ("qwen3-experts", "q4"),
    "gptoss-8da4w": ("gptoss-sinks-experts-w8", "8da4w"),
    "llama4-8da8w": ("llama4-chunks-experts-w8", "8da8w"),
    "bloom-8da4w": ("bloom-alibi", "8da4w"),
    "lfm2-none": ("lfm2-convolutions", "none"),
    "lfm2-8da4w": ("lfm2-convolutions", "8da4w"),
    "qwen3next-none": ("qwen3next-delta-rule", "none"),
    "qwen3next-8da8w": ("qwen3next-delta-rule", "8da8w"),
    "bamba-8da8w": ("bamba-mamba2-attention", "8da8w"),
    "mamba2-none": ("mamba2-alone", "none"),
    "mamba-none": ("mamba-scan-alone", "none"),
    "kimi-none": ("kimi-delta-rule-latent", "none"),
}
# One of each that keeps and attends to its cells in a way of its own, whatever its weights are.
_TWICE = ("qwen3moe-none", "qwen3moe-q4", "lfm2-none", "qwen3next-none")
OTHER_CACHES = one_in(3, [name for name in OTHER_MODELS if name not in _TWICE])
LATENTS = ("deepseek", "kimi")
# Half pools on one model, since rounding happens on the way in; integer ones have kernels of their own.
CASES = [
    *((name, kv_dtype) for name in MODELS if name != "llama-q4" for kv_dtype in ("fp32", "int8", "int4")),
    ("llama-q4", "fp16"),
    ("llama-none", "fp16"),
    ("llama-8da4w", "bf16"),
    ("llama-8da4w", "int8/int4"),
    ("mistral-none", "int8/int4"),
    ("gemma3-none", "int8/int4"),
    *((name, "fp16") for name in OTHER_MODELS),
    *((name, "int8") for name in OTHER_MODELS if not name.startswith(LATENTS)),
]


def model_folder(folders: FolderFactory, name: str) -> Path:
    """The export of one of MODELS or OTHER_MODELS."""
    config, quant = {**MODELS, **OTHER_MODELS}[name]
    kind, fields = ALL_CONFIGS[config]
    return folders(kind, quant=quant, **fields)


class Bits:
    """A program, what each row must be, and how many values were compared with it."""

    def __init__(self, program: Any, kv_dtype: str) -> None:
        self.program = program
        self.kv_dtype = kv_dtype
        rng = random.Random(1)
        self.trunk = [rng.randrange(3, VOCAB) for _ in range(TRUNK)]
        self.tails = [[rng.randrange(3, VOCAB) for _ in range(TAIL)] for _ in range(BRANCHES)]
        self.compared = self.differing = self.all_differing = 0
        self.want: dict[tuple[int, ...], Logits] = {}
        _core.set_threads(1)
        alone = self.driver()
        for token in self.trunk:
            self.learn(alone, token)
        self.long = self.trunk + [rng.randrange(3, VOCAB) for _ in range(LONG - TRUNK)]
        for token in self.long[TRUNK:]:
            self.learn(alone, token)
        for tail in self.tails:
            # A sequence of its own each time: nothing is shared, nothing lies out of order.
            alone = self.driver()
            alone.feed(0, self.trunk, [1] * TRUNK)
            for token in tail:
                self.learn(alone, token)

    def learn(self, alone: Driver, token: int) -> None:
        row = alone.step([(0, token)])[0]
        self.want[tuple(alone.logs[0])] = row

    def driver(self, capacity: int = 2048) -> Driver:
        return native_driver(self.program, capacity=capacity, kv_dtype=self.kv_dtype)

    def check(self, log: list[int], logits: Logits) -> None:
        """The last len(logits) rows of a sequence, against their bits in the baseline."""
        for back, row in enumerate(reversed(logits)):
            want = self.want[tuple(log[: len(log) - back])]
            self.compared += row.size
            self.differing += int((row.view(np.uint32) != want.view(np.uint32)).sum())

    def agree(self) -> None:
        """Fails when any value since the last call differed."""
        differing, self.differing = self.differing, 0
        self.all_differing += differing
        assert differing == 0

    def advance(self, driver: Driver, pieces: dict[int, list[int]], shuffle: random.Random | None = None) -> None:
        for seq, logits in driver.advance(pieces, shuffle).items():
            self.check(driver.logs[seq], logits)


@pytest.fixture(scope="module", params=one_in(8, ((case,) for case in CASES)), ids="-".join)
def bits(request: pytest.FixtureRequest, tiny_exported_folder: FolderFactory) -> Iterator[Bits]:
    name, kv_dtype = request.param
    threads = _core.get_threads()
    folder = model_folder(tiny_exported_folder, name)
    one = Bits(_core.ExecuTorchProgram(str(folder / "model.pte")), kv_dtype)
    yield one
    _core.set_threads(threads)
    print(f"\n{name} {kv_dtype} pools: {one.compared} logits compared, {one.all_differing} differ")


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> int:
    _core.set_threads(request.param)
    return int(request.param)


pytestmark = pytest.mark.usefixtures("threads")


CHUNKS = [[64], [1] * 64, [2] * 32, [3] * 22, [5] * 13, [8] * 8, [11] * 6, [16] * 4, [33, 31], [1, 62, 1]]


@pytest.mark.parametrize("chunks", CHUNKS, ids=lambda chunks: f"{chunks[0]}x{len(chunks)}")
def test_chunks(bits: Bits, chunks: list[int]) -> None:
    driver = bits.driver()
    bits.check(bits.trunk, driver.feed(0, bits.trunk, chunks))
    bits.agree()


def test_one_wanted_row_or_all(bits: Bits) -> None:
    """The LM head over one row must do as over many."""
    driver = bits.driver()
    driver.step([(0, token) for token in bits.trunk[:30]], wanted=[])
    for wanted in ([0], [3, 1], [9, 9, 4]):
        rows = [(0, token) for token in bits.trunk[len(driver.logs[0]) :][:10]]
        before = len(driver.logs[0])
        logits = driver.step(rows, wanted=wanted)
        for row, logit in zip(wanted, logits, strict=True):
            bits.check(bits.trunk[: before + row + 1], logit[None])
    bits.agree()


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64])
def test_forks_decode_together(bits: Bits, width: int) -> None:
    driver = bits.driver(capacity=TRUNK + TAIL * BRANCHES)
    bits.check(bits.trunk, driver.feed(100, bits.trunk))
    for branch in range(width):
        driver.fork(100, branch)
    for at in range(4):
        bits.advance(driver, {branch: [bits.tails[branch][at]] for branch in range(width)})
    bits.agree()


def test_prefills_among_decodes(bits: Bits) -> None:
    """Rows of seven branches at seven depths interleave in one step, in chunks of any size."""
    driver = bits.driver()
    rng = random.Random(2)
    driver.feed(100, bits.trunk, [13])
    whole = {branch: bits.trunk + bits.tails[branch] for branch in range(7)}
    for branch in range(4):
        driver.fork(100, branch)
    while any(len(driver.logs.get(branch, ())) < len(tokens) for branch, tokens in whole.items()):
        pieces = {}
        for branch, tokens in whole.items():
            have = len(driver.logs.get(branch, ()))
            if have < len(tokens) and rng.random() < 0.8:
                pieces[branch] = tokens[have : have + rng.choice([1, 1, 2, 5, 9])]
        if pieces:
            bits.advance(driver, pieces, rng if rng.random() < 0.5 else None)
    bits.agree()


def test_rollbacks_and_holes(bits: Bits) -> None:
    """Branches that came, went and left holes change where cells lie and in what order, not what a row says."""
    driver = bits.driver(capacity=400)
    rng = random.Random(3)
    for round_ in range(6):
        for branch in range(5):
            tokens = bits.trunk + bits.tails[branch]
            have = len(driver.logs.get(branch, ()))
            bits.advance(driver, {branch: tokens[have : have + rng.randrange(1, 16)]})
        branch = rng.randrange(5)
        if round_ % 2:
            driver.close(branch)
        else:
            driver.rollback(branch, rng.randrange(1, len(driver.logs[branch])))
    runs = max(len(driver.cells.seq_runs(branch)) for branch in range(5))
    assert runs > 3, "no sequence was scattered: the test shows nothing"
    for branch in range(5):
        have = len(driver.logs.get(branch, ()))
        bits.advance(driver, {branch: (bits.trunk + bits.tails[branch])[have : have + 40]})
    bits.agree()


def test_long_histories(bits: Bits) -> None:
    """Forks at any depth of a long history decode in one step, over cells that lie together and over scattered ones."""
    depths = [1, 63, 64, 65, 130, 500, 511, 512, 513, 700, 1023, 1024, 1030, LONG - 8]
    for scattered in (False, True):
        driver = bits.driver(capacity=2 * LONG)
        rng = random.Random(5)
        while len(driver.logs.get(100, ())) < LONG:
            at = len(driver.logs.get(100, ()))
            pieces = {100: bits.long[at : at + rng.choice([1, 3, 31] if scattered else [33, 48])]}
            if scattered:
                at = len(driver.logs.get(101, ()))
                pieces[101] = bits.long[at : at + rng.randrange(1, 8)]
            bits.advance(driver, {seq: piece for seq, piece in pieces.items() if piece}, rng if scattered else None)
        for seq, depth in enumerate(depths):
            driver.fork(100, seq)
            driver.rollback(seq, depth)
        for _ in range(4):
            size = rng.choice([1, 1, 2])
            pieces = {seq: bits.long[len(driver.logs[seq]) :][:size] for seq in range(len(depths))}
            bits.advance(driver, pieces, rng)
        bits.advance(driver, {5: bits.long[len(driver.logs[5]) :][:60]})
        for _ in range(8):  # one row alone: what may be split over threads
            bits.advance(driver, {10: bits.long[len(driver.logs[10]) :][:1]})
    bits.agree()


def random_course(bits: Bits, seed: int) -> None:
    """Forks, rollbacks, closes, failed steps and merged steps at random."""
    driver = bits.driver(capacity=700)
    rng = random.Random(seed)
    target: dict[int, int] = {}  # sequence -> the tail it follows
    for _ in range(60):
        verb = rng.random()
        if verb < 0.15 and target:
            src, dst = rng.choice(list(target)), rng.randrange(16)
            if dst not in target and len(driver.logs[src]) <= TRUNK:
                driver.fork(src, dst)
                target[dst] = rng.randrange(BRANCHES)
        elif verb < 0.25 and target:
            seq = rng.choice(list(target))
            driver.rollback(seq, rng.randrange(1, len(driver.logs[seq]) + 1))
        elif verb < 0.32 and target:
            seq = rng.choice(list(target))
            driver.close(seq)
            del target[seq]
        elif verb < 0.4 and target:
            driver.cells.begin_step([rng.choice(list(target))] * 3)
            driver.cells.abort_step()
        else:
            free = rng.randrange(16)
            target.setdefault(free, rng.randrange(BRANCHES))
            pieces = {}
            for seq in rng.sample(list(target), rng.randrange(1, min(6, len(target)) + 1)):
                tokens = bits.trunk + bits.tails[target[seq]]
                have = len(driver.logs.get(seq, ()))
                piece = tokens[have : have + rng.choice([1, 1, 1, 3, 12])]
                if piece:
                    pieces[seq] = piece
            target = {seq: tail for seq, tail in target.items() if seq in driver.logs or seq in pieces}
            if pieces and driver.cells.can_extend(sum(map(len, pieces.values()))):
                bits.advance(driver, pieces, rng)
            target = {seq: tail for seq, tail in target.items() if seq in driver.logs}
    bits.agree()


def test_random_courses(bits: Bits) -> None:
    random_course(bits, 4)


@pytest.mark.soak
def test_many_random_courses(bits: Bits, soak_count: int) -> None:
    for seed in range(1000, 1000 + soak_count // 200):
        random_course(bits, seed)

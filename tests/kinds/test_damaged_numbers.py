"""Numbers that no model computes, in files that are whole otherwise: they are refused before a token is made of them.

One more case is a row of `LOGITS` (of a saved branch), of `FORWARDS` (of a model at work) or of `WEIGHTS` (of a model).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime import _core

import agentkv as kv
from tests.agentkv.saved_files import put_together, taken_apart
from tests.models import tiny_spec, write_hf_folder

PLACES = {"one": slice(7, 8), "all": slice(None), "all but one": slice(1, None)}
LOGITS = [
    # Which of a saved branch's logits are what, and is the file refused?
    ("one", math.nan, True),
    ("all", math.nan, True),
    ("one", math.inf, True),
    ("all", math.inf, True),
    ("all", -math.inf, True),
    ("one", -math.inf, False),  # a token that the model never says
    ("all but one", -math.inf, False),
    ("all", 0.0, False),
]


async def saved(path: Path) -> None:
    async with kv.Context.open(kv.models.nano(), capacity=64, kv_dtype="fp32", threads=1) as ctx:
        await ctx.save(path, {"trunk": await ctx.branch("Who are you?")})


@pytest.mark.parametrize(("place", "value", "refused"), LOGITS)
@pytest.mark.anyio
async def test_logits_of_a_saved_branch(tmp_path: Path, place: str, value: float, refused: bool) -> None:
    path = tmp_path / "file"
    await saved(path)
    tensors, metadata = taken_apart(path)
    tensors["logits.0"][1].view(np.float32)[PLACES[place]] = value
    put_together(path, tensors, metadata)
    async with kv.Context.open(kv.models.nano(), capacity=64, kv_dtype="fp32", threads=1) as ctx:
        if refused:
            with pytest.raises(kv.SnapshotError, match=r"logits\.0 is no distribution"):
                await ctx.load_all(path)
            assert (ctx.branches, ctx.stats.cells_used) == ([], 0)
        else:
            [branch] = (await ctx.load_all(path)).values()
            assert (await branch.generate(max_tokens=1)).tokens


FORWARDS = [
    # What a model returns for four tokens, and is it a distribution?
    ([0, 0, 0, 0], True),
    ([-math.inf, 0, -math.inf, 0], True),
    ([math.nan, 0, 0, 0], False),
    ([0, 0, 0, math.nan], False),
    ([math.nan] * 4, False),
    ([0, math.inf, 0, 0], False),
    ([-math.inf] * 4, False),
]


@pytest.mark.parametrize(("row", "good"), FORWARDS, ids=str)
@pytest.mark.parametrize("verb", ["extend", "logits", "greedy", "sampled"])
def test_what_a_model_returns_at_any_verb(row: list[float], good: bool, verb: str) -> None:
    cells, returned = _core.Cells(8), [0.0] * 4

    def forward(tokens: Any, positions: Any, wanted: Any) -> Any:
        cells.plan(positions)
        return np.array([returned] * len(wanted), np.float32)

    program = _core.PythonRunner(forward, vocab_size=4, max_tokens=4, max_logits=4)
    engine = _core.Engine(program, cells, token_bytes=[b"x"] * 4, eos_ids=[], special_ids=[])

    def run(job: int) -> _core.Finished:
        while not (finished := engine.step().finished):
            pass
        assert [each.job for each in finished] == [job]
        return finished[0]

    branch, _ = engine.create()
    assert run(engine.extend(branch, [1, 2])).error is None
    if verb != "extend":
        run(engine.generate(branch, _core.GenerateOptions(max_tokens=1)))  # a token that is not run yet
    returned[:] = row
    before = engine.tokens(branch).tolist()
    sampling = _core.Sampling(temperature=1.0 if verb == "sampled" else 0.0)
    start = {"extend": lambda: engine.extend(branch, [3]), "logits": lambda: engine.logits(branch)}
    options = _core.GenerateOptions(max_tokens=1, sampling=sampling)
    finished = run(start.get(verb, lambda: engine.generate(branch, options))())
    if good:
        assert finished.error is None
    else:
        assert "no distribution (NaN, +inf, or all -inf): its weights" in str(finished.error)
        assert engine.tokens(branch).tolist() == before


WEIGHTS = [
    # Which weights of a tiny model are what.
    ("model.norm.weight", "one", math.nan),
    ("model.norm.weight", "all", math.inf),
    ("lm_head.weight", "one", math.nan),  # the logits of one token
    ("lm_head.weight", "one", math.inf),
    ("model.layers.0.mlp.down_proj.weight", "one", math.nan),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_folder(tiny_spec("llama", layers=1, tied=False), tmp_path_factory.mktemp("numbers") / "model")


@pytest.mark.parametrize(("name", "place", "value"), WEIGHTS)
@pytest.mark.anyio
async def test_weights_of_a_model(whole: Path, name: str, place: str, value: float) -> None:
    torch_files = pytest.importorskip("safetensors.torch")
    file = whole / "model.safetensors"
    data = file.read_bytes()
    weights = torch_files.load(data)
    weights[name][PLACES[place]] = value
    torch_files.save_file(weights, file, {"format": "pt"})
    try:
        with pytest.raises(kv.ModelError, match="a weight is NaN, infinite or too large"):
            async with kv.Context.open(whole, backend="torch", capacity=64):
                pass
    finally:
        file.write_bytes(data)

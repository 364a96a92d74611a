"""nano, exported in float32 for two backends: MLX and the CPU give the same greedy answers to held-out prompts."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import agentkv as kv
from agentkv._bench.prompts import BenchPrompt, read_prompts
from tests.export_cache import ExportCache

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "examples" / "nano" / "weights"
PROMPTS = ROOT / "agentkv" / "models" / "nano" / "prompts.jsonl"
AT_ONCE, MAX_TOKENS = 5, 48


@pytest.fixture(scope="module")
def folders(export_cache: ExportCache) -> dict[str, Path]:
    from agentkv_runtime.export import export_folder

    return {
        backend: export_cache.get(
            f"nano-{backend}", lambda out, backend=backend: export_folder(WEIGHTS, out, backend=backend, quant="none")
        )
        for backend in ("cpu", "mlx")
    }


async def answers(folder: Path, prompts: list[BenchPrompt]) -> list[list[int]]:
    """Greedy answers, some prompts at a time."""
    found: list[list[int]] = []

    async def answer(ctx: kv.Context, prompt: BenchPrompt) -> list[int]:
        async with await prompt.branch(ctx) as branch:
            return (await branch.generate(max_tokens=MAX_TOKENS)).tokens

    async with kv.Context.open(folder, capacity=8192, kv_dtype="fp32") as ctx:
        for at in range(0, len(prompts), AT_ONCE):
            found += await kv.gather(*(answer(ctx, prompt) for prompt in prompts[at : at + AT_ONCE]))
    return found


# MLX's CPU device takes a second per prompt.
@pytest.mark.parametrize("n_prompts", [5, pytest.param(50, marks=pytest.mark.soak)])
def test_greedy_answers_are_those_of_the_cpu(folders: dict[str, Path], n_prompts: int) -> None:
    prompts = read_prompts(PROMPTS)[:n_prompts]
    assert len(prompts) == n_prompts
    cpu, mlx = (anyio.run(answers, folders[backend], prompts) for backend in ("cpu", "mlx"))
    assert sum(len(tokens) for tokens in cpu) > 10 * n_prompts
    assert mlx == cpu

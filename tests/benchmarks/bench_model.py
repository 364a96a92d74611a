"""A model of the shape of Qwen3-0.6B with random weights: export time and size, decode and prefill speed, fan-out.

Run by hand: `python tests/benchmarks/bench_model.py [--folder KEPT_EXPORT]`. Needs torch for the export only.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.table import Table

import agentkv as kv

VOCAB, HIDDEN, LAYERS, FFN, HEADS, KV_HEADS, HEAD_DIM = 151_936, 1024, 28, 3072, 16, 8, 128
DEPTHS = (0, 2048, 8192)
GROUP = 32  # int4 weights that share one 16-bit scale
console = Console()


def make_source(folder: Path) -> None:
    """Write the random checkpoint as a Hugging Face folder, with a tokenizer of its vocabulary size."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        intermediate_size=FFN,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        tie_word_embeddings=True,
        max_position_embeddings=40_960,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(alphabet + [f"<unused{i}>" for i in range(VOCAB - len(alphabet))])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def implied_bytes() -> float:
    """Bytes of the weights at their bit widths: 4-bit linears with a scale per group, 16-bit embedding, fp32 norms."""
    attention = HIDDEN * HEAD_DIM * (2 * HEADS + 2 * KV_HEADS)
    linear = LAYERS * (attention + 3 * HIDDEN * FFN) + VOCAB * HIDDEN
    norms = LAYERS * (2 * HIDDEN + 2 * HEAD_DIM) + HIDDEN
    return linear * (0.5 + 2 / GROUP) + VOCAB * HIDDEN * 2 + norms * 4


def export(folder: Path) -> None:
    """Export with 8da4w and print time and size."""
    from agentkv_runtime.export.folder import export_folder
    from agentkv_runtime.export.quiet import quiet_libraries

    with quiet_libraries(), tempfile.TemporaryDirectory() as source:
        make_source(Path(source))
        start = time.perf_counter()
        export_folder(Path(source), folder, quant="8da4w")
    seconds = time.perf_counter() - start
    size = sum(path.stat().st_size for path in folder.iterdir())
    console.print(
        f"export 8da4w: {seconds:.0f} s; {size / 1e6:.0f} MB, {size / implied_bytes():.3f} x the implied bytes"
    )


def prompt(n: int, seed: int = 0) -> list[int]:
    """n tokens that share no prefix with another seed's."""
    return [(seed * 7919 + i * 104_729) % 256 for i in range(n)]


async def rate(branches: list[kv.Branch], tokens: int) -> float:
    """Tokens per second of branches that generate together."""
    start = time.perf_counter()
    gens = await kv.gather(*(branch.generate(max_tokens=tokens) for branch in branches))
    return sum(len(gen.tokens) for gen in gens) / (time.perf_counter() - start)


async def measure(folder: Path, rounds: int, tokens: int, kv_dtype: str) -> None:
    """Interleave the depths and quote medians."""
    async with kv.Context.open(folder, capacity=16_384, kv_dtype=kv_dtype) as ctx:
        trunks = {depth: await ctx.branch(prompt(max(1, depth), seed=depth)) for depth in DEPTHS}
        decode: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
        prefill: list[float] = []
        fan: list[float] = []
        for i in range(rounds):
            for depth, trunk in trunks.items():
                mark = trunk.mark()
                decode[depth].append(await rate([trunk], tokens))
                await trunk.rollback(mark)
            start = time.perf_counter()
            async with await ctx.branch(prompt(512, seed=1000 + i)):
                prefill.append(512 / (time.perf_counter() - start))
            kids = await trunks[2048].fork(8)
            fan.append(await rate(kids, tokens))
            for kid in kids:
                kid.close()
        table = Table(title=f"Qwen3-0.6B shape, 8da4w, {kv_dtype} cache, median of {rounds}")
        table.add_column("what")
        table.add_column("tok/s", justify="right")
        for depth in DEPTHS:
            table.add_row(f"decode, 1 branch, depth {depth}", f"{statistics.median(decode[depth]):.1f}")
        table.add_row("prefill 512", f"{statistics.median(prefill):.0f}")
        table.add_row("decode, 8 branches on a 2,048-cell trunk", f"{statistics.median(fan):.1f}")
        console.print(table)
        ratio = statistics.median(a / b for a, b in zip(fan, decode[2048], strict=True))
        console.print(f"8 branches together make {ratio:.2f} x the tokens per second of one at that depth")


def main(
    folder: Annotated[Path | None, typer.Option(help="Where the export is kept, or found if it exists.")] = None,
    rounds: int = 5,
    tokens: int = 24,
    kv_dtype: str = "fp16",
) -> None:
    """Export the random checkpoint unless FOLDER holds it, then measure."""
    with tempfile.TemporaryDirectory() as scratch:
        target = folder or Path(scratch) / "export"
        if not (target / "agentkv.json").exists():
            export(target)
        anyio.run(measure, target, rounds, tokens, kv_dtype)


if __name__ == "__main__":
    typer.run(main)

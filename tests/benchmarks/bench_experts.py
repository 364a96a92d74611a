"""A mixture of experts of Qwen3-MoE's shape with random weights, beside a dense model of as many active weights.

Run by hand: `python tests/benchmarks/bench_experts.py [--folder KEPT_EXPORTS]`. Needs torch for the export only.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from bench_model import GROUP, prompt, rate
from memory_reader import FOOTPRINT, MemoryReader
from rich.console import Console
from rich.table import Table

import agentkv as kv

VOCAB, HIDDEN, LAYERS, FFN, HEADS, KV_HEADS, HEAD_DIM = 4096, 2048, 4, 768, 32, 4, 128
EXPERTS, ACTIVE = 64, 8
ROWS = 512
console = Console()


def _config(dense: bool) -> Any:
    from transformers import Qwen3Config, Qwen3MoeConfig

    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
    }
    if dense:
        return Qwen3Config(**shape, intermediate_size=ACTIVE * FFN)
    return Qwen3MoeConfig(**shape, moe_intermediate_size=FFN, num_experts=EXPERTS, num_experts_per_tok=ACTIVE)


def make_source(folder: Path, dense: bool) -> None:
    """Write the random checkpoint as a Hugging Face folder, with a tokenizer of its vocabulary size."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        AutoModelForCausalLM.from_config(_config(dense)).save_pretrained(folder)
    finally:
        torch.set_default_dtype(torch.float32)
    Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def export(folder: Path, dense: bool, quant: str) -> None:
    """Export one of the two unless the folder holds it."""
    if (folder / "agentkv.json").exists():
        return
    from agentkv_runtime.export.folder import export_folder
    from agentkv_runtime.export.quiet import quiet_libraries

    with quiet_libraries(), tempfile.TemporaryDirectory() as source:
        make_source(Path(source), dense)
        export_folder(Path(source), folder, quant=quant)


def active_bytes(quant: str) -> float:
    """Bytes of the weights that one token meets: the experts that it chose, attention and the head."""
    attention = HIDDEN * HEAD_DIM * (2 * HEADS + 2 * KV_HEADS)
    weights = LAYERS * (attention + ACTIVE * 3 * HIDDEN * FFN) + VOCAB * HIDDEN
    router = LAYERS * EXPERTS * HIDDEN * 4
    return weights * {"8da4w": 0.5 + 2 / GROUP, "8da8w": 1.0, "none": 4.0}[quant] + router


async def measure(folders: dict[str, Path], quant: str, rounds: int, tokens: int) -> None:
    """Both models and the memory in turns; medians."""
    reader = MemoryReader(2)
    reading: list[float] = []  # bytes per second
    decode: dict[str, list[float]] = {name: [] for name in folders}  # tokens per second
    prefill: dict[str, list[float]] = {name: [] for name in folders}
    async with AsyncExitStack() as stack:
        contexts = {
            name: await stack.enter_async_context(kv.Context.open(folder, capacity=4096))
            for name, folder in folders.items()
        }
        branches = {name: await ctx.branch(prompt(4)) for name, ctx in contexts.items()}
        for i in range(rounds):
            start = time.perf_counter()
            reader()
            reading.append(FOOTPRINT / (time.perf_counter() - start))
            for name, ctx in contexts.items():
                mark = branches[name].mark()
                decode[name].append(await rate([branches[name]], tokens))
                await branches[name].rollback(mark)
                start = time.perf_counter()
                async with await ctx.branch(prompt(ROWS, seed=1000 + i)):
                    prefill[name].append(ROWS / (time.perf_counter() - start))
    limit = statistics.median(reading) / active_bytes(quant)
    table = Table(
        title=f"{ACTIVE} of {EXPERTS} experts of {FFN} x {HIDDEN}, {LAYERS} layers, {quant}, median of {rounds}"
    )
    for column in ("tok/s", "experts", "dense", "experts / dense"):
        table.add_column(column, justify="left" if column == "tok/s" else "right")
    for what, rates in (("decode", decode), (f"prefill {ROWS}", prefill)):
        ratio = statistics.median(a / b for a, b in zip(rates["experts"], rates["dense"], strict=True))
        medians = (statistics.median(rates[name]) for name in ("experts", "dense"))
        table.add_row(what, *(f"{each:.1f}" for each in medians), f"{ratio:.2f}")
    console.print(table)
    bandwidth, megabytes = statistics.median(reading) / 1e9, active_bytes(quant) / 1e6
    console.print(
        f"A token's {megabytes:.0f} MB of weights, at the {bandwidth:.1f} GB/s that 2 threads read, allow"
        f" {limit:.1f} tok/s: decoding takes {limit / statistics.median(decode['experts']):.2f} times that long"
    )


def main(
    folder: Annotated[Path | None, typer.Option(help="Where the exports are kept, or found if they exist.")] = None,
    quant: str = "8da4w",
    rounds: int = 7,
    tokens: int = 32,
) -> None:
    """Export both models unless FOLDER holds them, then measure."""
    with tempfile.TemporaryDirectory() as scratch:
        kept = folder or Path(scratch)
        folders = {name: kept / f"{name}-{quant}" for name in ("experts", "dense")}
        for name, each in folders.items():
            export(each, name == "dense", quant)
        anyio.run(measure, folders, quant, rounds, tokens)


if __name__ == "__main__":
    typer.run(main)

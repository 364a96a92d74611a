"""Layers that keep a state: decoding beside the bytes of state and weights, prefill beside transformers' own in torch.

Run by hand: `python tests/benchmarks/bench_states.py [--folder KEPT_EXPORTS]`. Random weights; needs torch.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import anyio
import torch
import typer
from bench_model import GROUP, prompt, rate
from memory_reader import FOOTPRINT, MemoryReader
from rich.console import Console
from rich.table import Table

import agentkv as kv

VOCAB, LAYERS, ROWS, DEEP = 4096, 4, 512, 8192
console = Console()

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "num_hidden_layers": LAYERS,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4 * DEEP,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba2": (
        "mamba2",
        {"hidden_size": 1536, "num_heads": 48, "head_dim": 64, "state_size": 128, "n_groups": 1, "expand": 2},
    ),
    "gated delta rule": (
        "qwen3_5_text",
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "layer_types": ["linear_attention"] * LAYERS,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
        },
    ),
    "mamba": ("mamba", {"hidden_size": 1536, "intermediate_size": 3072, "state_size": 16, "time_step_rank": 96}),
}


def source(kind: str) -> Any:
    """The random model, in float32."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    model_type, shape = SHAPES[kind]
    config = CONFIG_MAPPING[model_type](**COMMON, **shape)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # else what quantisation changes grows from layer to layer, and an export is refused
        for name, weight in model.named_parameters():
            if name.endswith("out_proj.weight"):
                weight.mul_(0.1)
    return model


def export(kind: str, folder: Path, quant: str) -> None:
    """Export a model unless the folder holds it."""
    if (folder / "agentkv.json").exists():
        return
    from agentkv_runtime.export.folder import export_folder
    from agentkv_runtime.export.quiet import quiet_libraries
    from tokenizers import Tokenizer, models

    with quiet_libraries(), tempfile.TemporaryDirectory() as path:
        written = Path(path)
        source(kind).save_pretrained(written)
        words = models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0")
        Tokenizer(words).save(str(written / "tokenizer.json"))
        (written / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
        export_folder(written, folder, quant=quant)


def weight_bytes(model: Any, quant: str) -> float:
    """Of the weights that a token meets, the head's among them."""
    number = {"8da4w": 0.5 + 2 / GROUP, "8da8w": 1.0, "none": 4.0}[quant]
    matrices = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    return number * matrices + 4 * sum(p.numel() for p in model.parameters() if p.dim() != 2)


@torch.inference_mode()
def torch_prefill(model: Any, seed: int) -> float:
    """Seconds of transformers' own forward over so many tokens."""
    tokens = torch.tensor([prompt(ROWS, seed=seed)])
    start = time.perf_counter()
    model(input_ids=tokens, use_cache=False, logits_to_keep=1)
    return time.perf_counter() - start


async def fork_times(ctx: kv.Context) -> list[float]:
    """Seconds of forks of a long branch, one after another."""
    times = []
    async with await ctx.branch(prompt(DEEP, seed=3)) as branch:
        for _ in range(50):
            start = time.perf_counter()
            kid = await branch.fork()
            times.append(time.perf_counter() - start)
            await kid.close()
    return times


async def measure(kind: str, folder: Path, quant: str, rounds: int, tokens: int, table: Table) -> None:
    """Our run, the memory and torch in turns; medians."""
    reader, model = MemoryReader(2), source(kind)
    torch_prefill(model, 0)
    reading, decode, prefill, theirs = [], [], [], []
    async with kv.Context.open(folder, capacity=2 * DEEP) as ctx:
        branch = await ctx.branch(prompt(96))  # in the middle of a block
        for i in range(rounds):
            start = time.perf_counter()
            reader()
            reading.append(FOOTPRINT / (time.perf_counter() - start))
            mark = branch.mark()
            decode.append(await rate([branch], tokens))
            await branch.rollback(mark)
            start = time.perf_counter()
            async with await ctx.branch(prompt(ROWS, seed=1000 + i)):
                prefill.append(time.perf_counter() - start)
            theirs.append(torch_prefill(model, 2000 + i))
        states = ctx.model_info.state_bytes
        forks = await fork_times(ctx)
    needed = weight_bytes(model, quant) + states
    limit = statistics.median(reading) / needed
    ratio = statistics.median(b / a for a, b in zip(prefill, theirs, strict=True))
    table.add_row(
        kind,
        quant,
        f"{statistics.median(decode):.0f}",
        f"{needed / 1e6:.1f} MB ({states / 1e6:.1f} of state)",
        f"{limit / statistics.median(decode):.2f}",
        f"{ROWS / statistics.median(prefill):.0f}",
        f"{ROWS / statistics.median(theirs):.0f}",
        f"{ratio:.2f}",
        f"{1e6 * statistics.median(forks):.0f} us",
    )


def main(
    folder: Annotated[Path | None, typer.Option(help="Where the exports are kept, or found if they exist.")] = None,
    quant: str = "8da4w,none",
    rounds: int = 5,
    tokens: int = 32,
) -> None:
    """Export the models unless FOLDER holds them, then measure."""
    torch.set_num_threads(2)
    table = Table(title=f"{LAYERS} layers, median of {rounds}; tok/s but where it says otherwise")
    for column in ("layers", "quant", "decode", "a token meets", "time / bytes' time", f"prefill {ROWS}", "torch fp32"):
        table.add_column(column)
    table.add_column("ratio")
    table.add_column(f"fork at {DEEP:,}")
    with tempfile.TemporaryDirectory() as scratch:
        kept = folder or Path(scratch)
        for kind in SHAPES:
            for each in quant.split(","):
                path = kept / f"{kind.replace(' ', '-')}-{each}"
                export(kind, path, each)
                anyio.run(measure, kind, path, each, rounds, tokens, table)
    console.print(table, width=140)


if __name__ == "__main__":
    typer.run(main)

"""Peak memory and time of exports of large shapes, with random bf16 weights in a shard per layer.

Run by hand: `python tests/benchmarks/bench_export.py 0.6B 1.7B --quant 8da4w`. Needs torch, and disk for the weights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

# hidden, layers, feed-forward, heads, K/V heads: Qwen3's
SHAPES = {
    "0.6B": (1024, 28, 3072, 16, 8),
    "1.7B": (2048, 28, 6144, 16, 8),
    "4B": (2560, 36, 9728, 32, 8),
}
VOCAB, HEAD_DIM = 151_936, 128


def make_source(folder: Path, shape: str) -> int:
    """Write a Hugging Face folder, a layer in memory at a time; returns how many weights it has."""
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tests.models import write_tokenizer

    hidden, layers, ffn, heads, kv_heads = SHAPES[shape]
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=HEAD_DIM,
        tie_word_embeddings=True,
        max_position_embeddings=40_960,
        dtype="bfloat16",
        architectures=["Qwen3ForCausalLM"],
    )
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    write_tokenizer(folder)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(name.split(".layers.")[-1].split(".")[0], {})[name] = parameter
    generator = torch.Generator().manual_seed(0)
    index: dict[str, str] = {}
    for number, group in enumerate(groups.values()):
        file = f"model-{number + 1:05}-of-{len(groups):05}.safetensors"
        tensors = {}
        for name, parameter in group.items():
            tensor = torch.ones(parameter.shape, dtype=torch.bfloat16)
            tensors[name] = tensor if "norm" in name else tensor.normal_(std=0.02, generator=generator)
            index[name] = file
        save_file(tensors, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return sum(parameter.numel() for parameter in model.parameters())


def llama_cpp_bytes(shape: str, mix: str) -> int:
    """Weights of a GGUF file of this shape, in bytes, by the mix that llama-quantize takes for Q4_0 or Q4_K_M.

    Both hold 4.5 bits a weight, and 6.5625 (Q6_K) in the embedding, which is the head, too; Q4_K_M also in half of the
    layers' `v_proj` and `down_proj` (llama_tensor_get_type in src/llama-quant.cpp).
    """
    hidden, layers, ffn, heads, kv_heads = SHAPES[shape]
    attention, v, down = 2 * hidden * heads * HEAD_DIM, hidden * kv_heads * HEAD_DIM, hidden * ffn
    more = [i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2 for i in range(layers)]
    high = VOCAB * hidden + (sum(more) * (v + down) if mix == "Q4_K_M" else 0)
    low = VOCAB * hidden + layers * (attention + 2 * v + 3 * down) - high
    return int(low * 4.5 / 8 + high * 6.5625 / 8)


def peak() -> float:
    """VmHWM of this process in GB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e9


def export(source: Path, out: Path, quant: Any, int8: list[str], embedding: int) -> None:
    """Export in this process and print each phase."""
    from agentkv_runtime.export.folder import export_folder
    from agentkv_runtime.export.quiet import quiet_libraries

    began = time.perf_counter(), time.process_time()
    phase: list[Any] = [*began, "starting"]

    def tell(what: str) -> None:
        wall, used = time.perf_counter(), time.process_time()
        if not what.startswith(phase[2].split(",")[0]):
            print(f"  {phase[2]:<52} {wall - phase[0]:6.1f} s {used - phase[1]:6.1f} CPU s {peak():6.2f} GB so far")
            phase[:] = wall, used, what

    with quiet_libraries():
        folder = export_folder(source, out, quant=quant, int8=int8, embedding=embedding, progress=tell)
    tell("")
    wall, used = time.perf_counter() - began[0], time.process_time() - began[1]
    size = folder.manifest.model_bytes / 1e9
    print(f"{quant}: {wall:.0f} s, {used:.0f} CPU s, peak {peak():.2f} GB, {size:.3f} GB program", flush=True)


def main(
    shapes: Annotated[list[str], typer.Argument(help=f"Any of {', '.join(SHAPES)}.")],
    quant: str = "8da4w",
    int8: Annotated[list[str] | None, typer.Option()] = None,
    embedding: int = 16,
    folder: Annotated[Path | None, typer.Option(help="Where sources are kept, or found if they exist.")] = None,
    worker: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Export each shape in a process of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for shape in shapes:
            source = (folder or Path(scratch)) / f"source-{shape}"
            if worker:
                export(source, Path(scratch) / "out", quant, int8 or [], embedding)
                continue
            if not (source / "model.safetensors.index.json").exists():
                print(f"{shape}: {make_source(source, shape) / 1e9:.2f} billion weights")
            sizes = ", ".join(f"{mix} {llama_cpp_bytes(shape, mix) / 1e9:.3f} GB" for mix in ("Q4_0", "Q4_K_M"))
            print(f"{shape}, {quant}; llama.cpp's weights would have {sizes}")
            command = [sys.executable, __file__, shape, "--quant", quant, "--folder", str(source.parent), "--worker"]
            command += ["--embedding", str(embedding), *(word for name in int8 or () for word in ("--int8", name))]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.getcwd()})


if __name__ == "__main__":
    typer.run(main)

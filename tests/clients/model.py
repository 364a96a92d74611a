"""A tiny random model that takes the long prompts of clients; what it says is scripted."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.models import tiny_model, tiny_spec

NANO = Path(__file__).parents[2] / "examples" / "nano" / "weights"
POSITIONS = 131072


def export_long_model(out: Path) -> None:
    """Nano's tokenizer and template over one layer, with room for 131,072 positions."""
    from agentkv_runtime.export import export_folder

    folder = out.with_name(f"{out.name}.hf")
    shape = {"layers": 1, "hidden": 32, "intermediate": 32, "heads": 1, "kv_heads": 1, "head_dim": 16}
    spec = tiny_spec(**shape, vocab=1024, max_positions=POSITIONS)
    tiny_model(spec).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(NANO / name, folder)
    export_folder(folder, out, backend="cpu", quant="none", dtype="fp32", max_tokens=512, max_logits=64)
    shutil.rmtree(folder)

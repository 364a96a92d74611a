"""One architecture through the whole export: it runs as transformers does, or is refused with a reason."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from agentkv_runtime.backends import load_backend
from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.lower import lower_model
from agentkv_runtime.programs import load_program
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from tests.architectures.tiny_configs import HISTORY
from tests.driver import native_driver

__all__ = ["TOLERANCE", "Refused", "Runs", "outcome", "random_model"]

TOLERANCE = 1e-4
_CHUNKS = (7, 1, 20, 3)


@dataclass(frozen=True)
class Runs:
    """The program was exported and opened, and gave logits for all positions that it promises."""

    error: float
    """The largest difference from transformers without a cache, relative to the largest logit or 1."""
    rows: int
    max_positions: int | None


@dataclass(frozen=True)
class Refused:
    """The export ended with ExportError."""

    reason: str


@torch.no_grad()
def random_model(config: PretrainedConfig) -> PreTrainedModel:
    """A model in float32 whose logits spread, whatever its initialisation."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.add_(noise * (0.1 if weight.dim() < 2 else 1.0 / weight.shape[-1] ** 0.5))
    return model


@torch.no_grad()
def outcome(
    model: PreTrainedModel, folder: Path, *, backend: str = "cpu", max_context: int | None = None
) -> Runs | Refused:
    """Exports the model into `folder`, which it uses up, and feeds the program a history in chunks.

    Every other exception than ExportError is a fault of agentkv's, and comes through.
    """
    reference = copy.deepcopy(model)
    vocab = model.config.get_text_config().vocab_size
    try:
        lowered = lower_model(model, backend=backend, max_tokens=HISTORY, max_logits=HISTORY, max_context=max_context)
    except ExportError as error:
        return Refused(str(error))
    rows = min(HISTORY, lowered.max_positions or HISTORY)
    tokens = torch.randint(1, vocab, (rows,), generator=torch.Generator().manual_seed(2))
    want = reference(tokens[None], use_cache=False).logits[0].numpy()
    lowered.write(folder / "model.pte")
    program = load_program(folder / "model.pte", load_backend(backend))
    driver = native_driver(program, capacity=2 * HISTORY)
    got = driver.feed(0, tokens.tolist(), _CHUNKS)
    error = float(np.abs(got - want).max() / max(1.0, np.abs(want).max()))
    return Runs(error, rows, lowered.max_positions)

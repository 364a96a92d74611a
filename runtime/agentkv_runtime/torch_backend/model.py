"""A Hugging Face model on a torch device, attending through an agentkv cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import xxhash

from agentkv_runtime.folder.metadata import KvCacheMetadata
from agentkv_runtime.hf.attention import feeding
from agentkv_runtime.hf.check import check_in_chunks, reference_logits, short_windows
from agentkv_runtime.hf.deferred import load_all
from agentkv_runtime.hf.features import ResidualStream
from agentkv_runtime.hf.load import load_model
from agentkv_runtime.hf.op import active_cache
from agentkv_runtime.hf.own_positions import position_offset
from agentkv_runtime.hf.positions import position_limit, trained_positions
from agentkv_runtime.hf.prepare import prepare
from agentkv_runtime.torch_backend.cache import TorchCache

__all__ = ["TorchModel"]


class TorchModel:
    """A decoder-only model of transformers with the forward of an exported program."""

    def __init__(
        self,
        folder: str | Path,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        feature_layers: Sequence[int] = (),
    ) -> None:
        """Loads a Hugging Face folder onto `device`; local files only.

        `dtype` defaults to float32 on the CPU, where halves are slow, and to the checkpoint's own elsewhere.
        `feature_layers` are numbers of decoder layers after which to return the residual stream, too. Raises
        UnsupportedModelError for a model without those layers, or one whose logits through a cache differ from its own;
        ExportError for a folder without a complete causal language model of transformers.
        """
        self.device = torch.device(device)
        if dtype is None and self.device.type == "cpu":
            dtype = torch.float32
        self.model: Any = load_model(folder, dtype).requires_grad_(False)
        prepare(self.model)
        load_all(self.model)
        self.model.to(self.device)  # type: ignore[arg-type]  # its wrapper has no types of its own
        with short_windows(self.model):
            shapes = check_in_chunks(self.model, reference_logits(self.model))  # now it attends through the cache
        text = self.model.config.get_text_config()
        self.cached = KvCacheMetadata.of_layers(shapes, [0] * len(shapes))
        """Shapes of the cache's layers, without windows, which the model passes with each call."""
        self.vocab_size: int = text.vocab_size
        self.feature_dim: int = len(feature_layers) * text.hidden_size
        self._offset = position_offset(self.model)
        self.max_positions = position_limit(text, reserved=self._offset)
        """Positions that the model has; None if the config names no length."""
        self.trained_positions = trained_positions(text)
        """Positions that the model was trained on, if the config says that they are fewer."""
        self._fingerprint: str | None = None
        self._stream = ResidualStream(self.model, feature_layers) if feature_layers else None

    @torch.inference_mode()
    def fingerprint(self) -> str:
        """Digest of weights and config, by which saved cells recognise their model."""
        if self._fingerprint is None:
            digest = xxhash.xxh3_128(self.model.config.to_json_string().encode())
            for name, tensor in sorted(self.model.state_dict().items()):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().contiguous().view(-1).cpu().view(torch.uint8).numpy())
            self._fingerprint = f"xxh3:{digest.hexdigest()}"
        return self._fingerprint

    @torch.inference_mode()
    def forward(
        self,
        cache: TorchCache,
        tokens: Sequence[int],
        positions: Sequence[int],
        logits_indices: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Runs tokens `[T]` at positions `[T]` of the cache's open step.

        Returns float32 logits `[N, vocab]` of the chosen rows, and features `[T, feature_dim]` of all rows, or None
        without feature layers.
        """
        position = torch.tensor(list(positions), dtype=torch.int64, device=self.device)
        ids = torch.tensor(list(tokens), dtype=torch.int64, device=self.device)
        # An empty selection still needs the layers to run, and not every LM head takes zero rows.
        rows = torch.tensor(list(logits_indices) or [0], dtype=torch.int64, device=self.device)
        with active_cache(cache), feeding(position), cache.step([int(p) for p in positions]):
            output = self.model(
                input_ids=ids[None], position_ids=position[None] + self._offset, use_cache=False, logits_to_keep=rows
            )
        logits: torch.Tensor = output.logits[0, : len(logits_indices)]
        return logits.float(), None if self._stream is None else self._stream.take()

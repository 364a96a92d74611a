"""Reading a published EAGLE-3 checkpoint: config.json with model.safetensors or pytorch_model.bin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers import LlamaConfig

from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.draft_head import DraftHead
from agentkv_runtime.folder.small_files import read_object

__all__ = ["EMBEDDING", "DraftCheckpoint", "find_embedding", "read_draft_checkpoint"]

EMBEDDING = "embed_tokens.weight"
_FIXED_ROPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class DraftCheckpoint:
    """Configuration and float32 weights of a published head."""

    path: Path
    config: LlamaConfig
    weights: dict[str, torch.Tensor]

    @property
    def feature_dim(self) -> int:
        """F: floats per row of the target's features."""
        return int(self.weights["fc.weight"].shape[1])

    def build(self, embedding: torch.Tensor) -> DraftHead:
        """The head over the target's embedding `[vocabulary, H]`. Raises ExportError if the weights do not fit."""
        try:
            head = DraftHead(self.config, self.feature_dim).eval()
        except (KeyError, ValueError, AttributeError) as error:
            raise ExportError(f"{self.path}: its config.json describes no head: {error}") from error
        wanted, given = head.state_dict(), {**self.weights, EMBEDDING: embedding}
        if head.draft_vocab_size == head.config.vocab_size:
            # One vocabulary: published heads may leave the tables between the two out.
            given = {"d2t": wanted["d2t"], "t2d": wanted["t2d"], **given}
        if missing := sorted(set(wanted) - set(given)):
            raise ExportError(f"{self.path}: the head lacks {', '.join(missing)}")
        if unknown := sorted(set(given) - set(wanted)):
            raise ExportError(f"{self.path}: no EAGLE-3 head has {', '.join(unknown)}")
        for name, tensor in wanted.items():
            if given[name].shape != tensor.shape:
                raise ExportError(
                    f"{self.path}: {name} is {list(given[name].shape)}, but config.json makes it {list(tensor.shape)}"
                )
        head.load_state_dict(given)
        self._check_vocabularies(head)
        return head

    def _check_vocabularies(self, head: DraftHead) -> None:
        said = torch.arange(head.draft_vocab_size) + head.d2t
        if int(said.min()) < 0 or int(said.max()) >= len(head.t2d):
            raise ExportError(f"{self.path}: d2t leads to token {int(said.max())} of {len(head.t2d)}")
        marked = head.t2d.nonzero().squeeze(1)
        if not torch.equal(said.sort().values, marked):
            raise ExportError(
                f"{self.path}: d2t names {len(said)} tokens and t2d marks {len(marked)}, and they are not the same"
            )


def read_draft_checkpoint(path: Path) -> DraftCheckpoint:
    """Reads the folder of a head. Raises ExportError for a folder that has none, or a damaged one."""
    if not path.is_dir():
        raise ExportError(f"{path}: no such folder. Give the folder of an EAGLE-3 head")
    if not (path / "config.json").is_file():
        raise ExportError(f"{path}: not a head's folder: it has no config.json")
    facts = read_object(path / "config.json", ExportError)
    try:
        config = LlamaConfig.from_dict(facts)
    except Exception as error:  # whatever transformers finds wrong with it
        raise ExportError(f"{path}: its config.json cannot be read: {error}") from error
    rope_type = (config.rope_parameters or {}).get("rope_type", "default")
    if rope_type not in _FIXED_ROPES:
        raise ExportError(f"{path}: the head rotates by {rope_type!r}; agentkv knows {', '.join(_FIXED_ROPES)}")
    weights = {_plain(name): _exact(tensor) for name, tensor in _read(path).items()}
    if "fc.weight" not in weights or weights["fc.weight"].dim() != 2:
        raise ExportError(f"{path}: no EAGLE-3 head: it has no fc.weight, which reads the target's features")
    return DraftCheckpoint(path, config, weights)


def _read(path: Path) -> dict[str, torch.Tensor]:
    safetensors, pickled = path / "model.safetensors", path / "pytorch_model.bin"
    try:
        if safetensors.is_file():
            return load_file(safetensors)
        if pickled.is_file():
            weights: dict[str, torch.Tensor] = torch.load(pickled, map_location="cpu", weights_only=True)
            return weights
    except Exception as error:  # torch and safetensors raise many kinds; all mean the same here
        raise ExportError(f"{path}: its weights cannot be read: {error}") from error
    raise ExportError(f"{path}: holds neither model.safetensors nor pytorch_model.bin")


def _plain(name: str) -> str:
    return name.removeprefix("model.")


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def find_embedding(path: Path) -> torch.Tensor:
    """Reads only the token embedding of a Hugging Face folder, float32 `[vocabulary, H]`.

    Raises ExportError if it is not found.
    """
    try:
        for file in sorted(path.glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  (no mapping)
                    if name.endswith(EMBEDDING):
                        return _exact(tensors.get_tensor(name))
        for file in sorted(path.glob("pytorch_model*.bin")):
            for name, tensor in torch.load(file, map_location="cpu", weights_only=True).items():
                if name.endswith(EMBEDDING):
                    return _exact(tensor)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ExportError(f"{path}: its weights cannot be read: {error}") from error
    raise ExportError(f"{path}: holds no weights called ...{EMBEDDING}, which the draft head needs")

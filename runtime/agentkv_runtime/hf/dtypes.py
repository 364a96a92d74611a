"""The dtypes that manifests and caches name, as torch has them."""

from __future__ import annotations

import torch

__all__ = ["TORCH_DTYPES"]

TORCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

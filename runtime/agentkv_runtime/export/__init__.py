"""Ahead of time: Hugging Face models in, ExecuTorch programs out. Needs torch; the rest of the package does not."""

from agentkv_runtime.export.draft_folder import export_draft
from agentkv_runtime.export.folder import export_folder

__all__ = ["export_draft", "export_folder"]

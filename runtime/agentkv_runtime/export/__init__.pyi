"""What `agentkv_runtime.export` offers; `__init__.py` imports each name when it is first asked for."""

from .draft_folder import export_draft
from .folder import export_folder

__all__ = ["export_draft", "export_folder"]

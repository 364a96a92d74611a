"""Tools that come along: `kv.tools.files`, for the files of a workspace."""

from .files import files

__all__ = ["files"]

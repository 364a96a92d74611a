"""One self-contained page that shows a trace: nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from .columns import Columns, read_columns

_SCRIPTS = ("data", "time", "charts", "lanes", "logs", "panel", "search", "main")
_ARRAYS = {"d": "Float64Array", "f": "Float32Array", "i": "Int32Array"}


def page_of(path: Path, progress: Callable[[float], None] | None = None) -> str:
    """Makes the HTML page of a trace.

    Args:
        path: path of the trace.
        progress: called with the fraction done, 0 to 1.

    Raises:
        TraceError: the file cannot be read, is no trace, or damaged.
    """
    columns = read_columns(path, progress)
    blob, places = _packed(columns)
    facts = {**columns.facts, "arrays": places, "name": path.name}
    script = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    return (
        _asset("page.html")
        .replace("/*style*/", _asset("style.css"))
        .replace("/*script*/", script)
        .replace("<!--facts-->", _base64(json.dumps(facts, separators=(",", ":")).encode()))
        .replace("<!--arrays-->", _base64(blob))
    )


def _packed(columns: Columns) -> tuple[bytes, dict[str, tuple[str, int, int]]]:
    """All columns in one blob, each at a multiple of 8 bytes; and the type, offset in bytes and length of each."""
    blob = bytearray()
    places: dict[str, tuple[str, int, int]] = {}
    for name, values in columns.arrays.items():
        places[name] = (_ARRAYS[values.typecode], len(blob), len(values))
        blob += values.tobytes()
        blob += bytes(-len(blob) % 8)
    places["pieces"] = ("Uint8Array", len(blob), len(columns.pieces))
    blob += columns.pieces
    return bytes(blob), places


def _base64(data: bytes) -> str:
    """Data compressed by gzip, in base64: no content of a trace can be taken for markup."""
    return base64.b64encode(gzip.compress(data, 6)).decode()


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")

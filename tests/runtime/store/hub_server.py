"""A hub on this machine, as far as downloads need one: what huggingface_hub asks is answered as the real one does.

Files below a repository's folder are served at one commit. What goes wrong is set by attributes.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "5d0f2e8b1c7a4f6e9b3d8a2c5e7f1b4d6a8c0e2f"
TOKEN = "hf_of_the_tests"
LARGE = 20_000  # bytes; from here on a file is an LFS file
_CHUNK = 4096


class HubServer:
    """Serves one repository in the block; `asked` is every request, as "METHOD path range"."""

    def __init__(self, repo: str, folder: Path) -> None:
        self.repo = repo
        self.folder = folder
        self.private = False
        """Only whoever has TOKEN may see it."""
        self.cut_after: int | None = None
        """Closes the next connection that sends a large file after so many bytes; once."""
        self.damage = False
        """A byte of every large file is another one."""
        self.shorten = False
        """Large files lose their last byte, and say so."""
        self.hold = threading.Event()
        """While it is clear, large files stop in their middle."""
        self.hold.set()
        self.held = threading.Event()
        """One does."""
        self.asked: list[str] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())

    def sent(self, name: str) -> list[str]:
        """The ranges that were asked of a file; empty for all of it."""
        return [line.split(" ")[2] for line in self.asked if line.startswith("GET ") and f"/{name} " in line]


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, body: bool) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        hub.asked.append(f"{self.command} {path} {self.headers.get('Range', '')}")
        if (hub.private and self.headers.get("Authorization") != f"Bearer {TOKEN}") or f"{hub.repo}/" not in path + "/":
            self._refuse(401, "RepoNotFound")
        elif match := re.fullmatch(rf"/api/models/{hub.repo}(?:/revision/([^/]+))?", path):
            if match[1] in (None, "main", COMMIT):
                self._json({"id": hub.repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in hub.files()]})
            else:
                self._refuse(404, "RevisionNotFound")
        elif path.startswith(f"/api/models/{hub.repo}/tree/"):
            self._json([self._described(name) for name in hub.files()])
        elif match := re.fullmatch(rf"/{hub.repo}/resolve/[^/]+/(.+)", path):
            self._send_file(match[1], body)
        else:
            self._refuse(404, "EntryNotFound")

    def _described(self, name: str) -> dict[str, Any]:
        data = (self.hub.folder / name).read_bytes()
        described: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": _git_oid(data)}
        if len(data) >= LARGE:
            described["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 100}
        return described

    def _send_file(self, name: str, body: bool) -> None:
        if name not in self.hub.files():
            self._refuse(404, "EntryNotFound")
            return
        data = (self.hub.folder / name).read_bytes()
        large = len(data) >= LARGE
        etag = hashlib.sha256(data).hexdigest() if large else _git_oid(data)
        size = len(data)
        if large and self.hub.damage:
            data = bytes([data[0] ^ 1]) + data[1:]
        if large and self.hub.shorten and body:
            data = data[:-1]
        start = int((re.match(r"bytes=(\d+)-", self.headers.get("Range", "")) or ["", "0"])[1])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if large:
            self.send_header("X-Linked-Size", str(size))
            self.send_header("X-Linked-Etag", f'"{etag}"')
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if body:
            self._send(data[start:], large)

    def _send(self, data: bytes, large: bool) -> None:
        hub = self.hub
        for at in range(0, len(data), _CHUNK):
            if large and at >= len(data) // 2 and not hub.hold.is_set():
                self.wfile.flush()
                hub.held.set()
                hub.hold.wait()
            if large and hub.cut_after is not None and at >= hub.cut_after:
                hub.cut_after = None
                self.wfile.flush()
                self.connection.close()
                return
            self.wfile.write(data[at : at + _CHUNK])

    def _json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

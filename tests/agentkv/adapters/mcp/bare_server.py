"""An MCP server without the SDK, which would refuse what it lists: `python bare_server.py TOOLS`, as JSON."""

from __future__ import annotations

import json
import sys


def answer(method: str, version: str) -> dict[str, object]:
    if method == "initialize":
        info = {"name": "bare", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": json.loads(sys.argv[1])}
    return {"content": [{"type": "text", "text": "done"}]}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = answer(asked["method"], asked.get("params", {}).get("protocolVersion", ""))
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)

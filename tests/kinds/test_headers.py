"""Headers and bodies as clients, proxies and shells write them; and errors that say what to do.

To add a case, write a row: `CREDENTIALS` for keys, `HOSTS` for names of the server, `PACKED` for packed bodies, `WORDS`
for errors.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv
from agentkv.serve.http.body import MOST_STOPS
from agentkv.serve.http.errors import ADVICE
from agentkv.serve.http.middleware import _name_in
from tests.agentkv.serve.conftest import SETTINGS, serving

pytestmark = pytest.mark.anyio

KEY = "s3cret"
Headers = list[tuple[str, str]]
ASKED: dict[str, Any] = {"model": "nano", "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 2}
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/branches")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


CREDENTIALS: dict[str, tuple[Headers, bool]] = {
    "as OpenAI's client": ([("authorization", f"Bearer {KEY}")], True),
    "lower case": ([("authorization", f"bearer {KEY}")], True),
    "upper case": ([("authorization", f"BEARER {KEY}")], True),
    "several spaces": ([("authorization", f"Bearer   {KEY}")], True),
    "a tab": ([("authorization", f"Bearer\t{KEY}")], True),
    "without a scheme": ([("authorization", KEY)], True),
    "as Anthropic's client": ([("x-api-key", KEY)], True),
    "another key beside it": ([("authorization", f"Bearer {KEY}"), ("x-api-key", "sk-other")], True),
    "another token beside it": ([("authorization", "Bearer sk-other"), ("x-api-key", KEY)], True),
    "an empty key beside it": ([("authorization", f"Bearer {KEY}"), ("x-api-key", "")], True),
    "twice": ([("authorization", "Bearer sk-other"), ("authorization", f"bearer {KEY}")], True),
    "nothing": ([], False),
    "empty": ([("authorization", ""), ("x-api-key", "")], False),
    "a scheme without a key": ([("authorization", "Bearer")], False),
    "the beginning of it": ([("authorization", f"Bearer {KEY[:-1]}")], False),
    "more than it": ([("authorization", f"Bearer {KEY}x")], False),
    "two in one": ([("authorization", f"Bearer {KEY}, Bearer sk-other")], False),
    "twice wrong": ([("authorization", "Bearer a"), ("x-api-key", "b")], False),
    "another scheme": ([("authorization", "Basic " + base64.b64encode(f":{KEY}".encode()).decode())], False),
    "the scheme twice": ([("authorization", f"Bearer Bearer {KEY}")], False),
    "no ASCII": ([("x-api-key", "\xfc")], False),
}


async def test_any_right_credential_passes() -> None:
    async with serving(replace(SETTINGS, api_key=KEY), capacity=512) as site:
        for name, (headers, right) in CREDENTIALS.items():
            raw = [(key.encode(), value.encode("latin-1")) for key, value in headers]
            answer = await site.http.get("/v1/models", headers=raw)
            assert (name, answer.status_code) == (name, 200 if right else 401)
            if not right:
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "Authorization: Bearer" in answer.json()["error"]["message"]


# What a client calls the server, and whether it answers to that: it is started as `--host` says.
HOSTS: dict[str, tuple[str, bool]] = {
    "127.0.0.1": ("127.0.0.1:8080", True),
    "without a port": ("localhost", True),
    "in capitals": ("LocalHost:80", True),
    "IPv6": ("[::1]:8080", True),
    "IPv6 without a port": ("[::1]", True),
    "an allowed name": ("desk.local:8080", True),
    "another name": ("evil.example", False),
    "a longer name": ("localhost.evil.example", False),
    "an ending of it": ("host", False),
    "nothing": ("", False),
    "a port alone": (":8080", False),
    "another IPv6": ("[::2]:8080", False),
}


async def test_names_of_the_server() -> None:
    hosts = ("127.0.0.1", "localhost", "[::1]", "desk.local")
    async with serving(replace(SETTINGS, hosts=hosts), capacity=512) as site:
        for name, (host, right) in HOSTS.items():
            for path in ("/v1/models", "/v1/messages"):
                answer = await site.http.get(path, headers={"host": host})
                assert (name, answer.status_code != 400) == (name, right)
                if not right:
                    told = answer.json()
                    assert set(told) == ({"error"} if path == "/v1/models" else {"type", "error", "request_id"})
                    assert "--allow-host" in told["error"]["message"]
                    assert "--host" in told["error"]["message"]


def test_an_address_without_brackets_is_its_own_name() -> None:
    assert _name_in("::1") == "::1"


def packed(body: bytes, encoding: str) -> bytes:
    return gzip.compress(body) if encoding == "gzip" else zlib.compress(body)


SMALL, BOMB = json.dumps(ASKED).encode(), b" " * 300_000
PACKED: dict[str, tuple[str, bytes, int]] = {
    "as it is": ("identity", SMALL, 200),
    "gzip": ("gzip", packed(SMALL, "gzip"), 200),
    "gzip, in capitals": ("GZIP", packed(SMALL, "gzip"), 200),
    "deflate": ("deflate", packed(SMALL, "deflate"), 200),
    "cut": ("gzip", packed(SMALL, "gzip")[:-9], 400),
    "more behind it": ("gzip", packed(SMALL, "gzip") + b"x", 400),
    "not packed": ("gzip", SMALL, 400),
    "another": ("zstd", SMALL, 415),
    "two": ("gzip, gzip", packed(packed(SMALL, "gzip"), "gzip"), 415),
    "a bomb": ("gzip", packed(BOMB, "gzip"), 413),
    "a bomb of deflate": ("deflate", packed(BOMB, "deflate"), 413),
}


async def test_packed_bodies() -> None:
    async with serving(replace(SETTINGS, most_bytes=200_000), capacity=512) as site:
        for name, (encoding, body, status) in PACKED.items():
            headers = {"content-type": "application/json", "content-encoding": encoding}
            answer = await site.http.post(PATHS[0], content=body, headers=headers)
            assert (name, answer.status_code) == (name, status), answer.text
            if status == 415:
                assert answer.headers["accept-encoding"] == "gzip, deflate"
                assert "gzip" in answer.json()["error"]["message"]


SYSTEM = [{"role": "system", "content": "word " * 900}]
MANY = [f"stop {number}" for number in range(MOST_STOPS + 1)]
# Where, what, and what the error says; and what no error says: those who read it may have never seen Python.
WORDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a prompt that no room holds": (PATHS[0], {**ASKED, "messages": SYSTEM}, "--capacity"),
    "the same, of Messages": (PATHS[2], {**ASKED, "messages": SYSTEM}, "--capacity"),
    "the same, of Responses": (PATHS[1], {"model": "nano", "input": "word " * 900}, "--capacity"),
    "the same, of a branch": (PATHS[3], {"messages": SYSTEM}, "--capacity"),
    "the same, of a text": ("/v1/completions", {"model": "nano", "prompt": "word " * 900}, "--capacity"),
    "an empty branch": (PATHS[3], {"text": ""}, "leave the prompt out"),
    "many stop strings": (PATHS[0], {**ASKED, "stop": MANY}, f"{MOST_STOPS + 1} parts.*at most {MOST_STOPS}"),
    "the same, of Messages ": (PATHS[2], {**ASKED, "stop_sequences": MANY}, f"at most {MOST_STOPS}"),
    "the same, of completions": ("/v1/completions", {"model": "nano", "prompt": "x", "stop": MANY}, "at most"),
}
FOREIGN = ("Context", "kv.", "`", "should", "after validation")


async def test_errors_say_what_a_client_can_do() -> None:
    async with serving(SETTINGS, capacity=512) as site:
        for name, (path, body, words) in WORDS.items():
            answer = await site.http.post(path, json=body)
            assert (name, answer.status_code // 100) == (name, 4), answer.text
            message = answer.json()["error"]["message"]
            assert re.search(words, message), (name, message)
            assert not any(word in message for word in FOREIGN), (name, message)
        for path in PATHS[0], "/v1/completions":
            body = (
                {**ASKED, "stop": MANY[:20]}
                if path == PATHS[0]
                else {"model": "nano", "prompt": "x", "stop": MANY[:20]}
            )
            assert (await site.http.post(path, json=body)).status_code == 200
        assert (await site.http.post(PATHS[2], json={**ASKED, "stop_sequences": MANY[:20]})).status_code == 200


def test_what_is_advised_otherwise_is_what_the_sdk_says() -> None:
    folder = Path(kv.__file__).parent
    sources = [
        *(path for path in folder.rglob("*.py") if "serve" not in path.parts),
        *(folder.parent / "cpp").rglob("*.cpp"),
        *(folder.parent / "runtime").rglob("*.py"),
    ]
    text = "".join(path.read_text() for path in sources).replace('"\n', "").replace('f"', '"')
    said = "".join(part.strip() if part.isspace() else part for part in text.split('"'))
    for ours, _ in ADVICE:
        assert ours.split("larger")[0].strip() in said, ours

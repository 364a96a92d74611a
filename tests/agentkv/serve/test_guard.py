"""Who gets in, and what does not: keys, hosts, bodies, slow and hostile clients."""

from __future__ import annotations

import json
import socket
from dataclasses import replace

import anyio
import anyio.to_thread
import openai
import pytest

from tests.waiting import PATIENCE

from .conftest import SETTINGS, serving

pytestmark = pytest.mark.anyio

BODY = {"model": "nano", "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 4}
CHAT = "/v1/chat/completions"


async def test_a_key_is_needed_wherever_something_is_told() -> None:
    async with serving(replace(SETTINGS, api_key="s3cret")) as site:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "s3cre"}, {"authorization": "s3cret?"}):
            for path in (CHAT, "/v1/models", "/metrics", "/nowhere"):
                refused = await site.http.post(path, json=BODY, headers=headers)
                assert refused.status_code == 401
                assert refused.json()["error"]["code"] == "invalid_api_key"
                assert "s3cret" not in refused.text
        assert (await site.http.get("/health")).json() == {"status": "ok"}
        assert (await site.openai.chat.completions.create(**BODY)).choices  # type: ignore[call-overload]
        assert (await site.http.get("/v1/models", headers={"x-api-key": "s3cret"})).status_code == 200
        with pytest.raises(openai.AuthenticationError):
            await site.openai.with_options(api_key="no").models.list()


async def test_other_hosts_are_not_answered() -> None:
    async with serving(replace(SETTINGS, hosts=("127.0.0.1", "localhost"))) as site:
        assert (await site.http.get("/v1/models")).status_code == 200
        assert (await site.http.get("/v1/models", headers={"host": "evil.example"})).status_code == 400


async def test_pages_are_let_in_by_name_alone() -> None:
    async with serving() as site:
        answer = await site.http.post(CHAT, json=BODY, headers={"origin": "https://page.example"})
        assert "access-control-allow-origin" not in answer.headers
    async with serving(replace(SETTINGS, origins=("https://page.example",), api_key="k")) as site:
        asked = {"origin": "https://page.example", "access-control-request-method": "POST"}
        answer = await site.http.options(CHAT, headers=asked)
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        asked["origin"] = "https://other.example"
        assert "access-control-allow-origin" not in (await site.http.options(CHAT, headers=asked)).headers


BODIES: list[tuple[bytes, str, int]] = [
    (b"{", "application/json", 400),
    (b"", "application/json", 400),
    (b"[]", "application/json", 400),
    *((scalar, "application/json", 400) for scalar in (b"5", b"null", b"true", b"0.5", b'"a"')),
    (b'{"model": NaN}', "application/json", 400),
    (b'{"model": "\xff"}', "application/json", 400),
    (b'{"a":' * 100_000, "application/json", 400),
    (b"[" * 1_000_000, "application/json", 400),
    (b'{"model": "nano", "messages": [{"role": "user", "content": "\\ud800"}]}', "application/json", 400),
    (b'{"messages": [' + b'"x",' * 70_000 + b'"x"]}', "application/json", 413),
    (b'{"metadata": {' + b",".join(b'"%d": ""' % i for i in range(70_000)) + b"}}", "application/json", 413),
    (b"{}", "text/plain", 415),
    (b"{}", "", 415),
    (b" " * 2_000_001, "application/json", 413),
]


async def test_bodies_that_are_none() -> None:
    async with serving(replace(SETTINGS, most_bytes=2_000_000)) as site:
        for content, media, status in BODIES:
            answer = await site.http.post(CHAT, content=content, headers={"content-type": media})
            assert answer.status_code == status, (content[:80], answer.text)
            assert answer.json()["error"]["message"]
            assert len(answer.text) < 2000


async def test_what_is_not_there() -> None:
    async with serving() as site:
        for path in (
            "/",
            "/v1/nothing",
            "/v1/models/",
            "/health/",
            "/v1/../../etc/passwd",
            "/v1/models/..%2f..",
            "/v1/models/x%0d%0aa:b",
        ):
            answer = await site.http.get(path)
            assert answer.status_code == 404
            assert "error" in answer.json()
            assert "a" not in answer.headers
        assert (await site.http.get(CHAT)).status_code == 405
        assert (await site.http.post("/v1/models", json={})).status_code == 405


@pytest.mark.parametrize("begun", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"])
async def test_a_client_that_never_comes_to_ask_is_hung_up_on(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv.serve.http.listener.HEADER_SECONDS", 0.2)

    def slow(host: str, port: int) -> bytes:
        with socket.create_connection((host, port), timeout=PATIENCE) as client:
            client.sendall(begun)
            return client.recv(1)  # nothing, once the server has closed it

    async with serving() as site:
        host, port = site.url.removeprefix("http://").split(":")
        assert await anyio.to_thread.run_sync(slow, host, int(port)) == b""
        assert (await site.http.get("/health")).status_code == 200


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv.serve.http.body.BODY_SECONDS", 0.2)
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
    )

    def slow(host: str, port: int) -> bytes:
        with socket.create_connection((host, port), timeout=PATIENCE) as client:
            client.sendall(head)
            return client.recv(64)

    async with serving() as site:
        host, port = site.url.removeprefix("http://").split(":")
        assert (await anyio.to_thread.run_sync(slow, host, int(port))).startswith(b"HTTP/1.1 408")


async def test_metrics_count_what_was_asked() -> None:
    async with serving() as site:
        await site.http.post(CHAT, json=BODY)
        await site.http.post(CHAT, json={})
        await site.http.get("/some/path/of/the/client")
        text = (await site.http.get("/metrics")).text
        assert f'agentkv_requests_total{{path="{CHAT}",status="200"}} 1.0' in text
        assert f'agentkv_requests_total{{path="{CHAT}",status="400"}} 1.0' in text
        assert 'agentkv_requests_total{path="other",status="404"} 1.0' in text
        assert "agentkv_generated_total" in text
        assert "/some/path" not in text


async def test_a_key_may_be_any_text_and_a_model_may_have_a_slash() -> None:
    async with serving(replace(SETTINGS, names=("org/nano",), api_key="schlüssel")) as site:
        headers = {b"x-api-key": "schlüssel".encode()}
        assert (await site.http.get("/v1/models/org/nano", headers=headers)).json()["id"] == "org/nano"
        text = (await site.http.get("/metrics", headers=headers)).text
        assert 'path="/v1/models/{model}",status="200"' in text


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
    )

    def leave(host: str, port: int) -> None:
        with socket.create_connection((host, port), timeout=PATIENCE) as client:
            client.sendall(head)

    async with serving() as site:
        host, port = site.url.removeprefix("http://").split(":")
        await anyio.to_thread.run_sync(leave, host, int(port))
        counted = 0
        with anyio.fail_after(PATIENCE):
            while not counted:
                text = (await site.http.get("/metrics")).text
                counted = text.count(f'agentkv_requests_total{{path="{CHAT}"')
        assert 'status="500"' not in text
    assert "request failed" not in caplog.text


async def test_a_reader_that_stops_does_not_keep_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentkv.serve.http.responses.LAST_SECONDS", 0.2)
    async with serving(replace(SETTINGS, most_seconds=0.5, most_kept=0)) as site:
        ends = {str(i): -100 for i in site.ctx.tokenizer.eos_ids}
        body = {**BODY, "max_tokens": 4000, "n": 8, "logprobs": True, "top_logprobs": 20, "logit_bias": ends}
        data = json.dumps({**body, "stream": True}).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        host, port = site.url.removeprefix("http://").split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            await anyio.to_thread.run_sync(client.connect, (host, int(port)))
            await anyio.to_thread.run_sync(client.sendall, head.encode() + data)
            with anyio.fail_after(PATIENCE):
                text = ""
                while f'path="{CHAT}"' not in text:  # its request is over, though it has read nothing
                    text = (await site.http.get("/metrics")).text
            assert not site.ctx.branches

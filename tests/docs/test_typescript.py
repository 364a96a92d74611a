"""The client in TypeScript, run by node where that is here, over a connection that loses what it can."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import anyio
import httpx
import pytest

from tests.agentkv.remote.faulty_proxy import Exchange, leaves_at_once, loses_the_answer, proxied
from tests.agentkv.serve.conftest import Served, anyio_backend, serving
from tests.docs.reader import ROOT

__all__ = ["anyio_backend"]
pytestmark = [pytest.mark.anyio, pytest.mark.skipif(shutil.which("node") is None, reason="node is not here")]

_TYPE = r"string|number|void|Json|State|Client|AbortController|Record<[^>]*>|Promise<[^>]*>"


def javascript(name: str) -> str:
    """A program of the examples without its types, whatever node it is for."""
    text = (ROOT / "examples" / f"{name}.ts").read_text(encoding="utf-8")
    text = re.sub(r"^type .*\n", "", text, flags=re.MULTILINE)
    return re.sub(rf": (?:{_TYPE})(?:\[\])?(?=[,);= ])", "", text).replace(".ts", ".mjs")


@pytest.mark.parametrize("name", ["branches", "branches_demo"])
def test_a_folder_without_a_package_runs_them(name: str) -> None:
    """tsx takes a file for a CommonJS module there, and such a module awaits nothing outside of its functions."""
    text = (ROOT / "examples" / f"{name}.ts").read_text(encoding="utf-8")
    assert not re.findall(r"^\S.*\bawait\b.*", text, flags=re.MULTILINE)


async def run(served: Served, url: str, folder: Path) -> str:
    for name in ("branches", "branches_demo"):
        (folder / f"{name}.mjs").write_text(javascript(name), encoding="utf-8")
    done = await anyio.run_process(["node", str(folder / "branches_demo.mjs"), url], check=False)
    assert done.returncode == 0, done.stderr.decode()
    await served.until(lambda: not served.server.branches)  # its lease has ended
    await served.until_idle()
    return done.stdout.decode()


async def test_the_client_of_the_page(tmp_path: Path) -> None:
    async with serving() as served:
        plain = await run(served, served.url, tmp_path)
        assert plain == "left I am Nano, your desk agent.\nright I am Nano, your desk agent.\n"
        made = served.ctx.stats.generated
        async with proxied(served.url) as proxy:
            proxy.faults.append(Exchange.passed_on)  # the lease
            proxy.faults.extend([loses_the_answer, leaves_at_once, Exchange.passed_on] * 4)
            assert await run(served, proxy.url, tmp_path) == plain
            assert not proxy.faults
        assert served.ctx.stats.generated == 2 * made  # nothing was done twice


async def test_a_branch_that_went_on_is_a_409(tmp_path: Path) -> None:
    (tmp_path / "branches.mjs").write_text(javascript("branches"), encoding="utf-8")
    (tmp_path / "other.mjs").write_text(
        'import { Branch, Client } from "./branches.mjs";\n'
        "const client = new Client(process.argv[2]);\n"
        'const branch = new Branch(client, { id: "desk", length: 2 });\n'
        'await branch.verb("extend", { text: "x" }).catch((error) => console.log(error.status, error.message));\n'
    )
    async with serving() as served, httpx.AsyncClient(base_url=served.url) as http:
        await http.post("/v1/branches", json={"tokens": [5, 6, 7], "name": "desk"})
        done = await anyio.run_process(["node", str(tmp_path / "other.mjs"), served.url])
        said = done.stdout.decode()
        assert said.startswith("409 if_length is 2, but branch desk has 3 tokens"), said

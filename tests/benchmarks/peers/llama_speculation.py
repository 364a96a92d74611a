"""llama.cpp's drafts from earlier text, on the prompts of `agentkv bench spec`: the same tokens to both.

Run by hand: `python -m tests.benchmarks.peers.llama_speculation MODEL.gguf LLAMA_SERVER [--work A,B] [--branches N]`.
One server per kind of drafts, asked in turns. Its drafts by a second model need one with the same vocabulary: pass
`--draft-model FILE.gguf` (SmolLM2 and Qwen are none for each other).
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import anyio
import httpx
import typer
from rich.console import Console
from rich.table import Table

import agentkv as kv
from agentkv._bench.prompts import BenchPrompt
from agentkv._bench.speculation import DEFAULT_TOKENS
from agentkv._bench.work import KINDS, read_work

CELLS = 4096  # of a branch, as in `agentkv bench spec`
PLAIN = "plain"
NGRAMS = ("ngram-cache", "ngram-simple", "ngram-mod")  # the first is what llama-lookup does
console = Console()


@dataclass(frozen=True)
class Answer:
    """What a server answered to a group of prompts."""

    seconds: float
    tokens: int
    drafted: int
    accepted: int
    output: list[list[int]]


@dataclass(frozen=True)
class Server:
    """A llama-server with one slot per branch."""

    client: httpx.Client

    def answer(self, group: Sequence[dict[str, Any]]) -> Answer:
        """All prompts at the same time; their own forwards are not timed."""
        slots = [{**body, "id_slot": slot} for slot, body in enumerate(group)]
        with ThreadPoolExecutor(len(group)) as pool:
            list(pool.map(self._complete, [{**body, "n_predict": 1} for body in slots]))
            start = time.perf_counter()
            answers = list(pool.map(self._complete, slots))
            seconds = time.perf_counter() - start
        timings = [answer["timings"] for answer in answers]
        drafted, accepted = (sum(each.get(name, 0) for each in timings) for name in ("draft_n", "draft_n_accepted"))
        output = [answer["tokens"] for answer in answers]
        return Answer(seconds, sum(map(len, output)), drafted, accepted, output)

    def _complete(self, body: dict[str, Any]) -> Any:
        return self.client.post("/completion", json=body).raise_for_status().json()


@contextmanager
def serving(command: Sequence[str | Path]) -> Iterator[Server]:
    """A server that answers, until the block is left."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=None) as client:
            while True:
                if process.poll() is not None:
                    raise RuntimeError(f"{' '.join(map(str, command))} ended with {process.returncode}")
                try:
                    if client.get("/health").is_success:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.2)
            yield Server(client)
    finally:
        process.terminate()
        process.wait()


async def bodies(model: Path, prompts: Sequence[BenchPrompt], most: int, temperature: float) -> list[dict[str, Any]]:
    """Requests with the tokens that agentkv makes of the prompts."""
    made = []
    async with kv.Context.open(model, capacity=CELLS) as ctx:
        for prompt in prompts:
            async with await prompt.branch(ctx) as branch:
                body = {"prompt": branch.tokens, "n_predict": min(most, prompt.max_tokens or DEFAULT_TOKENS)}
            schema = {} if prompt.schema is None else {"json_schema": prompt.schema}
            made.append({**body, **schema, "temperature": temperature, "return_tokens": True, "cache_prompt": True})
    return made


def add_row(table: Table, name: str, answers: list[list[Answer]], plain: list[list[Answer]]) -> None:
    """A line of the table. answers: [round][group]."""
    every = [answer for each in answers for answer in each]
    seconds, usual = (
        sum(statistics.median(each[group].seconds for each in runs) for group in range(len(runs[0])))
        for runs in (answers, plain)
    )
    drafted, accepted = sum(each.drafted for each in every), sum(each.accepted for each in every)
    same = [mine.output == other.output for mine, other in zip(answers[0], plain[0], strict=True)]
    table.add_row(
        name,
        f"{1000 * seconds / sum(each.tokens for each in answers[0]):.2f}",
        f"{accepted} of {drafted}" if drafted else "",
        f"{usual / seconds:.2f}",
        f"{sum(same)} of {len(same)}",
    )


def main(
    model: Path,
    server: Path,
    work: str = ",".join(KINDS),
    n: int = 4,
    branches: int = 1,
    rounds: int = 2,
    max_tokens: int = 768,
    temperature: float = 0.0,
    threads: int = os.cpu_count() or 1,
    draft_model: Annotated[Path | None, typer.Option(help="A GGUF file with the same vocabulary.")] = None,
) -> None:
    """Plain decoding of llama.cpp beside its drafts from text, by kind of work."""
    usual = [server, "-m", model, "-t", str(threads), "-np", str(branches), "-c", str(CELLS * branches)]
    options: dict[str, list[str | Path]] = {PLAIN: [], **{name: ["--spec-type", name] for name in NGRAMS}}
    if draft_model is not None:
        options["draft-simple"] = ["--spec-type", "draft-simple", "--spec-draft-model", draft_model]
    title = f"llama.cpp, {model.name}, {branches} at a time, median of {rounds}"
    with ExitStack() as open_servers:
        servers = {name: open_servers.enter_context(serving([*usual, *added])) for name, added in options.items()}
        names = list(servers)
        for kind, prompts in read_work(work.split(","), max(n, branches)).items():
            asked = anyio.run(bodies, model, prompts, max_tokens, temperature)
            groups = [asked[at : at + branches] for at in range(0, len(asked), branches)]
            answers: dict[str, list[list[Answer]]] = defaultdict(list)
            for turn in range(rounds):
                runs: dict[str, list[Answer]] = {name: [] for name in servers}
                for number, group in enumerate(groups):
                    first = (turn + number) % len(names)  # none always comes first
                    for name in names[first:] + names[:first]:
                        runs[name].append(servers[name].answer(group))
                for name, made in runs.items():
                    answers[name].append(made)
            table = Table(kind, "ms/token", "accepted", "times plain", "groups with plain's output", title=title)
            for name, rows in answers.items():
                add_row(table, name, rows, answers[PLAIN])
            console.print(table)


if __name__ == "__main__":
    typer.run(main)

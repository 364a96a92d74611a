"""What retention saves of a replay of agents' requests, beside the best that the same cells could save.

Run by hand: `python tests/benchmarks/bench_retention.py`. 2,000 requests of 200 conversations over 20 system prompts
come in sessions, as people talk: some turns of one conversation, several sessions at the same time, favourites more
often. Each request is a prompt of the whole conversation, an answer, and the end of its branch. The best possible is
computed offline: whenever cells are needed, the tokens that will be asked for latest leave first (Belady 1966, over the
tree of histories), and nothing that will not be asked for again is kept.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import agentkv as kv

console = Console()
Piece = tuple[int, ...]  # tokens of one message


class Conversation:
    """A system prompt and messages so far."""

    def __init__(self, system: Piece) -> None:
        self.pieces: list[Piece] = [system]

    @property
    def tokens(self) -> list[int]:
        return [token for piece in self.pieces for token in piece]


def requests(seed: int, count: int, prompts: int, conversations: int, open_at_once: int) -> Iterator[Conversation]:
    """Conversations in the order of their requests, each with its next question."""
    rng = random.Random(seed)

    def piece(low: int, high: int) -> Piece:
        return tuple(rng.randrange(3, 380) for _ in range(rng.randint(low, high)))

    systems = [piece(60, 160) for _ in range(prompts)]
    talks = [Conversation(systems[i % prompts]) for i in range(conversations)]
    weights = [1 / (1 + i) ** 0.8 for i in range(conversations)]
    rng.shuffle(weights)
    sessions: list[list[Conversation]] = []
    for _ in range(count):
        while len(sessions) < open_at_once:
            (talk,) = rng.choices(talks, weights)
            sessions.append([talk] * rng.randint(3, 10))
        session = rng.choice(sessions)
        talk = session.pop()
        sessions = [s for s in sessions if s]
        talk.pieces.append(piece(8, 30))
        if len(talk.pieces) > 12:  # the person begins anew
            del talk.pieces[1:-1]
        yield talk


async def replay(
    folder: object, cells: int, retain: int | None, options: dict[str, int]
) -> tuple[int, list[list[Piece]]]:
    """Tokens that were prefilled, and the pieces of each request, its answer last."""
    asked: list[list[Piece]] = []
    async with kv.Context.open(folder, capacity=cells, kv_dtype="fp16", retain=retain) as ctx:  # type: ignore[arg-type]
        for talk in track(requests(**options), "replaying", total=options["count"], console=console, transient=True):
            async with await ctx.branch(talk.tokens) as branch:
                answer = await branch.generate(max_tokens=24)
            talk.pieces.append(tuple(answer.tokens))
            asked.append(list(talk.pieces))
        return ctx.stats.prefilled, asked


def least_prefill(asked: list[list[Piece]], cells: int) -> int:
    """Tokens that must be prefilled when the future is known, message by message."""
    uses: dict[tuple[Piece, ...], list[int]] = {}
    for time, pieces in enumerate(asked):
        for depth in range(1, len(pieces) + 1):
            uses.setdefault(tuple(pieces[:depth]), []).append(time)
    for times in uses.values():
        times.reverse()
    held: dict[tuple[Piece, ...], int] = {}
    farthest: list[tuple[int, int, tuple[Piece, ...]]] = []
    filled = fed = 0
    for pieces in asked:
        path = [tuple(pieces[:depth]) for depth in range(1, len(pieces) + 1)]
        for node in path:
            uses[node].pop()
            if node not in held:
                held[node] = len(node[-1])
                filled += held[node]
                if node != path[-1]:
                    fed += held[node]  # an answer is generated, not prefilled
            following = uses[node][-1] if uses[node] else len(asked)
            heapq.heappush(farthest, (-following, -len(node), node))
        while filled > cells or (farthest and -farthest[0][0] == len(asked)):
            following, _, node = heapq.heappop(farthest)
            now = uses[node][-1] if uses[node] else len(asked)
            if node in held and now == -following:
                filled -= held.pop(node)
    return fed


def main(
    share: Annotated[float, typer.Option(help="Cells, as a share of all histories.")] = 1 / 3,
    count: Annotated[int, typer.Option(help="Requests.")] = 2000,
    prompts: Annotated[int, typer.Option(help="System prompts.")] = 20,
    conversations: Annotated[int, typer.Option(help="Conversations.")] = 200,
    sessions: Annotated[int, typer.Option(help="Sessions at the same time.")] = 6,
    seed: Annotated[int, typer.Option(help="Of the trace.")] = 0,
) -> None:
    """Replay, and print what was prefilled."""
    options = {"seed": seed, "count": count, "prompts": prompts}
    options |= {"conversations": conversations, "open_at_once": sessions}
    folder = kv.models.nano()
    everything, asked = anyio.run(replay, folder, 4096, 0, options)
    last: dict[tuple[Piece, ...], int] = {}
    for pieces in asked:
        for depth in range(1, len(pieces) + 1):
            last[tuple(pieces[:depth])] = len(pieces[depth - 1])
    ends = {tuple(p) for p in asked} - {tuple(p[:d]) for p in asked for d in range(1, len(p))}
    alive = {node[:depth] for node in ends for depth in range(1, len(node) + 1)}
    total = sum(last[node] for node in alive)
    cells = int(total * share)
    kept, again = anyio.run(replay, folder, cells, None, options)
    assert again == asked, "retention changed what was said"
    best = least_prefill(asked, cells)
    table = Table(title=f"{count} requests, {total} tokens of histories, {cells} cells")
    for column in ("", "prefilled", "saved", "of what is possible"):
        table.add_column(column, justify="right" if column else "left")
    for name, fed in (("no retention", everything), ("retention", kept), ("best possible", best)):
        table.add_row(name, str(fed), str(everything - fed), f"{(everything - fed) / (everything - best):.1%}")
    console.print(table)


if __name__ == "__main__":
    typer.run(main)

"""A workflow of five steps, with guards and without: how many runs of a model end right.

python tests/benchmarks/bench_guarded.py MODEL [--runs 50] [--show]

A ticket is to be handled: find its order, check the stock of the item, refund the price, mail the customer, close the
ticket with the receipt. The model reads the same words, tools and question each way; "guarded" adds `required` and
`final_tool`, and nothing else. A run is right where each tool was called with what the one before gave, and the ticket
was closed with the receipt of its refund. Greedy; tickets are drawn from a seed, so both ways handle the same ones.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any

import anyio
import typer

import agentkv as kv

SYSTEM = "You handle tickets of a shop. Call one tool after another, with what the tools before gave."
ITEMS = ["lamp", "kettle", "chair", "radio", "clock", "teapot"]
NAMES = ["mira", "olaf", "jun", "ada", "noor", "piet"]
STEPS = ["find_order", "check_stock", "refund", "send_mail"]
FINAL = "close_ticket"


@dataclass
class Ticket:
    """What a run is given, and what its tools were called with."""

    number: int
    order: str
    item: str
    price: int
    email: str
    receipt: str
    right: set[str] = field(default_factory=set)

    @classmethod
    def drawn(cls, number: int) -> Ticket:
        """The ticket of this number, always the same."""
        draw = random.Random(number)
        number += 100
        name = draw.choice(NAMES)
        order, receipt = str(draw.randint(1000, 9999)), f"R{draw.randint(100, 999)}"
        return cls(number, order, draw.choice(ITEMS), draw.randint(5, 95), f"{name}@shop.example", receipt)

    @property
    def question(self) -> str:
        """What the model is asked."""
        return (
            f"Ticket {self.number}: order {self.order} arrived broken. Find the order, check the stock of its item, "
            "refund its price, mail the customer that it is refunded, and close the ticket with the receipt of that."
        )

    def note(self, step: str, right: bool) -> None:
        """A step was taken, with what it should be taken with or not."""
        if right:
            self.right.add(step)


def tools() -> list[kv.Tool[Ticket, ..., Any]]:
    """The shop's."""

    @kv.tool
    def find_order(ctx: kv.RunContext[Ticket], order: str) -> dict[str, Any]:
        """Find an order by its number."""
        ticket = ctx.deps
        ticket.note("find_order", order == ticket.order)
        return {"item": ticket.item, "price": ticket.price, "email": ticket.email}

    @kv.tool
    def check_stock(ctx: kv.RunContext[Ticket], item: str) -> dict[str, Any]:
        """How many of an item are in stock."""
        ctx.deps.note("check_stock", item == ctx.deps.item)
        return {"item": item, "count": 0}

    @kv.tool
    def refund(ctx: kv.RunContext[Ticket], order: str, amount: int) -> dict[str, Any]:
        """Refund an amount for an order. Gives a receipt."""
        ctx.deps.note("refund", (order, amount) == (ctx.deps.order, ctx.deps.price))
        return {"receipt": ctx.deps.receipt}

    @kv.tool
    def send_mail(ctx: kv.RunContext[Ticket], to: str, text: str) -> dict[str, Any]:
        """Send a mail to a customer."""
        ctx.deps.note("send_mail", to == ctx.deps.email)
        return {"sent": to}

    @kv.tool
    def close_ticket(ctx: kv.RunContext[Ticket], ticket: int, receipt: str) -> dict[str, Any]:
        """Close a ticket, with the receipt of its refund."""
        ctx.deps.note("close_ticket", (ticket, receipt) == (ctx.deps.number, ctx.deps.receipt))
        return {"closed": ticket}

    return [find_order, check_stock, refund, send_mail, close_ticket]


async def handled(ctx: kv.Context, agent: kv.Agent[Ticket, Any], ticket: Ticket) -> tuple[str, kv.Run[Any] | None]:
    """How a run ended, and what it did."""
    async with await agent.trunk(ctx) as branch:
        try:
            run = await agent.run(branch, ticket.question, deps=ticket)
        except kv.LimitReached as error:
            return error.limit, error.run
        except kv.AgentKVError as error:
            return type(error).__name__, error.run
    return "answered", run


async def measure(model: str, runs: int, capacity: int, show: bool) -> None:
    """Prints a row for each way."""
    ways = {"unguarded": {}, "guarded": {"required": STEPS, "final_tool": FINAL}}
    async with kv.Context.open(model, capacity=capacity) as ctx:
        for name, guards in ways.items():
            agent: kv.Agent[Ticket, Any] = kv.Agent(SYSTEM, tools=tools(), **guards)  # type: ignore[call-overload]
            ends: Counter[str] = Counter()
            steps: Counter[str] = Counter()
            right = calls = tokens = 0
            began = time.perf_counter()
            for number in range(runs):
                ticket = Ticket.drawn(number)
                end, run = await handled(ctx, agent, ticket)
                ends[end] += 1
                steps.update(ticket.right)
                right += ticket.right == {*STEPS, FINAL}
                calls += len(run.calls) if run else 0
                tokens += run.usage.completion_tokens if run else 0
                if show:
                    made = [(call.name, dict(call.arguments), call.status) for call in run.calls] if run else []
                    print(f"  {number} {end} {sorted(ticket.right)} {made} {run.text[:80]!r}" if run else end)
            took = (time.perf_counter() - began) / runs
            print(
                f"{name:10} right {right} of {runs} ({right / runs:.0%}); steps right "
                f"{', '.join(f'{step} {steps[step]}' for step in [*STEPS, FINAL])}; {calls / runs:.1f} calls, "
                f"{tokens / runs:.0f} tokens, {took:.1f} s a run; ended {dict(ends)}",
                flush=True,
            )


def main(
    model: str,
    runs: Annotated[int, typer.Option(help="Tickets.")] = 50,
    capacity: Annotated[int, typer.Option(help="Tokens of the cache.")] = 4096,
    show: Annotated[bool, typer.Option(help="Print each run.")] = False,
) -> None:
    """Measures a model."""
    anyio.run(measure, model, runs, capacity, show)


if __name__ == "__main__":
    typer.run(main)

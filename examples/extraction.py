"""Typed extraction: letters become orders, all of them at once, and the schema stands in the prompt.

The grammar makes every answer an `Order`; the schema in the prompt tells the model what its fields mean. A validator
checks what no grammar can hold, and an order that it refuses is asked for again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import anyio
from pydantic import BaseModel, Field, field_validator

import agentkv as kv

LETTERS = [
    "Mirela ordered 12 Lumora and 6 Keldan. Order K77, 480 EUR.",
    "Order B12: 3 Pixelo and 40 Lumora for Tolvik, 1645 EUR in all.",
    "Brasno ordered 7 Keldan, 2 Mirova and 5 Lumora. Order T30, 390.5 EUR.",
]
Word = Annotated[str, Field(max_length=24)]  # what has no bound may never end


class Item(BaseModel):
    """What is bought, and how many of it."""

    product: Word
    count: Annotated[int, Field(ge=1, le=9999)]


class Order(BaseModel):
    """An order, as the shop files it."""

    customer: Word
    number: Word
    total: Annotated[float, Field(ge=0, le=99999)]
    items: Annotated[list[Item], Field(min_length=1, max_length=4)]

    @field_validator("customer", "number")
    @classmethod
    def say_something(cls, value: str) -> str:
        """A grammar holds lengths and patterns; this could ask a database as well."""
        if not value.strip():
            raise ValueError("a name is needed")
        return value.strip()


def instructions() -> str:
    """The schema, as the model reads it."""
    return f"Extract what the user says as JSON of this schema: {json.dumps(Order.model_json_schema())}"


async def extract(trunk: kv.Branch, letter: str) -> Order | None:
    """The order in a letter, on a fork that is closed again; None where the model finds no end, or no valid order."""
    async with await trunk.fork() as branch:
        await branch.extend([{"role": "user", "content": letter}])
        try:
            return (await branch.generate(output=Order, max_tokens=300, output_retries=2)).output
        except (kv.OutputIncomplete, kv.OutputInvalid):
            return None


async def extract_all(ctx: kv.Context, letters: Sequence[str]) -> list[Order | None]:
    """All letters at once: one prefill of the schema, and one forward for a token of each."""
    async with await ctx.branch([{"role": "system", "content": instructions()}]) as trunk:
        return await kv.gather(*(extract(trunk, letter) for letter in letters))


async def main() -> None:
    """Print the orders, and what they cost."""
    async with kv.Context.open(kv.models.nano(), capacity=4096) as ctx:
        for order in await extract_all(ctx, LETTERS):
            print(order.model_dump_json() if order else "no order")
        stats = ctx.stats
        print(f"{stats.generated} tokens in {stats.forwards} forwards, {stats.forced} of them forced")


if __name__ == "__main__":
    anyio.run(main)

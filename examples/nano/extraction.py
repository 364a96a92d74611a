"""Typed extraction: a text and a JSON schema in the prompt, and the JSON that the schema asks for as the answer."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from .pools import Pool
from .records import RECORDS, Fact, Record, Schema

_ASKS = (
    "Answer as JSON: ",
    "Reply with JSON of this schema: ",
    "Extract the data as JSON of this schema: ",
    "As JSON, with this schema: ",
    "Schema: ",
    "Fill in this schema: ",
)
_INSTRUCTIONS = (
    "Extract what the user says as JSON of this schema: ",
    "You read texts and answer with JSON of this schema: ",
    "Answer as JSON: ",
    "Fill in this schema: ",
)


@dataclass(frozen=True)
class Form:
    """Which fields are asked for, under which names, and how the schema is written."""

    keys: tuple[tuple[int, str], ...]  # position among the record's facts, the unsaid ones behind the others; name
    optional: tuple[str, ...]
    titles: bool
    short: bool

    @classmethod
    def sample(cls, rng: random.Random, record: Record) -> Form:
        """Some of the facts in some order, now and then one of which the text says nothing."""
        asked = list(range(len(record.facts)))
        if rng.random() < 0.35:
            asked = rng.sample(asked, rng.randint(1, len(asked)))
        if rng.random() < 0.25:
            rng.shuffle(asked)
        if record.unsaid and rng.random() < 0.25:
            asked.append(len(record.facts) + rng.randrange(len(record.unsaid)))
        everything = [*record.facts, *record.unsaid]
        taken: dict[str, int] = {}
        for index in asked:
            names = [name for name in everything[index].names if name not in taken]
            weights = [4, *[1] * (len(names) - 1)] if names else []
            if names:
                taken[rng.choices(names, weights)[0]] = index
        optional = tuple(k for k, i in taken.items() if i >= len(record.facts) or rng.random() < 0.05)
        return cls(tuple((i, k) for k, i in taken.items()), optional, rng.random() < 0.7, rng.random() < 0.15)

    def schema(self, record: Record) -> str:
        """The schema as pydantic writes it, without its titles, or as a bare example of keys and types."""
        facts = self._facts(record)
        if self.short:
            return json.dumps({key: _brief(fact.schema) for key, fact in facts.items()}, ensure_ascii=False)
        properties = {key: self._property(key, fact.schema) for key, fact in facts.items()}
        whole: Schema = {"properties": properties, "required": [key for key in facts if key not in self.optional]}
        rows = [fact.schema["items"] for fact in facts.values() if fact.schema.get("items", {}).get("properties")]
        if rows and self.titles:
            whole = {"$defs": {row["title"]: self._object(row) for row in rows}, **whole}
        return json.dumps({**whole, **({"title": record.title} if self.titles else {}), "type": "object"})

    def _property(self, key: str, schema: Schema) -> Schema:
        if "items" in schema and "properties" in schema["items"]:
            row = schema["items"]
            schema = {**schema, "items": {"$ref": f"#/$defs/{row['title']}"} if self.titles else self._object(row)}
        if key in self.optional:
            schema = {"anyOf": [schema, {"type": "null"}]}
        return _titled(key, schema) if self.titles else schema

    def _object(self, row: Schema) -> Schema:
        properties = {k: _titled(k, v) if self.titles else v for k, v in row["properties"].items()}
        made = {"properties": properties, "required": row["required"]}
        return {**made, **({"title": row["title"]} if self.titles else {}), "type": "object"}

    def answer(self, record: Record) -> str:
        """The JSON that the schema asks for."""
        return json.dumps({key: fact.value for key, fact in self._facts(record).items()}, ensure_ascii=False)

    def _facts(self, record: Record) -> dict[str, Fact]:
        everything = [*record.facts, *record.unsaid]
        return {key: everything[index] for index, key in self.keys}


def _titled(key: str, schema: Schema) -> Schema:
    """A property as pydantic describes it, its keys in alphabetical order."""
    return dict(sorted({**schema, "title": key.replace("_", " ").title()}.items()))


def _brief(schema: Schema) -> Any:
    if "items" in schema:
        return [_brief(schema["items"])]
    if "properties" in schema:
        return {key: _brief(value) for key, value in schema["properties"].items()}
    return "|".join(schema["enum"]) if "enum" in schema else schema["type"]


def question(rng: random.Random, pool: Pool) -> tuple[str, str]:
    """A text with a schema, and the answer."""
    record = rng.choice(RECORDS)(rng, pool)
    form = Form.sample(rng, record)
    schema = rng.choice(_ASKS) + form.schema(record)
    lead = rng.choice(("", "", "", "Read this: ", "From this text: ", "Text: "))
    text = lead + record.text
    break_ = rng.choice(("\n", "\n", "\n\n", " "))
    return (f"{text}{break_}{schema}" if rng.random() < 0.7 else f"{schema}{break_}{text}"), form.answer(record)


def series(rng: random.Random, pool: Pool, count: int) -> tuple[str, list[tuple[str, str]]]:
    """Instructions with a schema, and up to `count` texts with the answers that it asks for."""
    make = rng.choice(RECORDS)
    first = make(rng, pool)
    form = Form.sample(rng, first)
    schema = form.schema(first)
    alike = [first]
    for _ in range(20 * (count - 1)):  # records of one kind differ in their facts; only some fit the same schema
        record = make(rng, pool)
        if len(alike) < count and record.fields == first.fields and form.schema(record) == schema:
            alike.append(record)
    return rng.choice(_INSTRUCTIONS) + schema, [(record.text, form.answer(record)) for record in alike]

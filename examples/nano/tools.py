"""The desk agent's tools: what each is called, what it takes, and what it does.

Every tool is a pure function of its arguments. Facts that a real desk would look up (weather, stock,
phone numbers) are derived from a hash of the arguments, so two runs always agree.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import pools

SYSTEM = "You are Nano, a desk agent."
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
UNITS = {  # unit -> (dimension, factor to the dimension's base)
    "km": ("length", 1000.0),
    "m": ("length", 1.0),
    "miles": ("length", 1609.344),
    "feet": ("length", 0.3048),
    "kg": ("mass", 1.0),
    "grams": ("mass", 0.001),
    "pounds": ("mass", 0.45359237),
    "liters": ("volume", 1.0),
    "gallons": ("volume", 3.785411784),
    "cups": ("volume", 0.24),
}
RATES = {"EUR": 1.0, "USD": 1.08, "GBP": 0.85, "NOK": 11.5, "JPY": 163.0, "CHF": 0.95}
LANGUAGES = ("French", "German", "Spanish", "Italian", "Polish")
FIELDS = ("phone", "email", "city")
SKIES = ("sunny", "rainy", "cloudy", "windy", "snowy", "foggy")

Result = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A callable tool and the definition that the model reads."""

    name: str
    description: str
    parameters: Mapping[str, str]
    run: Callable[..., Result]

    def definition(self) -> dict[str, Any]:
        """The tool in the form that chat templates and tool-calling APIs share."""
        properties = {key: {"type": kind} for key, kind in self.parameters.items()}
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": schema},
        }


def _tidy(value: float) -> int | float:
    rounded = round(value, 2)
    return int(rounded) if rounded == int(rounded) else rounded


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _evaluate(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    raise ValueError("only numbers, + - * / and brackets are allowed")


def calculator(expression: str) -> Result:
    """Evaluate + - * / over numbers and brackets, to two decimals."""
    if len(expression) > 200:
        raise ValueError("expression too long")
    return {"result": _tidy(_evaluate(ast.parse(expression, mode="eval").body))}


def convert(value: float, unit: str, to: str) -> Result:
    """Convert between two units of one dimension."""
    (source, factor), (target, divisor) = UNITS[unit], UNITS[to]
    if source != target:
        raise ValueError(f"{unit} and {to} do not measure the same thing")
    return {"result": _tidy(value * factor / divisor)}


def weather(city: str) -> Result:
    """Temperature and sky, fixed for ever for each city."""
    mark = pools.digest("weather", city)
    return {"temp": mark % 46 - 10, "sky": SKIES[mark // 46 % len(SKIES)]}


def calendar(day: str) -> Result:
    """The one event of a day, or none."""
    rng, _ = pools.derived(("calendar", day))
    pool: pools.Pool = "train" if day in DAYS else pools.pool_of(day)
    if rng.random() < 0.3:
        return {"event": None}
    title = f"{rng.choice(('review', 'lunch', 'interview', 'call', 'workshop'))} with {pools.name(rng, pool)}"
    return {"event": title, "time": f"{rng.randint(8, 17):02d}:{rng.choice((0, 15, 30, 45)):02d}"}


def add_event(title: str, day: str, time: str) -> Result:
    """Put an event in the calendar."""
    return {"ok": True}


def stock(product: str) -> Result:
    """How many are on the shelf, and the price in EUR."""
    rng, pool = pools.derived(product)
    return {"count": pools.integer(rng, pool), "price": pools.integer(rng, pool)}


def search_notes(query: str) -> Result:
    """The note that mentions the query."""
    rng, pool = pools.derived(query)
    place = rng.choice(("drawer", "box", "shelf", "folder", "locker"))
    thing = rng.choice(("key", "contract", "badge", "invoice", "manual"))
    return {"note": f"{pools.name(rng, pool)} has the {thing} in {place} {pools.integer(rng, pool)}"}


def contact(name: str, field: str) -> Result:
    """A person's phone, email or city."""
    rng, pool = pools.derived(name)
    facts = {
        "phone": f"{pools.integer(rng, pool)}-{pools.integer(rng, pool)}",
        "email": f"{pools.word(rng, pool)}@{pools.word(rng, pool)}.com",
        "city": pools.name(rng, pool),
    }
    return {field: facts[field]}


def exchange(amount: float, currency: str, to: str) -> Result:
    """Exchange money at fixed rates."""
    return {"result": _tidy(amount / RATES[currency] * RATES[to])}


def train(origin: str, to: str) -> Result:
    """The next train between two cities."""
    rng, pool = pools.derived(f"{origin} {to}")
    return {"train": pools.code(rng, pool), "departs": pools.clock(rng, pool)}


def flight(origin: str, to: str) -> Result:
    """The cheapest flight between two cities."""
    rng, pool = pools.derived(f"{origin} {to} by air")
    return {"flight": pools.code(rng, pool), "price": pools.integer(rng, pool)}


def add_todo(item: str) -> Result:
    """Put an item on the list."""
    return {"items": pools.digest("todo", item) % 30 + 1}


def set_timer(minutes: float) -> Result:
    """Start a timer."""
    return {"timer": pools.digest("timer", minutes) % 90 + 1}


def remind(text: str, time: str) -> Result:
    """Set a reminder."""
    return {"ok": True}


def translate(word: str, language: str) -> Result:
    """A made-up translation, always the same."""
    rng, pool = pools.derived(f"{word} {language}")
    return {"word": pools.word(rng, pool)}


def define(word: str) -> Result:
    """A made-up meaning, always the same."""
    rng, _ = pools.derived(("define", word))
    size, colour = rng.choice(("small", "large", "new", "rare")), rng.choice(("red", "blue", "green", "grey"))
    return {"meaning": f"a {size} {colour} {rng.choice(('boat', 'bird', 'tool', 'stone', 'flower', 'coat'))}"}


def track(package: str) -> Result:
    """Where a package is and when it arrives."""
    rng, pool = pools.derived(package)
    return {"city": pools.name(rng, pool), "arrives": rng.choice(DAYS)}


def clock(city: str) -> Result:
    """The local time in a city."""
    rng, pool = pools.derived(f"{city} clock")
    return {"time": pools.clock(rng, pool)}


def send(to: str, text: str) -> Result:
    """Send a message."""
    return {"ok": True}


_S, _N = "string", "number"
TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool("calculator", "do arithmetic", {"expression": _S}, calculator),
        Tool("convert", "convert units", {"value": _N, "unit": _S, "to": _S}, convert),
        Tool("weather", "weather in a city", {"city": _S}, weather),
        Tool("calendar", "events on a day", {"day": _S}, calendar),
        Tool("add_event", "add to the calendar", {"title": _S, "day": _S, "time": _S}, add_event),
        Tool("stock", "stock and price in EUR", {"product": _S}, stock),
        Tool("search_notes", "search the notes", {"query": _S}, search_notes),
        Tool("contact", "phone, email or city of a person", {"name": _S, "field": _S}, contact),
        Tool("exchange", "exchange money", {"amount": _N, "currency": _S, "to": _S}, exchange),
        Tool("train", "next train", {"origin": _S, "to": _S}, train),
        Tool("flight", "cheapest flight", {"origin": _S, "to": _S}, flight),
        Tool("add_todo", "add to the todo list", {"item": _S}, add_todo),
        Tool("set_timer", "start a timer", {"minutes": _N}, set_timer),
        Tool("remind", "set a reminder", {"text": _S, "time": _S}, remind),
        Tool("translate", "translate a word", {"word": _S, "language": _S}, translate),
        Tool("define", "meaning of a word", {"word": _S}, define),
        Tool("track", "find a package", {"package": _S}, track),
        Tool("clock", "time in a city", {"city": _S}, clock),
        Tool("send", "send a message", {"to": _S, "text": _S}, send),
    )
}


@dataclass(frozen=True)
class Call:
    """One tool call, as the model writes it."""

    name: str
    arguments: dict[str, Any]

    def text(self) -> str:
        """The call in its tags."""
        body = json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)
        return f"<tool_call>{body}</tool_call>"


def parse_calls(text: str) -> list[Call]:
    """The complete calls in an assistant turn, in order; malformed ones are skipped and never run."""
    calls = []
    for body in re.findall(r"<tool_call>(.*?)</tool_call>", text, flags=re.DOTALL):
        try:
            raw = json.loads(body)
            calls.append(Call(str(raw["name"]), dict(raw["arguments"])))
        except (ValueError, KeyError, TypeError):
            continue
    return calls


def execute(call: Call) -> Result:
    """Run a call; whatever goes wrong comes back as `{"error": ...}`, which the model can read."""
    tool = TOOLS.get(call.name)
    if tool is None:
        return {"error": "unknown tool"}
    try:
        return tool.run(**call.arguments)
    except (TypeError, ValueError, KeyError, ArithmeticError, SyntaxError):
        return {"error": "bad arguments"}


def response(result: Result | str) -> str:
    """A result as the content of a `tool` message: text as it is, anything else as JSON."""
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return f"<tool_response>{text}</tool_response>"

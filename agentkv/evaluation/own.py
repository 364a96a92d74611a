"""Generated cases: drawn from templates with a seed, each in a small world, judged by its final state and the answer.

Another seed draws other cases of the same kinds, which nothing was tuned to.
"""

from __future__ import annotations

from .cases import Case
from .draw import Draw
from .templates import TEMPLATES, Drawn

SEED = 38

INSTRUCTIONS = (
    "You are an assistant with tools. Use them where they help, as often as it takes. Then answer in one sentence."
)


def own_cases(seed: int = SEED) -> list[Case]:
    """Draws a hundred cases, the same for equal seeds."""
    return [
        _case(f"{category}_{at}", category, templates[at % len(templates)](Draw(f"{seed} {category} {at}")))
        for category, (n, templates) in TEMPLATES.items()
        for at in range(n)
    ]


def _case(name: str, category: str, drawn: Drawn) -> Case:
    messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": drawn.question}]
    document = {"id": name, "category": category, "messages": messages, "world": drawn.world}
    return Case.model_validate({**document, "expected": drawn.expected})

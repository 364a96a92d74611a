"""Speculation: drafts of a branch's continuation, verified many tokens at a time. They change the speed, never the
output.

async with kv.Context.open(model, speculative=kv.spec.Suffix()) as ctx: ...  # for every generation
await branch.generate(speculative=kv.spec.Eagle())  # for one
await branch.generate(speculative=None)  # none
"""

from .draft_model import DraftModel
from .eagle import Eagle
from .mixed import Mixed
from .mtp import MTP
from .prompt_lookup import PromptLookup
from .strategy import Draft, Strategy
from .suffix import Suffix

__all__ = ["MTP", "Draft", "DraftModel", "Eagle", "Mixed", "PromptLookup", "Strategy", "Suffix"]

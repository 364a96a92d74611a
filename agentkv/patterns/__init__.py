"""Patterns of agents over forks: several attempts at one task.

Each is a short function over the public verbs, meant to be read, and rewritten where your case differs. They leave the
trunk as it is, drop candidates that fail unless all do, and return a `Winner`, whose branch is yours: adopt it, or
close it.

    win = await kv.patterns.best_of(trunk, 6, lambda branch: agent.run(branch, question), score=judge)
    await trunk.adopt(win.branch)
"""

from ._shared import Winner
from .beam import beam
from .best_of import best_of
from .cascade import Cascaded, cascade
from .debate import debate
from .map_reduce import map_reduce
from .race import race
from .tree_search import tree_search
from .vote import vote

__all__ = ["Cascaded", "Winner", "beam", "best_of", "cascade", "debate", "map_reduce", "race", "tree_search", "vote"]

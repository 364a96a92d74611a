"""Which of its siblings a fork is, however many of them are closed by now."""

from __future__ import annotations

import weakref

import agentkv as kv

_places: weakref.WeakKeyDictionary[kv.Branch, int] = weakref.WeakKeyDictionary()


def place(branch: kv.Branch) -> int:
    """To be asked first while all siblings that were forked together live."""
    if branch not in _places:
        siblings = [b for b in branch.context.branches if b.parent is branch.parent and b not in _places]
        _places.update({sibling: at for at, sibling in enumerate(siblings)})
    return _places[branch]

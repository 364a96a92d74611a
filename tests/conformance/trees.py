"""Draft trees of several branches in one forward, each row against a plain branch over the same path."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from tests.driver import Driver

BRANCHES, ROUNDS, SCRATCH = 3, 10, 99


@dataclass
class Compared:
    """What a run of trees against plain branches saw."""

    logits: int = 0
    differing: int = 0
    worst: float = 0.0  # relative to the largest logit of the row where that is above 1
    accepted: int = 0


def path_to(node: int, parents: list[int]) -> list[int]:
    """The nodes from a root down to `node`."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def trees_against_branches(trees: Driver, plain: Driver) -> Compared:
    """Rounds of drafts on several branches in one forward each; every row against a plain branch over its path."""
    rng = random.Random(11)
    found = Compared()

    prompt = [rng.randrange(3, 384) for _ in range(60)]
    for driver in (trees, plain):
        driver.feed(0, prompt)
        for branch in range(1, BRANCHES + 1):
            driver.fork(0, branch)
    for _ in range(ROUNDS):
        rows: list[tuple[int, int]] = []
        drafts: dict[int, tuple[int, list[int], list[int]]] = {}  # next token; nodes' parents, tokens
        for branch in rng.sample(range(1, BRANCHES + 1), BRANCHES):
            parents = [rng.randrange(-1, node) for node in range(rng.randrange(1, 9))]
            drafts[branch] = (rng.randrange(3, 384), parents, [rng.randrange(3, 384) for _ in parents])
            trees.cells.propose(parents, branch)
            rows += [(branch, token) for token in (drafts[branch][0], *drafts[branch][2])]
        rows.insert(0, (0, rng.randrange(3, 384)))  # a branch that drafts nothing rides along
        logs = {seq: list(log) for seq, log in trees.logs.items()}
        logits = dict(zip(rows_of(rows), trees.step(rows), strict=True))
        trees.logs = {**logs, 0: trees.logs[0]}

        want = {(0, 0): plain.step([rows[0]])[0]}
        for branch, (token, parents, tokens) in drafts.items():
            want[branch, 0] = plain.step([(branch, token)])[0]
            trees.logs[branch].append(token)
            for node in range(len(parents)):
                plain.fork(branch, SCRATCH)
                want[branch, node + 1] = plain.feed(SCRATCH, [tokens[at] for at in path_to(node, parents)])[-1]
                plain.close(SCRATCH)
        for row, wanted in want.items():
            found.logits += wanted.size
            found.differing += int((logits[row].view(np.uint32) != wanted.view(np.uint32)).sum())
            found.worst = max(found.worst, float(np.abs(logits[row] - wanted).max() / max(1.0, np.abs(wanted).max())))

        for branch, (_, parents, tokens) in drafts.items():
            chain = path_to(rng.randrange(len(parents)), parents) if rng.random() < 0.8 else []
            trees.cells.commit(chain, branch)
            if chain:
                found.accepted += len(chain)
                plain.feed(branch, [tokens[node] for node in chain])
                trees.logs[branch] += [tokens[node] for node in chain]
            assert trees.cells.seq_len(branch) == plain.cells.seq_len(branch) == len(trees.logs[branch])
    return found


def rows_of(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(branch, how many rows of that branch came before) of each row."""
    return [(seq, sum(1 for other, _ in rows[:at] if other == seq)) for at, (seq, _) in enumerate(rows)]

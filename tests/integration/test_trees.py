"""Draft trees of several branches in one forward: each node has the bits of a plain branch over its path."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from agentkv_runtime import _core
from agentkv_runtime.eager.session import open_torch_session

from tests.conftest import FolderFactory
from tests.driver import Driver, native_driver
from tests.integration.configs import CONFIGS

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


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["llama-gqa2-d64", "mistral-gqa8-d80-w8"])
def test_nodes_have_the_bits_of_plain_branches(tiny_exported_folder: FolderFactory, name: str, kv_dtype: str) -> None:
    kind, fields = CONFIGS[name]
    program = _core.ExecuTorchProgram(str(tiny_exported_folder(kind, **fields) / "model.pte"))
    session = program.make_tree_session(capacity=512, kv_dtype=kv_dtype, min_chunk=16)
    plain = native_driver(program, capacity=1024, kv_dtype=kv_dtype)
    found = trees_against_branches(Driver(session, session.cache), plain)
    print(f"\n{name} {kv_dtype}: {found}")
    assert found.differing == 0
    assert found.accepted > 10


@pytest.mark.parametrize("name", ["llama-gqa2-d64", "mistral-gqa8-d80-w8"])
def test_nodes_on_torch(tiny_hf_folder: FolderFactory, name: str) -> None:
    kind, fields = CONFIGS[name]
    folder = tiny_hf_folder(kind, **fields)
    sessions = [open_torch_session(folder, capacity=n, kv_dtype="fp32", min_chunk=16) for n in (512, 1024)]
    moves: list[int] = []
    move_cells = sessions[0].layer.move_cells
    sessions[0].layer.move_cells = lambda src, dst: (moves.extend(dst), move_cells(src, dst))[1]  # type: ignore[method-assign]
    found = trees_against_branches(*(Driver(session, session.cache) for session in sessions))
    print(f"\n{name}: {found}, {len(moves)} cells moved")
    assert found.worst <= 1e-5
    assert found.accepted > 10
    assert len(moves) > 10


def rows_of(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(branch, how many rows of that branch came before) of each row."""
    return [(seq, sum(1 for other, _ in rows[:at] if other == seq)) for at, (seq, _) in enumerate(rows)]

"""Speculation by hand over a tree session: propose a tree, verify it in one forward, keep the path that was right."""

from __future__ import annotations

import json

from agentkv_runtime.sessions import TreeSession, make_tree_session
from agentkv_runtime.text.tokenizer import Tokenizer

from agentkv.models import nano

Tree = tuple[list[int], list[int]]  # tokens, and the parent of each: an index before it, or -1 for the last known token


def guess(history: list[int], width: int = 3, depth: int = 6) -> Tree:
    """The continuations of the last two tokens, wherever they came up before, merged where they begin alike."""
    tokens: list[int] = []
    parents: list[int] = []
    places = [at for at in range(len(history) - 2) if history[at : at + 2] == history[-2:]]
    for at in places[-width:]:
        parent = -1
        for token in history[at + 2 : at + 2 + depth]:
            known = (i for i in range(len(tokens)) if (tokens[i], parents[i]) == (token, parent))
            node = next(known, len(tokens))
            if node == len(tokens):
                tokens.append(token)
                parents.append(parent)
            parent = node
    return tokens, parents


def verify(session: TreeSession, last: int, tree: Tree) -> list[int]:
    """Feeds the last token and a tree in one forward; returns the tokens that the model says, at least one."""
    tokens, parents = tree
    trees = {0: parents} if tokens else {}
    logits = session.forward([last, *tokens], [0] * (1 + len(tokens)), trees=trees)
    said = logits.argmax(axis=1).tolist()  # row 0: after `last`
    path: list[int] = []
    made = [said[0]]
    while True:
        at = path[-1] if path else -1
        right = [i for i, parent in enumerate(parents) if parent == at and tokens[i] == made[-1]]
        if not right:
            session.commit(path)  # the right path stays, every other node is forgotten
            return made
        path.append(right[0])
        made.append(said[1 + right[0]])


def answer(prompt: list[int], eos: set[int], speculate: bool) -> tuple[list[int], int]:
    """Greedy tokens and how many forwards made them."""
    session = make_tree_session(nano(), capacity=1024, max_sequences=1)
    row = session.forward(prompt, [0] * len(prompt), rows=[len(prompt) - 1])
    made, forwards = [int(row.argmax())], 0
    while made[-1] not in eos and len(made) < 100:
        made += verify(session, made[-1], guess(prompt + made) if speculate else ([], []))
        forwards += 1
    return made, forwards


def main() -> None:
    """Answer with and without drafts: the same tokens, in fewer forwards."""
    tokenizer = Tokenizer.from_folder(nano())
    with (nano() / "prompts.jsonl").open() as lines:
        prompt = tokenizer.apply_chat(**json.loads(next(lines)))
    plain, plain_forwards = answer(prompt, set(tokenizer.eos_ids), speculate=False)
    drafted, forwards = answer(prompt, set(tokenizer.eos_ids), speculate=True)
    print(tokenizer.decode(plain))
    print(f"\n{len(plain)} tokens: {plain_forwards} forwards one by one, {forwards} with draft trees", end="; ")
    print("the same tokens" if plain == drafted[: len(plain)] else "DIFFERENT tokens")


if __name__ == "__main__":
    main()

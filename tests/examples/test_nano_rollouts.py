"""The draft head is trained on what it will see when it runs: its own outputs, one level after another."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from agentkv_runtime.export.draft_head import DraftHead  # noqa: E402
from agentkv_runtime.hf.op import active_cache  # noqa: E402

from examples.nano.acceptance import Acceptance, turns  # noqa: E402
from examples.nano.batches import Batch  # noqa: E402
from examples.nano.rollouts import Starts, rollout  # noqa: E402
from tests.runtime.growing_cache import GrowingCache  # noqa: E402

LEVELS = 4


def batch() -> Batch:
    """Two rows; the assistant says 7..12 and 17..19 in one, and 3..15 in the other."""
    spoken = np.zeros((2, 24), dtype=np.bool_)
    for row, start, end in ((0, 7, 13), (0, 17, 20), (1, 3, 16)):
        spoken[row, start:end] = True
    tokens = np.random.default_rng(0).integers(0, 64, spoken.shape)
    return Batch(tokens, spoken, np.zeros_like(spoken))


def test_rollouts_start_where_a_second_token_follows_and_end_with_the_turn() -> None:
    starts = Starts.of(batch(), LEVELS)
    first = {int(p): starts.valid[:, 0, index].tolist() for index, p in enumerate(starts.at[0])}
    assert [p for p, valid in first.items() if valid[0]] == [6, 7, 8, 9, 10, 16, 17]
    assert first[8] == [True, True, True, False]  # tokens 10, 11 and 12
    assert first[17] == [True, False, False, False]
    assert int(starts.valid[0, 1].sum()) == 12


@torch.no_grad()
def test_a_rollout_is_what_the_head_does_level_by_level() -> None:
    from transformers import LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=64
    )
    head = DraftHead(config, 96).eval()
    made = batch()
    tokens, features = torch.from_numpy(made.tokens), torch.randn(2, 24, 96)
    starts = Starts.of(made, LEVELS)
    levels = list(rollout(head, tokens, features, starts))
    checked = 0
    for row in range(2):
        for index, start in enumerate(starts.at[row].tolist()):
            if not starts.valid[0, row, index]:
                continue
            with active_cache(GrowingCache()):
                fused = head.fuse(features[row, : start + 1])
                positions = torch.arange(start + 1)
                _, hidden = head(tokens[row, 1 : start + 2], positions, fused, torch.tensor([start]))
                for level in range(LEVELS):
                    if not starts.valid[level, row, index]:
                        break
                    if level:
                        at = start + level
                        token = tokens[row, at + 1 : at + 2]
                        _, hidden = head(token, torch.tensor([at]), hidden, torch.tensor([0]))
                    torch.testing.assert_close(levels[level][row, index], hidden[0], rtol=1e-4, atol=1e-4)
                    checked += 1
    assert checked == 7 + 5 + 3 + 2 + 12 + 11 + 10 + 9


def test_tokens_per_forward_are_counted_turn_by_turn() -> None:
    found = Acceptance(levels=2, widths=(1, 2))
    assert list(turns(batch())) == [(0, 7, 12), (0, 17, 19), (1, 3, 15)]
    # Five tokens to draft: the first two at once, a miss, then one more, and the last is a forward's own.
    ranks = torch.tensor([[0, 0, 1, 0, 0], [0, 0, 0, 5, 0]])
    valid = torch.tensor([[True] * 5, [True] * 4 + [False]])
    found.add(ranks, valid)
    assert found.tokens == 5
    assert found.forwards == [2, 2]
    assert found.hits == [[4, 3], [5, 3]]
    assert found.tried == [5, 4]

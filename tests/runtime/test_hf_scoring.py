"""How layers attend: what rows see, and what becomes of products, against formulas written out."""

from __future__ import annotations

import math

import torch
from agentkv_runtime.hf.scoring import Scoring

SEEN = torch.arange(8)
POSITION = torch.tensor([3, 7])


def test_a_row_sees_what_is_not_behind_its_window_nor_before_its_chunk() -> None:
    assert Scoring(1.0).visible(POSITION, SEEN).sum(1).tolist() == [4, 8]
    assert Scoring(1.0, window=3).visible(POSITION, SEEN).nonzero()[:, 1].tolist() == [1, 2, 3, 5, 6, 7]
    assert Scoring(1.0, chunk=5).visible(POSITION, SEEN).nonzero()[:, 1].tolist() == [0, 1, 2, 3, 5, 6, 7]


def test_weights_are_the_softmax_of_scaled_capped_and_sloped_products() -> None:
    products = torch.randn((2, 2, 8), generator=torch.Generator().manual_seed(0)) * 4
    slopes = torch.tensor([0.5, 0.25])
    scoring = Scoring(0.5, cap=2.0, slopes=slopes)
    got = scoring.weights(products, POSITION, SEEN, scoring.visible(POSITION, SEEN))
    for head in range(2):
        for row, position in enumerate(POSITION.tolist()):
            scores = [
                2.0 * math.tanh(products[head, row, at].item() * 0.5 / 2.0) + slopes[head].item() * (at - position)
                for at in range(position + 1)
            ]
            total = sum(map(math.exp, scores))
            want = [math.exp(score) / total for score in scores] + [0.0] * (7 - position)
            torch.testing.assert_close(got[head, row], torch.tensor(want))


def test_a_sink_takes_weight_and_gives_nothing() -> None:
    scoring = Scoring(1.0, sink_scores=torch.tensor([math.log(3.0)]))
    weights = scoring.weights(torch.zeros(1, 1, 2), torch.tensor([1]), torch.arange(2), torch.ones(1, 2).bool())
    torch.testing.assert_close(weights, torch.tensor([[[0.2, 0.2]]]))

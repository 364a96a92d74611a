"""The draft head starts by copying, learns, and is saved in the layout that published heads have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from agentkv_runtime.export.draft_checkpoint import find_embedding, read_draft_checkpoint  # noqa: E402

from examples.nano.acceptance import measure  # noqa: E402
from examples.nano.batches import Batches  # noqa: E402
from examples.nano.target import Target  # noqa: E402
from examples.nano.train_head import Trainer  # noqa: E402

WEIGHTS = Path(__file__).resolve().parents[2] / "examples" / "nano" / "weights"


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    torch.set_num_threads(1)
    return Trainer(Target(WEIGHTS), seed=0, batch_tokens=512, lr=2e-3, levels=3, said=640, mlp=64)


def test_the_vocabulary_covers_what_is_said(trainer: Trainer) -> None:
    assert trainer.coverage > 0.999
    said = torch.arange(640) + trainer.head.d2t
    assert torch.equal(said, trainer.head.t2d.nonzero().squeeze(1))


def test_it_copies_before_any_training_and_learns(trainer: Trainer) -> None:
    batches = Batches(trainer.tokenizer, 1, 512, "eval")
    held_out = [batches.take(0.0) for _ in range(3)]
    before = measure(trainer.head, trainer.target, held_out, levels=3)
    assert before.hits[0][0] > 0.25 * before.tried[0]
    for _ in range(12):
        trainer.train_step(0.2)
    after = measure(trainer.head, trainer.target, held_out, levels=3)
    # The first level copies as well as it can before: how far it gets in so few steps differs by processor.
    assert sum(after.hits[0]) > 1.2 * sum(before.hits[0])


def test_a_saved_head_is_a_published_one(trainer: Trainer, tmp_path: Path) -> None:
    trainer.save(tmp_path / "head", tmp_path / "head.ckpt")
    step = trainer.step
    trainer.load(tmp_path / "head.ckpt")
    assert trainer.step == step
    head = read_draft_checkpoint(tmp_path / "head").build(find_embedding(WEIGHTS))
    wanted = trainer.head.state_dict()
    for name, tensor in head.state_dict().items():
        # What the head learnt beside is the embedding at 16 bits.
        torch.testing.assert_close(tensor, wanted[name])

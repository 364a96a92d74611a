"""Drafters over exported programs: they change no token, cost one forward per level, and refuse what does not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime import _core
from agentkv_runtime._core import GenerateOptions
from agentkv_runtime.errors import DraftMismatchError, ModelFolderError
from agentkv_runtime.folder.model_folder import ModelFolder, read_model_folder
from agentkv_runtime.programs import load_folder, load_head
from agentkv_runtime.speculation import open_draft_model, open_eagle

PROMPT = [10, 200, 31, 7, 99, 310, 4, 77]
Opens = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("failing_caches")


@pytest.fixture(scope="module")
def hf(tiny_hf_folder: Callable[..., Path]) -> Path:
    return tiny_hf_folder("llama")


@pytest.fixture(scope="module")
def plain(tiny_exported_folder: Callable[..., Path]) -> ModelFolder:
    return read_model_folder(tiny_exported_folder("llama"))


@pytest.fixture(scope="module")
def target(hf: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """A target that gives out features, with a draft head beside it."""
    from agentkv_runtime.export import export_draft, export_folder

    root = tmp_path_factory.mktemp("target")
    folder = export_folder(hf, root / "model", quant="none", max_tokens=64, max_logits=64, features=True)
    export_draft(write_head(hf, root / "head"), hf, folder.path, max_tokens=64, max_logits=32)
    return read_model_folder(folder.path)


def write_head(hf: Path, path: Path) -> Path:
    """A head of random weights in the published layout: every third token of the target's vocabulary."""
    import torch
    from agentkv_runtime.export.draft_head import DraftHead
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    facts = json.loads((hf / "config.json").read_text())
    config = LlamaConfig(
        vocab_size=facts["vocab_size"],
        hidden_size=facts["hidden_size"],
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        draft_vocab_size=facts["vocab_size"] // 3,
    )
    torch.manual_seed(5)
    head = DraftHead(config, 3 * config.hidden_size)
    head.d2t = torch.arange(config.draft_vocab_size) * 2
    head.t2d = torch.zeros(config.vocab_size, dtype=torch.bool)
    head.t2d[torch.arange(config.draft_vocab_size) * 3] = True
    path.mkdir()
    config.save_pretrained(path)
    weights = {name: value for name, value in head.state_dict().items() if name != "embed_tokens.weight"}
    save_file(weights, path / "model.safetensors")
    return path


def tree_engine(folder: ModelFolder, capacity: int = 512) -> _core.Engine:
    program = load_folder(folder)
    session = program.make_session(capacity=capacity, kv_dtype="fp32")
    token_bytes = [bytes([i % 256]) for i in range(program.info["vocab_size"])]
    return _core.Engine(session, session.cache, token_bytes=token_bytes, eos_ids=[], special_ids=[0])


def run(engine: _core.Engine, *jobs: int) -> list[_core.Finished]:
    done: dict[int, _core.Finished] = {}
    while not set(jobs) <= set(done):
        report = engine.step()
        assert not report.idle, "a job that was asked for never ends"
        done |= {finished.job: finished for finished in report.finished}
    for finished in done.values():
        assert finished.error is None, finished.error
    return [done[job] for job in jobs]


def outputs(engine: _core.Engine, prompts: list[list[int]], drafter: _core.Drafter | None, n: int) -> list[list[int]]:
    if drafter is not None:
        engine.attach(drafter)
    branches = []
    for prompt in prompts:
        branch, reused = engine.create(prompt)
        run(engine, engine.extend(branch, prompt[reused:]))
        branches.append(branch)
    options = GenerateOptions(max_tokens=n, drafter=drafter)
    finished = run(engine, *(engine.generate(branch, options) for branch in branches))
    branches.append(engine.fork(branches[0]))
    engine.rollback(branches[1], len(prompts[1]) + 5)
    finished += run(engine, *(engine.generate(branch, options) for branch in branches))
    for branch in branches:
        engine.close(branch)
    return [f.tokens for f in finished]


PROMPTS = [[*PROMPT, *range(40, 40 + 3 * i)] for i in range(4)]


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_draft_model_changes_no_token(plain: ModelFolder, adaptive: bool) -> None:
    expected = outputs(tree_engine(plain), PROMPTS, None, 24)
    drafter = open_draft_model(plain.path, plain, capacity=1024, kv_dtype="fp32", width=2, top_k=2)
    drafter.adaptive = adaptive
    engine = tree_engine(plain)
    assert outputs(engine, PROMPTS, drafter, 24) == expected
    assert 0 < drafter.levels <= drafter.forwards
    assert drafter.seconds > 0
    if not adaptive:
        assert drafter.levels == drafter.forwards
        # A draft model that is the target itself: at temperature 0 its first guess is always right.
        assert engine.stats().forwards < sum(map(len, expected)) / 4 / 2
    assert drafter.cache.used == 0


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_draft_head_changes_no_token(target: ModelFolder, plain: ModelFolder, adaptive: bool) -> None:
    expected = outputs(tree_engine(plain), PROMPTS, None, 24)
    drafter = open_eagle(None, target, capacity=1024, kv_dtype="fp32", width=3, top_k=3)
    drafter.adaptive = adaptive
    engine = tree_engine(target)
    assert outputs(engine, PROMPTS, drafter, 24) == expected
    # What was not drafted for is caught up with: such a level may take more than one forward.
    assert 0 < drafter.levels <= drafter.forwards
    assert adaptive or engine.stats().drafted > 0
    assert drafter.cache.used == 0


def test_a_head_starts_from_the_acceptance_in_its_manifest(target: ModelFolder, tmp_path: Path) -> None:
    measured = {"levels": [0.25, 0.5], "calibration": [0.75] * 16}
    for expected in (measured, None):
        head = copied(target, tmp_path / str(expected is None), "draft.json", acceptance=expected)
        drafter = open_eagle(head.path, target, capacity=64)
        engine = tree_engine(target)
        engine.attach(drafter)
        rates = engine.acceptance(drafter)
        assert (rates.levels[:2] == measured["levels"]) == (expected is not None)
        assert (rates.calibration == measured["calibration"]) == (expected is not None)
        with pytest.raises(_core.InvalidEngine, match="not attached"):
            engine.acceptance(open_eagle(head.path, target, capacity=64))


def test_eight_branches_share_the_forwards_of_both_sides(target: ModelFolder) -> None:
    drafter = open_eagle(target.path / "draft.pte", target, capacity=1024, width=2, top_k=2)
    drafter.adaptive = False
    engine = tree_engine(target)
    branches = []
    for i in range(8):
        branch, reused = engine.create([*PROMPT, 50 + i])
        run(engine, engine.extend(branch, [*PROMPT, 50 + i][reused:]))
        branches.append(branch)
    engine.attach(drafter)
    before = engine.stats()
    run(engine, *(engine.generate(branch, GenerateOptions(max_tokens=20, drafter=drafter)) for branch in branches))
    after = engine.stats()
    rounds = after.draft_rounds - before.draft_rounds
    assert 0 < rounds <= after.forwards - before.forwards <= 20
    assert drafter.levels == drafter.forwards


def test_features_come_with_the_logits(target: ModelFolder, plain: ModelFolder) -> None:
    assert target.manifest.features is not None
    width = target.manifest.features.width
    rows = []
    for folder in (target, plain):
        session = load_folder(folder).make_session(capacity=32, kv_dtype="fp32")
        assert session.feature_dim == (width if folder is target else 0)
        session.cache.begin_step([0] * len(PROMPT))
        positions = np.arange(len(PROMPT))
        rows.append(session.forward(np.array(PROMPT), positions, np.array([len(PROMPT) - 1])))
        session.cache.commit_step()
        features = session.features()
        assert features.shape == ((len(PROMPT), width) if folder is target else (0, 0))
        assert np.isfinite(features).all()
        assert folder is plain or features.std() > 0
    np.testing.assert_array_equal(rows[0], rows[1])


def test_a_head_session_runs_what_was_exported(target: ModelFolder) -> None:
    session = load_head(target.path / "draft.pte").make_session(capacity=64, kv_dtype="fp32")
    info = session.head.info
    rng = np.random.default_rng(0)
    # More rows than one call takes; a row's result does not depend on the others.
    features = rng.standard_normal((150, info["feature_dim"]), dtype=np.float32)
    hidden = session.fuse(features)
    np.testing.assert_array_equal(session.fuse(features[70:71])[0], hidden[70])
    tokens = rng.integers(0, target.manifest.vocab_size, 10)

    def feed(chunks: list[int]) -> tuple[Any, Any]:
        at = 0
        for n in chunks:
            session.cache.begin_step([0] * n)
            rows = slice(at, at + n)
            out = session.forward(tokens[rows], np.arange(at, at + n), hidden[rows], np.array([n - 1]))
            session.cache.commit_step()
            at += n
        session.cache.seq_rm(0)
        return out

    whole, cut = feed([10]), feed([1, 4, 2, 3])
    assert whole[0].shape == (1, info["vocab_size"])
    assert whole[1].shape == (1, info["hidden_dim"])
    np.testing.assert_array_equal(whole[0], cut[0])
    np.testing.assert_array_equal(whole[1], cut[1])
    with pytest.raises(_core.InvalidTensor, match="2 tokens but 64 floats of hidden"):
        session.forward(tokens[:2], np.arange(2), hidden[:1], np.array([0]))


def test_a_failing_head_fails_the_generation_alone(target: ModelFolder) -> None:
    head = load_head(target.path / "draft.pte")
    session = head.make_session(capacity=256)
    manifest = json.loads((target.path / "draft.json").read_text())
    drafter = _core.EagleDrafter(session, manifest["d2t"], manifest["target_vocab_size"])
    drafter.adaptive = False
    engine = tree_engine(target)
    branch, _ = engine.create(PROMPT)
    engine.attach(drafter)
    run(engine, engine.extend(branch, PROMPT))
    _core.fail_at(session.cache, 0, after_forwards=3)
    job = engine.generate(branch, GenerateOptions(max_tokens=20, drafter=drafter))
    finished = None
    while finished is None:
        finished = next((f for f in engine.step().finished if f.job == job), None)
    assert finished.error is not None
    assert "speculation failed" in str(finished.error)
    run(engine, engine.generate(branch, GenerateOptions(max_tokens=10, drafter=drafter)))


def test_programs_are_shared(target: ModelFolder) -> None:
    assert load_head(target.path / "draft.pte") is load_head(target.path / "draft.pte")


def test_a_draft_model_refuses_options_out_of_range(plain: ModelFolder) -> None:
    with pytest.raises(ModelFolderError, match="width is 0"):
        open_draft_model(plain.path, plain, capacity=16, width=0)


def copied(folder: ModelFolder, out: Path, file: str = "", **changes: Any) -> ModelFolder:
    shutil.copytree(folder.path, out)
    if file:
        facts = json.loads((out / file).read_text())
        (out / file).write_text(json.dumps({**facts, **changes}))
    return read_model_folder(out)


def test_an_embedding_may_be_padded_otherwise(
    plain: ModelFolder, tmp_path: Path, tiny_exported_folder: Callable[..., Path]
) -> None:
    """Both ways: the draft has 64 ids more than its target, or less."""
    padded = copied(read_model_folder(tiny_exported_folder("llama", vocab=448)), tmp_path / "padded")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(plain.path / name, padded.path / name)
    padded = read_model_folder(padded.path)
    assert (padded.manifest.vocab_size, plain.manifest.vocab_size) == (448, 384)
    for target, draft in ((plain, padded), (padded, plain)):
        prompts = [*PROMPTS, [*PROMPT, 447]] if target is padded else PROMPTS  # an id that the draft does not have
        expected = outputs(tree_engine(target), prompts, None, 24)
        drafter = open_draft_model(draft.path, target, capacity=1024, kv_dtype="fp32", width=2, top_k=2)
        drafter.adaptive = False
        assert outputs(tree_engine(target), prompts, drafter, 24) == expected
        assert drafter.levels > 0


def test_mismatched_draft_models(plain: ModelFolder, tmp_path: Path, tiny_exported_folder: Callable[..., Path]) -> None:
    other = copied(plain, tmp_path / "tokens")
    text = (other.path / "tokenizer.json").read_text()
    tokenizer = json.loads(text)
    vocab = tokenizer["model"]["vocab"]
    a, b = (next(t for t, i in vocab.items() if i == n) for n in (20, 21))
    vocab[a], vocab[b] = 21, 20
    (other.path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(DraftMismatchError, match=r"tokens and its target .* token 20 is b'.' and b'.'"):
        open_draft_model(other.path, plain, capacity=16)
    # Spelled differently, but the same tokens.
    (other.path / "tokenizer.json").write_text(text + "\n")
    open_draft_model(other.path, plain, capacity=16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feature_dim": 96}, r"reads 96 per row, the target gives out 192"),
        ({"target_vocab_size": 500}, r"one of 500 tokens, the target has 384"),
        ({"tokenizer_fingerprint": "sha256:" + "0" * 64}, r"tokenizers: the head was exported for sha256:000"),
    ],
)
def test_mismatched_draft_heads(target: ModelFolder, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    head = copied(target, tmp_path / "other", "draft.json", **changes)
    with pytest.raises(DraftMismatchError, match=message) as caught:
        open_eagle(head.path, target, capacity=16)
    assert str(head.path) in str(caught.value)
    assert str(target.path) in str(caught.value)


def test_draft_heads_that_cannot_be_used(target: ModelFolder, plain: ModelFolder, tmp_path: Path) -> None:
    with pytest.raises(DraftMismatchError, match=r"gives out none: export it again with --features"):
        open_eagle(target.path, plain, capacity=16)
    with pytest.raises(DraftMismatchError, match=r"has no draft\.pte"):
        open_eagle(None, plain, capacity=16)
    with pytest.raises(DraftMismatchError, match=r"has no draft\.pte.*draft with Suffix"):
        open_eagle(plain.path / "agentkv.json", plain, capacity=16)
    damaged = copied(target, tmp_path / "damaged", "draft.json", fingerprint="sha256:" + "1" * 64)
    with pytest.raises(ModelFolderError, match="damaged or replaced"):
        open_eagle(None, damaged, capacity=16)
    other = copied(target, tmp_path / "facts", "draft.json", hidden_dim=32)
    with pytest.raises(ModelFolderError, match="describe different heads"):
        open_eagle(None, other, capacity=16)
    (damaged.path / "draft.json").unlink()
    with pytest.raises(ModelFolderError, match=r"draft\.json"):
        open_eagle(None, damaged, capacity=16)
    model = tmp_path / "model"
    model.mkdir()
    shutil.copy(target.path / "model.pte", model / "draft.pte")
    facts = json.loads((target.path / "draft.json").read_text())
    (model / "draft.json").write_text(json.dumps(facts))
    with pytest.raises(ModelFolderError, match="forward takes 3 inputs, but agentkv runs forward"):
        open_eagle(model, target, capacity=16, verify=False)

"""The step loop through its binding, over a real torch model: what it returns, accepts and refuses."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentkv_runtime import _core
from agentkv_runtime._core import GenerateOptions, Sampling
from agentkv_runtime.torch_backend.session import TorchSession, open_torch_session

from tests.driver import oracle_driver

PROMPT = [10, 200, 31, 7, 99, 310, 4, 77]
SPECIAL = 0
HOT = Sampling(temperature=0.8, top_k=40)


@pytest.fixture(scope="module")
def folder(tiny_hf_folder: Callable[..., Path]) -> Path:
    return tiny_hf_folder("llama")


def session(folder: Path, capacity: int = 256) -> TorchSession:
    return open_torch_session(folder, capacity=capacity, kv_dtype="fp32", min_chunk=16, max_tokens=64, max_logits=16)


def engine_over(program: TorchSession, **options: Any) -> _core.Engine:
    token_bytes = [bytes([i % 256]) for i in range(program.vocab_size)]
    return _core.Engine(
        program,
        program.cache,
        token_bytes=token_bytes,
        eos_ids=options.pop("eos_ids", [SPECIAL]),
        special_ids=[SPECIAL],
        **options,
    )


def run(engine: _core.Engine, *jobs: int) -> list[_core.Finished]:
    done: dict[int, _core.Finished] = {}
    while not set(jobs) <= set(done):
        report = engine.step()
        assert not report.idle, "a job that was asked for never ends"
        done |= {finished.job: finished for finished in report.finished}
    return [done[job] for job in jobs]


def prompted(engine: _core.Engine, tokens: list[int] = PROMPT) -> int:
    branch, reused = engine.create(tokens)
    (finished,) = run(engine, engine.extend(branch, tokens[reused:]))
    assert finished.error is None
    return branch


def greedy(folder: Path, history: list[int], n: int) -> list[int]:
    """What the oracle samples: plain bookkeeping, every token fed alone."""
    driver = oracle_driver(folder)
    row = driver.feed(0, history)[-1]
    out: list[int] = []
    for _ in range(n):
        out.append(int(row.argmax()))
        row = driver.step([(0, out[-1])])[-1]
    return out


def test_generations_match_the_oracle_and_share_forwards(folder: Path) -> None:
    engine = engine_over(session(folder), eos_ids=[])
    prompts = [PROMPT, PROMPT[:5], [3, *PROMPT]]
    branches = [prompted(engine, prompt) for prompt in prompts]
    before = engine.stats().forwards
    results = run(engine, *(engine.generate(branch, GenerateOptions(max_tokens=12)) for branch in branches))
    assert engine.stats().forwards - before == 11
    for branch, prompt, finished in zip(branches, prompts, results, strict=True):
        assert finished.kind == "generate"
        assert finished.error is None
        assert finished.tokens == greedy(folder, prompt, 12)
        assert finished.finish_reason == "length"
        assert finished.prompt_tokens == len(prompt)
        assert len(finished.logprobs) == 12
        assert all(value <= 0 for value in finished.logprobs)
        assert finished.text == bytes(token % 256 for token in finished.tokens if token != SPECIAL)
        assert engine.tokens(branch).tolist() == prompt + finished.tokens


def test_branch_verbs(folder: Path) -> None:
    engine = engine_over(session(folder), eos_ids=[])
    trunk = prompted(engine)
    child = engine.fork(trunk)
    (finished,) = run(engine, engine.generate(child, GenerateOptions(max_tokens=4)))
    assert (engine.length(child), engine.n_cached(child)) == (len(PROMPT) + 4, len(PROMPT) + 3)
    assert engine.stats().cells_shared == len(PROMPT)
    assert engine.rng_stream(child) != engine.rng_stream(trunk)
    engine.adopt(trunk, child)
    assert engine.tokens(trunk).tolist() == PROMPT + finished.tokens
    engine.rollback(trunk, 5)
    assert engine.tokens(trunk).tolist() == PROMPT[:5]
    assert engine.tokens(trunk).dtype == np.int32
    engine.close(child)
    engine.close(child)
    assert engine.stats().cells_used == 5
    assert run(engine, engine.generate(trunk, GenerateOptions(max_tokens=3)))[0].tokens == greedy(folder, PROMPT[:5], 3)


def test_logits_and_select_agree(folder: Path) -> None:
    engine = engine_over(session(folder))
    branch = prompted(engine)
    (of_logits,) = run(engine, engine.logits(branch))
    row = of_logits.logits
    assert row is not None
    assert row.dtype == np.float32
    np.testing.assert_allclose(row, oracle_driver(folder).feed(0, PROMPT)[-1], atol=1e-4)
    logprobs = row - np.log(np.exp(row.astype(np.float64)).sum())
    (of_select,) = run(engine, engine.select(branch, [[5], [6], [7, 8]]))
    np.testing.assert_allclose(of_select.scores[:2], logprobs[[5, 6]], atol=1e-5)
    row[:] = 0  # the array is the caller's: the engine's own row is another
    (again,) = run(engine, engine.logits(branch))
    assert again.logits is not None
    assert again.logits.any()


def test_emitted_tokens_are_those_of_the_generation(folder: Path) -> None:
    engine = engine_over(session(folder), eos_ids=[])
    branch = prompted(engine)
    job = engine.generate(branch, GenerateOptions(max_tokens=8, sampling=HOT, seed=2**64 - 1, emit=True))
    emitted: list[_core.Emitted] = []
    report = engine.step()
    while not report.finished:
        emitted += report.emitted
        report = engine.step()
    emitted += report.emitted
    (finished,) = report.finished
    assert {item.job for item in emitted} == {job}
    assert [item.token for item in emitted] == finished.tokens
    assert [item.logprob for item in emitted] == finished.logprobs
    assert b"".join(item.text for item in emitted) == finished.text
    assert engine.step().idle


@pytest.mark.parametrize(
    "as_", [list, tuple, iter, np.array, lambda t: np.array(t, np.int32), lambda t: map(np.int64, t)]
)
def test_tokens_may_be_any_integers(folder: Path, as_: Callable[[list[int]], Any]) -> None:
    engine = engine_over(session(folder))
    branch, _ = engine.create()
    run(engine, engine.extend(branch, as_(PROMPT)))
    assert engine.tokens(branch).tolist() == PROMPT
    assert engine.create(as_(PROMPT))[1] == len(PROMPT) - 1


@pytest.mark.parametrize("bad", [[384], [-1], [2**40], np.array([2**40]), np.array([384], np.int32)])
def test_foreign_tokens_are_refused(folder: Path, bad: Any) -> None:
    engine = engine_over(session(folder))
    branch, _ = engine.create()
    with pytest.raises(_core.InvalidToken, match=r"token id -?\d+ .*from 0 to 383"):
        engine.extend(branch, bad)
    for wrong in ("abc", [1.5], None):
        with pytest.raises(TypeError):
            engine.extend(branch, wrong)  # type: ignore[arg-type]
    assert engine.length(branch) == 0


def test_refusals_are_typed(folder: Path) -> None:
    engine = engine_over(session(folder, capacity=32), max_branches=2)
    branch = prompted(engine)
    empty, _ = engine.create()

    def generate(**options: Any) -> int:
        return engine.generate(branch, GenerateOptions(**options))

    refused: list[tuple[type[Exception], Callable[[], Any]]] = [
        (_core.EmptyBranch, lambda: engine.logits(empty)),
        (_core.TooManyBranches, lambda: engine.fork(branch)),
        (_core.ContextFull, lambda: engine.extend(empty, [1] * 30)),
        (_core.InvalidRollback, lambda: engine.rollback(branch, len(PROMPT) + 1)),
        (_core.InvalidSampling, lambda: generate(max_tokens=0)),
        (_core.InvalidSampling, lambda: generate(max_tokens=1, sampling=Sampling(temperature=float("nan")))),
        (_core.InvalidSampling, lambda: generate(max_tokens=1, sampling=Sampling(top_p=0))),
        (_core.InvalidSampling, lambda: generate(max_tokens=1, stop=[""])),
        (_core.InvalidChoices, lambda: engine.select(branch, [])),
        (_core.BranchClosed, lambda: engine.length(77)),
    ]
    for kind, call in refused:
        with pytest.raises(kind):
            call()
        assert issubclass(kind, _core.Error)
    for kind in (_core.InvalidRollback, _core.InvalidSampling, _core.InvalidToken, _core.InvalidChoices):
        assert issubclass(kind, ValueError)
    engine.generate(branch, GenerateOptions(max_tokens=5))
    with pytest.raises(_core.BranchBusy):
        engine.rollback(branch, 1)
    with pytest.raises(_core.InvalidEngine, match="256 sequences"):
        engine_over(session(folder), max_branches=1000)


def test_an_exception_in_the_model_fails_the_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = session(folder)
    engine = engine_over(program)
    branch = prompted(engine)

    def broken(*_: Any) -> Any:
        raise ValueError("weights fell out")

    monkeypatch.setattr(program.model, "forward", broken)
    job = engine.extend(branch, [1, 2, 3])
    (finished,) = run(engine, job)
    assert isinstance(finished.error, _core.StepFailed)
    assert "ValueError: weights fell out" in str(finished.error)
    assert engine.tokens(branch).tolist() == PROMPT
    monkeypatch.undo()
    (finished,) = run(engine, engine.extend(branch, [1, 2, 3]))
    assert finished.error is None


def test_cancelled_jobs_report_once(folder: Path) -> None:
    engine = engine_over(session(folder), eos_ids=[])
    branch = prompted(engine)
    job = engine.generate(branch, GenerateOptions(max_tokens=100))
    engine.step()
    engine.cancel(job)
    report = engine.step()
    assert [(f.job, f.finish_reason) for f in report.finished] == [(job, "cancelled")]
    assert engine.tokens(branch).tolist() == PROMPT + report.finished[0].tokens
    assert engine.step().idle


def test_engines_do_not_outlive_their_users(folder: Path) -> None:
    class Holder:
        def __init__(self) -> None:
            program = session(folder)
            program.holder = self  # type: ignore[attr-defined]  # a cycle through the engine
            self.engine = engine_over(program)

    held = weakref.ref(Holder())
    gc.collect()
    assert held() is None

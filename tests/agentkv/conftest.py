"""Fixtures of the SDK's tests: a tiny real model, under both event loops."""

from __future__ import annotations

import gc
import json
import math
import os
import re
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

import agentkv as kv
from agentkv._engine.worker import EngineWorker
from tests.adapters import random_adapter
from tests.export_cache import ExportCache
from tests.faults import SERVERS
from tests.waiting import PATIENCE, until_sync

from .remote.inapplicable import reason
from .remote.over_server import over_server

TempPaths = pytest.TempPathFactory

# So that what they find says values.
pytest.register_assert_rewrite(f"{__package__}.verb_player", f"{__package__}.random_verbs")


OVER = os.environ.get("AGENTKV_TESTS_OVER", "")
"""The backend of a server that the tests here run over; see tests/agentkv/remote/inapplicable.py."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not OVER:
        return
    here = [item for item in items if not {"open_context", "open_desk"} & set(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=here)  # they open no Context, or one of their own in this process
    items[:] = [item for item in items if item not in here]
    for item in items:
        why = reason(OVER, item.path.stem, item.name)
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=f"over {OVER}: {why}"))


def loop_threads() -> list[threading.Thread]:
    """Threads of step loops that run."""
    return [thread for thread in threading.enumerate() if re.fullmatch(r"agentkv-\d+", thread.name)]


@pytest.fixture(scope="module", autouse=True)
def _no_step_loop_outlives_its_module() -> Iterator[None]:
    yield
    if loop_threads():
        gc.collect()  # a model that garbage holds open; nothing else here has the collector come by
    until_sync(lambda: not loop_threads())  # one that was given up ends by itself


@pytest.fixture
def forwards_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards wait for the tasks that were woken, however slow the machine is: which rows share one is not the
    clock's. Not for tests whose tasks do nothing but ask the engine again and again."""
    monkeypatch.setattr("agentkv._engine.mailbox.WAKEUP_GRACE_S", PATIENCE)


OpenContext = Callable[..., AbstractAsyncContextManager[kv.Context]]
WithTemplate = Callable[[str], Path]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def after_forwards(ctx: kv.Context, count: int) -> None:
    """Returns once so many more forwards have run, here or on its server; over vLLM, once so many tokens more came."""
    with anyio.fail_after(PATIENCE):
        goal = forwards_of(ctx) + count
        while forwards_of(ctx) < goal:
            await ctx._core.loop.call(lambda _: None)


@asynccontextmanager
async def event_loop_goes_first() -> AsyncIterator[None]:
    """Before each of its steps an engine waits until the event loop has come round 20 times, on any machine."""
    rounds, step, came_round = 0.0, EngineWorker.step, threading.Condition()

    async def turn() -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            went_on(rounds + 1)

    def went_on(to: float) -> None:
        nonlocal rounds
        with came_round:
            rounds = to
            came_round.notify_all()

    def behind(worker: EngineWorker) -> Any:
        with came_round:
            latest = rounds + 20
            assert came_round.wait_for(lambda: rounds >= latest, PATIENCE), "the event loop stands still"
        return step(worker)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineWorker, "step", behind)
        async with anyio.create_task_group() as group:
            group.start_soon(turn)
            try:
                yield
            finally:
                went_on(math.inf)
                group.cancel_scope.cancel()


def forwards_of(ctx: kv.Context) -> int:
    """How many have run; over vLLM, how many tokens came."""
    return ctx.stats.generated if OVER == "vllm" else steps_of(ctx).forwards


def steps_of(ctx: kv.Context) -> kv.Stats:
    """Those of whoever runs its forwards, which may be `agentkv serve`."""
    return SERVERS[ctx][1].stats if ctx in SERVERS else ctx.stats


@pytest.fixture(scope="session")
def folder(tiny_exported_folder: Callable[..., Path]) -> Path:
    return tiny_exported_folder("llama")


@pytest.fixture
def open_context(folder: Path) -> OpenContext:
    """`kv.Context.open` of the tiny model, small."""

    def open_context(capacity: int = 2048, **options: Any) -> AbstractAsyncContextManager[kv.Context]:
        if OVER:
            return over_server(OVER, folder, capacity=capacity, **options)
        return kv.Context.open(folder, capacity=capacity, kv_dtype="fp32", threads=1, **options)

    return open_context


@pytest.fixture(scope="session")
def eagle_folder(tiny_hf_folder: Callable[..., Path], export_cache: ExportCache, tmp_path_factory: TempPaths) -> Path:
    """The tiny model again, exported with features, and beside it a draft head of random weights."""

    def export(out: Path) -> None:
        from agentkv_runtime.export import export_draft, export_folder

        from tests.runtime.draft_heads import head_weights, write_head

        source = tiny_hf_folder("llama")
        export_folder(source, out, quant="none", max_tokens=64, max_logits=64, features=True)
        head = write_head(tmp_path_factory.mktemp("head"), head_weights(draft_vocab=128))
        export_draft(head, source, out, max_tokens=64, max_logits=64)

    return export_cache.get("eagle", export)


# Strategies that read the model's features, and the fixtures of folders that have what they run.
HEADS: dict[str, tuple[type[kv.spec.Eagle | kv.spec.MTP], str]] = {
    "eagle": (kv.spec.Eagle, "eagle_folder"),
    "mtp": (kv.spec.MTP, "mtp_folder"),
}


@dataclass(frozen=True)
class Head:
    """A strategy that reads features, and a folder of the tiny model that it drafts for."""

    kind: type[kv.spec.Eagle | kv.spec.MTP]
    folder: Path


@pytest.fixture(params=HEADS)
def head(request: pytest.FixtureRequest) -> Head:
    kind, folder = HEADS[request.param]
    return Head(kind, request.getfixturevalue(folder))


@pytest.fixture
def with_template(folder: Path, tmp_path: Path) -> WithTemplate:
    """The tiny model with another chat template."""

    def copy(template: str) -> Path:
        path = tmp_path / "model"
        shutil.copytree(folder, path)
        config = json.loads((path / "tokenizer_config.json").read_text())
        (path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
        return path

    return copy


@pytest.fixture(scope="module")
def adapter_folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three adapters of the test file's `model`, that differ."""
    root = tmp_path_factory.mktemp("adapters")
    return [random_adapter(model, root / f"adapter{i}", seed=i) for i in range(3)]

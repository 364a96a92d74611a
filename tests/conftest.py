"""Fixtures that every suite shares: tiny models, exported once."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from agentkv_runtime import _core

from tests.export_cache import ExportCache
from tests.models import TinySpec, tiny_spec, write_hf_folder

# Tiny models gain nothing from torch's threads, whose barriers spin when another process holds a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Shells ignore some signals for what they start in the background, nohup another, and children inherit that.
for _ended_by, _handler in {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
}.items():
    if signal.getsignal(_ended_by) == signal.SIG_IGN:
        signal.signal(_ended_by, _handler)

FolderFactory = Callable[..., Path]

LOOPS = ("asyncio", "trio")
# Tests that are about an event loop: they run on both, others on one of the two, which their name decides.
ABOUT_LOOPS = re.compile(r"/(aio|engine|patterns|sync)/|cancel|leav|interrupt|torn|clos|task", re.IGNORECASE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--both-loops", action="store_true", help="runs every test of the SDK on asyncio and on trio")


def pytest_configure(config: pytest.Config) -> None:
    # Hypothesis says it of trio's generator, which lives as long as its module: at the end of every run.
    config.addinivalue_line("filterwarnings", "ignore:It looks like .register_random. was passed an object")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported stays: no collection looks through it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--both-loops"):
        names = {item.nodeid for item in items}
        elsewhere = {item for item in items if runs_on_the_other_loop(item, names)}
        config.hook.pytest_deselected(items=list(elsewhere))
        items[:] = [item for item in items if item not in elsewhere]


def runs_on_the_other_loop(item: pytest.Item, names: set[str]) -> bool:
    """Has a test, whose like is among `names` on either loop, been given to the other one?"""
    spec = getattr(item, "callspec", None)
    loop = spec.params.get("anyio_backend") if spec else None
    if loop not in LOOPS or ABOUT_LOOPS.search(item.nodeid):
        return False
    other = LOOPS[1 - LOOPS.index(loop)]
    chosen = LOOPS[zlib.crc32(item.nodeid.replace(loop, "").encode()) % 2]
    return loop != chosen and item.nodeid.replace(loop, other) in names


@pytest.fixture(autouse=True, scope="session")
def no_home_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Models that a test exports are not kept for whoever runs it."""
    os.environ["AGENTKV_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True, scope="session")
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each client reads the certificates of all authorities that there are, and tests talk to none of them."""
    path = tmp_path_factory.mktemp("authority") / "certificate.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    os.environ["SSL_CERT_FILE"] = str(path)


@pytest.fixture(autouse=True, scope="module")
def _collected_once() -> Iterator[None]:
    """Torch keeps some 100,000s of objects of each export for good: no later collection looks through them again."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The same of ExecuTorch's threads; tests that are about them set how many."""
    from agentkv_runtime.programs import set_threads

    set_threads(1)


@pytest.fixture(scope="session")
def tiny_hf_folder(tmp_path_factory: pytest.TempPathFactory) -> FolderFactory:
    """`tiny_hf_folder(kind="llama", **fields of TinySpec) -> Path` of a Hugging Face folder, one per spec."""
    root = tmp_path_factory.mktemp("hf")
    built: dict[TinySpec, Path] = {}

    def build(kind: str = "llama", **overrides: Any) -> Path:
        spec = tiny_spec(kind, **overrides)
        if spec not in built:
            built[spec] = write_hf_folder(spec, root / spec.name)
        return built[spec]

    return build


@pytest.fixture(scope="session")
def export_cache() -> ExportCache:
    """Exports that tests need but are not about."""
    return ExportCache()


@pytest.fixture(scope="session")
def tiny_exported_folder(export_cache: ExportCache, tiny_hf_folder: FolderFactory) -> FolderFactory:
    """`tiny_exported_folder(kind="llama", backend="cpu", quant="none", dtype="fp32", **fields of TinySpec) -> Path`."""

    def build(
        kind: str = "llama",
        *,
        backend: str = "cpu",
        quant: str = "none",
        dtype: str = "fp32",
        max_tokens: int = 64,
        max_logits: int = 64,
        **overrides: Any,
    ) -> Path:
        def export(out: Path) -> None:
            from agentkv_runtime.export import export_folder

            export_folder(
                tiny_hf_folder(kind, **overrides),
                out,
                backend=backend,
                quant=quant,
                dtype=dtype,
                max_tokens=max_tokens,
                max_logits=max_logits,
            )

        spec = tiny_spec(kind, **overrides)
        return export_cache.get(f"{spec.name}-{backend}-{quant}-{dtype}-t{max_tokens}n{max_logits}", export)

    return build


@pytest.fixture(scope="session")
def mtp_folder(export_cache: ExportCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, exported with a multi-token prediction layer of random weights."""

    def export(out: Path) -> None:
        from agentkv_runtime.export import export_folder

        from tests.runtime.next_token_layers import FAMILIES, write_with_layer

        source = tmp_path_factory.mktemp("mtp") / "hf"
        write_with_layer(FAMILIES["llama"], source)
        export_folder(source, out, quant="none", max_tokens=64, max_logits=64, mtp=True)

    return export_cache.get("mtp", export)


@pytest.fixture
def with_manifest(tmp_path: Path) -> FolderFactory:
    """`with_manifest(folder, **facts) -> Path` of a copy of an exported folder whose manifest says otherwise."""

    def copy(folder: Path, **facts: Any) -> Path:
        out = shutil.copytree(folder, tmp_path / "copy")
        manifest = json.loads((out / "agentkv.json").read_text())
        (out / "agentkv.json").write_text(json.dumps(manifest | facts))
        return out

    return copy


@pytest.fixture(scope="module")
def failing_caches() -> Iterator[None]:
    """Caches that are made meanwhile can be told to fail, see tests/faults.py."""
    _core.failing_caches(True)
    yield
    _core.failing_caches(False)


@pytest.fixture(scope="session")
def soak_count() -> int:
    """How many random cases a soak test runs; AGENTKV_SOAK sets it."""
    return int(os.environ.get("AGENTKV_SOAK", "10000"))


@pytest.fixture
def user_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user who has nothing in it yet: no models of ours, of the hub or of other programs."""
    for variable in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "OLLAMA", "LLAMA", "XDG_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AGENTKV_HOME", str(tmp_path / "agentkv"))
    return tmp_path

"""`agentkv doctor`: what is installed, what works, and how fast this machine is."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from .._console.console import escaped, stderr, stdout
from .._types.show import bytes_text

EXTRAS = {
    "export": ("torch", "executorch", "transformers"),
    "mlx": ("mlx",),
    "serve": ("starlette", "uvicorn"),
    "remote": ("httpx", "h2"),
    "trace": ("opentelemetry-api", "perfetto"),
    "pydantic-ai": ("pydantic-ai-slim",),
    "openai-agents": ("openai-agents",),
    "langchain": ("langchain-openai",),
    "mcp": ("mcp",),
    "plot": ("matplotlib",),
}
"""By the packages that tell whether an extra is there."""
MEASURED_BYTES = 256 << 20  # well beyond the caches of processors
MEASURED_S = 1.0  # that each of the two measurements takes


def doctor(
    measure: Annotated[bool, typer.Option(help="Also measure reading memory and decoding, for two seconds.")] = True,
) -> None:
    """Say what is installed, which backends work here, and how fast this machine is.

    Status 1 where something that agentkv cannot do without does not work.
    """
    broken: list[str] = []
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in (*_machine(), *_packages(), *_backends(broken), *_kept(broken)):
        table.add_row(name, escaped(value))
    stdout.print(table)
    if measure and not broken:
        for name, value in _measured(broken):
            stdout.print(f" [bold]{name:<13}[/]  {escaped(value)}", highlight=False)
    for fault in broken:
        stderr.print(f"[bold red]broken:[/] {escaped(fault)}", soft_wrap=True)
    raise typer.Exit(1 if broken else 0)


def _machine() -> Iterator[tuple[str, str]]:
    yield "agentkv", f"{_version('agentkv-sdk') or '(not installed)'}, Python {platform.python_version()}"
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "processor", f"{_processor()}, {usable} cores for this process"
    yield "memory", _memory()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _memory() -> str:
    if not hasattr(os, "sysconf"):  # Windows
        return "unknown"
    page = os.sysconf("SC_PAGE_SIZE")
    total = bytes_text(page * os.sysconf("SC_PHYS_PAGES"))
    try:
        return f"{total}, {bytes_text(page * os.sysconf('SC_AVPHYS_PAGES'))} of it unused"
    except ValueError:  # a system that does not say
        return total


def _packages() -> Iterator[tuple[str, str]]:
    for extra, packages in EXTRAS.items():
        found = {package: _version(package) for package in packages}
        missing = [package for package, version in found.items() if version is None]
        if missing:
            torch = "pip install torch==2.13.0, then " if "torch" in missing else ""
            yield extra, f"not installed ({', '.join(missing)}): {torch}pip install 'agentkv-sdk[{extra}]'"
        else:
            yield extra, ", ".join(f"{package} {version}" for package, version in found.items())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _backends(broken: list[str]) -> Iterator[tuple[str, str]]:
    from agentkv_runtime.backends import BACKENDS
    from agentkv_runtime.errors import BackendError

    for name, backend in BACKENDS.items():
        try:
            backend.load()
        except (BackendError, ImportError) as error:
            yield f"backend {name}", f"does not work: {error}"
            if name == "cpu":
                broken.append(f"the native module cannot be loaded: {error}; install agentkv-sdk again")
        else:
            yield f"backend {name}", f"works{_about(name)}"


def _about(backend: str) -> str:
    if backend != "cpu":
        return ""
    from agentkv_runtime.programs import get_cpu_isa, get_threads

    return f", kernels for {get_cpu_isa()}, {get_threads()} threads"


def _kept(broken: list[str]) -> Iterator[tuple[str, str]]:
    from agentkv_runtime.errors import StoreError
    from agentkv_runtime.store.home import home

    try:
        where = home()
    except StoreError as error:
        broken.append(str(error))
        return
    try:
        there = next(folder for folder in (where, *where.parents) if folder.exists() or folder.is_symlink())
        free = shutil.disk_usage(there).free
    except OSError as error:
        broken.append(f"models cannot be kept: {error.strerror}; set AGENTKV_HOME to a folder that can be written")
        return
    if not there.is_dir() or not os.access(there, os.W_OK):
        broken.append(f"models cannot be kept in {where}: set AGENTKV_HOME to a folder that can be written")
    yield "models", f"{where}, {bytes_text(free)} free; `agentkv list` shows what is kept"


def _measured(broken: list[str]) -> Iterator[tuple[str, str]]:
    import anyio

    from .._types.errors import AgentKVError

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield "reading", f"{_bandwidth(usable) / 1e9:.1f} GB/s of memory with {usable} threads: decoding is bound by that"
    try:
        plain, together = anyio.run(_decoding)
    except AgentKVError as error:
        broken.append(f"the nano model does not run: {error}")
    else:
        yield "decoding", f"nano: {plain:,.0f} tokens per second, 8 branches together {together:,.0f}"


def _bandwidth(threads: int) -> float:
    """Bytes per second, median."""
    import numpy as np

    parts = np.array_split(np.ones(MEASURED_BYTES // 4, np.float32), threads)
    rates: list[float] = []
    end = time.perf_counter() + MEASURED_S
    while time.perf_counter() < end or not rates:
        readers = [threading.Thread(target=np.max, args=(part,)) for part in parts]
        start = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        rates.append(MEASURED_BYTES / (time.perf_counter() - start))
    return statistics.median(rates)


async def _decoding() -> tuple[float, float]:
    """Tokens per second of one branch of nano, and of eight."""
    from .. import models
    from .._aio.tasks import gather
    from .._context.context import Context
    from .._types.sampling import Sampling

    async def rate(ctx: Context, branches: int) -> float:
        kids = await (await ctx.branch("Once upon a time")).fork(branches)
        no_end = Sampling(logit_bias={token: -100.0 for token in ctx.tokenizer.eos_ids})
        made, start = 0, time.perf_counter()
        while time.perf_counter() - start < MEASURED_S / 2:
            made += sum(
                len(each.tokens) for each in await gather(*(k.generate(max_tokens=64, sampling=no_end) for k in kids))
            )
            for kid in kids:
                await kid.rollback(4)
        return made / (time.perf_counter() - start)

    async with Context.open(models.nano(), capacity=2048) as ctx:
        await rate(ctx, 1)
        return await rate(ctx, 1), await rate(ctx, 8)

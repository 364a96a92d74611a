"""`agentkv serve`: models as a server."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

import typer
from agentkv_runtime.importing import few_collections

from .._console.console import fail, reporting
from .._types.extras import needs_extra
from .options import (
    CallFormatOption,
    PrefixCacheBytesOption,
    PrefixCacheOption,
    QuantOption,
    SteerCallsOption,
    ThreadsOption,
    byte_count,
)
from .served_models import GivenModels, Speculation, given_models


def serve(
    model: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FOLDER | NAME=FOLDER ...",
            help="Model folder or GGUF file, or a name, as qwen3:0.6b or nano; of several each as NAME=FOLDER.",
        ),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Several models, each with options of its own, and keys for some of them (TOML)."
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER", help="A LoRA adapter of the model, offered as a model of that name; again for more."
        ),
    ] = None,
    max_memory: Annotated[
        int | None,
        typer.Option(
            parser=byte_count,
            metavar="SIZE",
            help="Of several models, as 6GiB or in bytes: those used longest ago are closed for others.",
        ),
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="One of several models that nobody used for longer is closed."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's own need a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8080,
    name: Annotated[
        list[str] | None,
        typer.Option(help="What clients call the model; again for more. Without it the folder's name."),
    ] = None,
    any_model: Annotated[
        bool, typer.Option("--any-model", help="Answer to whatever name clients call the model by.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse also what asks for nothing, or changes no answer here.")
    ] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="AGENTKV_API_KEY", help="What clients must send; better by the environment.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen on other addresses without a key.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A name that clients may call this machine by without a key; again for more."
        ),
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="A web page whose scripts may call; '*' for any.")
    ] = None,
    capacity: Annotated[int, typer.Option(min=1, help="Cells of the cache: tokens of all conversations.")] = 16384,
    kv_dtype: Annotated[str, typer.Option(help="Of the cache: fp32, fp16, bf16, int8, int8/int4, int4.")] = "fp16",
    retain: Annotated[
        int | None, typer.Option(min=0, help="Most cells that ended conversations leave; without it all free ones.")
    ] = None,
    window: Annotated[int | None, typer.Option(min=1, help="The model looks at the newest so many positions.")] = None,
    sinks: Annotated[int, typer.Option(min=0, help="And at the first so many.")] = 0,
    quantize_after: Annotated[
        int | None, typer.Option(min=1, help="Hold all but each branch's newest so many positions as int8.")
    ] = None,
    speculative: Annotated[
        Speculation,
        typer.Option(
            help="What drafts: the longest earlier text, a few earlier words, the folder's draft head, the model's own"
            " multi-token prediction layer, or --draft."
        ),
    ] = "none",
    draft: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder of a smaller model that drafts.")] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="With --speculative suffix, alone or mixed: keep the text of conversations here, for later drafts.",
        ),
    ] = None,
    warm: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Saved branches: conversations that begin with their messages go on from them."
        ),
    ] = None,
    prefix_cache: PrefixCacheOption = None,
    prefix_cache_bytes: PrefixCacheBytesOption = None,
    quant: QuantOption = None,
    threads: ThreadsOption = None,
    call_format: CallFormatOption = None,
    rescue: Annotated[
        bool, typer.Option("--rescue/--no-rescue", help="Calls of known tools in another spelling are calls.")
    ] = True,
    steer_calls: SteerCallsOption = False,
    call_threshold: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Ask the model whether a tool fits, and let it call only with so much probability."
        ),
    ] = None,
    most_running: Annotated[int, typer.Option(min=1, help="Requests at work at one time.")] = 64,
    most_waiting: Annotated[int, typer.Option(min=0, help="Requests that wait; further ones get 429.")] = 256,
    most_seconds: Annotated[float, typer.Option(min=0.001, help="Longest time of a request.")] = 600.0,
    most_kept: Annotated[int, typer.Option(min=0, help="Conversations that wait to be gone on with.")] = 128,
    most_branches: Annotated[int, typer.Option(min=0, help="Branches that clients hold by /v1/branches.")] = 64,
    branch_seconds: Annotated[
        float, typer.Option(min=0, help="A branch of /v1/branches that is idle for longer may be closed.")
    ] = 600.0,
    lease_seconds: Annotated[
        float, typer.Option(min=0, help="So may branches of a lease without a connection that are idle for longer.")
    ] = 30.0,
    offload: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where waiting conversations go when the cache and --offload-memory are full.",
        ),
    ] = None,
    offload_memory: Annotated[
        int, typer.Option(min=0, metavar="BYTES", help="Memory for waiting conversations when the cache is full.")
    ] = 1 << 30,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Record everything, for `agentkv view` and `agentkv replay`: what is said is in it."
        ),
    ] = None,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="How long requests may go on once the server is told to stop.")
    ] = 30.0,
) -> None:
    """Serve a model over HTTP, by OpenAI's and Anthropic's protocols: conversations become branches of one cache.

    Several models (NAME=FOLDER ..., or --models FILE) are opened on their first request, and requests name one.

    SIGINT and SIGTERM let nobody in any more, wait for what runs, and end the server; a second one ends it at once.
    """
    with reporting(), needs_extra("serve"), few_collections():
        import anyio

        from ..serve.run import Listening, Several, run
        from ..serve.settings import Settings
    options = {
        "capacity": capacity,
        "kv_dtype": kv_dtype,
        "retain": retain,
        "window": window,
        "sinks": sinks,
        "quantize_after": quantize_after,
        "speculative": speculative,
        "draft": draft,
        "corpus": corpus,
        "warm": warm or [],
        "prefix_cache": prefix_cache,
        "prefix_cache_bytes": prefix_cache_bytes,
        "quant": quant,
        "threads": threads,
        "call_format": call_format,
        "rescue": rescue,
        "steer_calls": steer_calls,
        "call_threshold": call_threshold,
        "offload": offload,
        "offload_memory": offload_memory,
    }
    with reporting():
        given = given_models(model or [], models, options, adapter or [])
    _check_single(given, name or [], trace)
    if not given.several and (max_memory is not None or idle is not None):
        fail("--max-memory and --idle go with several models, NAME=FOLDER ... or --models FILE")
    has_keys = api_key is not None or bool(given.keys)
    if not has_keys and not insecure and not _is_loopback(host):
        fail(f"{host} can be reached from other machines: set AGENTKV_API_KEY, or pass --insecure")
    if api_key == "":
        fail("the API key is empty; set one, or leave it out")
    if api_key in given.keys:
        fail("the API key for all models is also one for some; give each its own")
    settings = Settings(
        names=tuple(name or given.tables),
        any_name=any_model,
        strict=strict,
        api_key=api_key,
        keys=given.keys,
        most_running=most_running,
        most_waiting=most_waiting,
        most_seconds=most_seconds,
        most_kept=most_kept,
        most_branches=most_branches,
        branch_seconds=branch_seconds,
        lease_seconds=lease_seconds,
        origins=tuple(cors or ()),
        hosts=(host, "localhost", "127.0.0.1", "[::1]", *(allow_host or ())) if not has_keys and not insecure else (),
    )
    with reporting():
        told = {called: table.options() for called, table in given.tables.items()}
        several = Several(max_memory, idle) if given.several else None
        anyio.run(run, told, several, settings, Listening(host, port, drain_seconds), trace)


def _check_single(given: GivenModels, names: list[str], trace: Path | None) -> None:
    """Fails for what goes with a single model, and for a name of it that an adapter has."""
    if given.several and (names or trace):
        fail("--name and --trace go with a single model")
    if taken := [each for table in given.tables.values() for each in table.adapters if each in names]:
        fail(f"--name {taken[0]} is also the name of an adapter: give one of them another")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

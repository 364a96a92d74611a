"""Replay of traces, and comparison with the recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._context.context import Context
from .._context.handle import core_of
from .._types.checks import A_FILE, checked_path
from .._types.errors import TraceError
from .player import Player, Progress
from .records import ADAPTER, Noted
from .replayed import Replayed
from .story import Story, read_story
from .what_if import WhatIf

_SPARE = 4096  # cells: branches may begin earlier than they did, and end later
_ASKED = (
    "capacity",
    "kv_dtype",
    "max_batch_tokens",
    "threads",
    "backend",
    "device",
    "window",
    "sinks",
    "quantize_after",
)


async def replay(
    path: str | Path,
    model: str | Path | None = None,
    *,
    what_if: Sequence[tuple[str, str]] = (),
    progress: Progress | None = None,
) -> Replayed:
    """Replays a trace, and reports differences from the recording.

    Prompts, results of tools and random seeds are the trace's; every generation runs anew. Where the model, the kind of
    cache and the instruction set are the recorded ones, the digest of each row of logits that a token was sampled from
    must be the same; elsewhere tokens are compared.

    Args:
        path: path of the trace.
        model: folder of the model, where it is not the recorded one.
        what_if: changed results of calls, as (call, result): branches that read them, and later forks of these,
            continue with new generations, and with the trace's results for the calls that these make.
        progress: called with the number of records done and the total.

    Raises:
        TraceError: the file is no trace, or damaged; or it has branches under LoRA adapters, which replays do not load.
        InvalidInput: `what_if` names no call.
        ModelError: the model cannot be opened.
    """
    story = read_story(checked_path(path, "path", A_FILE))
    _check_adapters(story)
    result = Replayed()
    changes = WhatIf(story, what_if, result)
    options: dict[str, Any] = {name: story.began.options[name] for name in _ASKED if name in story.began.options}
    options["capacity"] = 4 * int(story.began.options["capacity"]) + _SPARE
    if not story.complete:
        result.left_out.append("the recording was broken off; what it was about to do is not known")
    async with Context.open(model or story.began.options["path"], **options) as ctx:
        _compare_models(ctx, story, result)
        await core_of(ctx).loop.call(lambda engine: engine.set_digests(True))
        player = Player(ctx, story, result, changes)
        await player.play(progress)
    result.differences.sort(key=lambda each: each.seconds)
    return result


def _check_adapters(story: Story) -> None:
    noted = {each.text for each in story.records if isinstance(each, Noted) and each.what == ADAPTER}
    if noted:
        raise TraceError(
            f"the trace has branches under LoRA adapters ({', '.join(sorted(noted)[:3])}), which a replay does not "
            "load; merge the adapter at export and record that model"
        )


def _compare_models(ctx: Context, story: Story, result: Replayed) -> None:
    from agentkv_runtime.programs import get_cpu_isa

    was, now = story.began.model, ctx.model_info
    if was["vocab_size"] != now.vocab_size:
        raise TraceError(
            f"the trace is of a model with {was['vocab_size']} tokens, and this one has {now.vocab_size}; give the "
            "folder of the recorded one"
        )
    for what, before, after in (
        ("the model", was["fingerprint"], now.fingerprint),
        ("the backend", was["backend"], now.backend),
        ("the kind of cache", was["kv_dtype"], now.kv_dtype),
        ("the instruction set", story.began.isa, get_cpu_isa()),
        ("exactness to the bit", bool(was["bit_exact"]), now.bit_exact),
    ):
        if before != after and not result.why:
            result.compares, result.why = "tokens", f"{what} is another: {before} then, {after} now"
    if not now.bit_exact and not result.why:
        result.compares, result.why = "tokens", f"backend {now.backend} is not exact to the bit"

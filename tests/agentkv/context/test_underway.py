"""Prompts that are being computed, and those who want their cells."""

from __future__ import annotations

import anyio
import pytest

import agentkv as kv
from agentkv._context.branch import new_branch
from agentkv._context.handle import core_of, handle_of
from agentkv._context.prefill import PromptNeeds, PromptPrefill

pytestmark = pytest.mark.anyio


async def test_who_comes_back_leaves_cells_to_a_prompt_that_is_being_computed() -> None:
    """Half a prompt is no use, and is computed again."""
    async with kv.Context.open(kv.models.nano(), 300, max_batch_tokens=16, offload=kv.Offload(idle=0)) as ctx:
        core = core_of(ctx)
        assert core.offloader is not None
        branch = await ctx.branch([5 + n % 280 for n in range(100)])
        await (await ctx.branch([7 + n % 270 for n in range(280)])).close()
        assert handle_of(branch).state.offloaded is not None
        update = await core.chat.encoder.prompt([9 + n % 260 for n in range(250)])
        needs = PromptNeeds(None, underway=core.offloader.underway)
        async with anyio.create_task_group() as tasks:
            async with PromptPrefill(core, update, needs=needs) as prompt:
                tasks.start_soon(branch.logits)
                await prompt.computed()
            await new_branch(core, prompt.branch, None, None, prompt.reused).close()
        assert handle_of(branch).state.offloaded is None

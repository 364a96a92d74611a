"""Tests of agents without a model's judgement: scripted replies, counted forwards, checks for leaked branches.

    script = [kv.testing.call("weather", city="Oslo"), "It is 4 degrees in Oslo."]
    async with kv.testing.replies(script) as ctx, kv.testing.no_leaks(ctx):
        run = await agent.run(await agent.trunk(ctx), "How warm is it in Oslo?")
    assert [call.name for call in run.calls] == ["weather"]

Everything but the choice of words is real: the model's tokens, cells, forwards, the grammar that constrains calls to
existing tools, and the tools themselves.
"""

from .counting import ForwardCount, count_forwards
from .leaks import no_leaks
from .replies import Call, Reply, call, replies

__all__ = ["Call", "ForwardCount", "Reply", "call", "count_forwards", "no_leaks", "replies"]

"""`branch.messages`: what a branch knows of its conversation, through every verb; what `extend` did to its tokens."""

from __future__ import annotations

import random

import anyio
import pytest

import agentkv as kv
from agentkv._context.lease import TurnLease

from ...runtime.chat_styles import THINKING
from ..conftest import OpenContext, WithTemplate

pytestmark = pytest.mark.anyio

SYSTEM = {"role": "system", "content": "You are brief."}


def user(content: object) -> dict:
    return {"role": "user", "content": content}


def spoken(branch: kv.Branch) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in branch.messages]


def check_spans(branch: kv.Branch) -> None:
    """The spans lie in order, and hold what the messages say."""
    decode, end = branch.context.tokenizer.decode, 0
    for message in branch.messages:
        assert end <= message.start <= message.end <= len(branch)
        end = message.end
        assert message.content in decode(branch.tokens[message.start : message.end], skip_special=False)


async def test_a_conversation_is_read_back(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch([SYSTEM, user("Hi.")])
        assert spoken(branch) == [("system", "You are brief."), ("user", "Hi.")]
        first = await branch.generate(max_tokens=5)
        made = ctx.tokenizer.decode(first.tokens, skip_special=False)
        assert spoken(branch)[2:] == [("assistant", made)]
        reply = branch.messages[-1]
        assert branch.tokens[reply.start : reply.end] == first.tokens
        length = len(branch)
        done = await branch.extend([user("And?")])
        assert done == kv.Extended(length, len(branch) - length, 0)
        assert spoken(branch)[2:] == [("assistant", made), ("user", "And?")]
        assert branch.text == ctx.tokenizer.render_chat(branch.messages)
        check_spans(branch)


async def test_messages_follow_fork_rollback_and_adopt(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        trunk = await ctx.branch([SYSTEM])
        start = trunk.mark()
        kid = await trunk.fork()
        await kid.extend([user("Hi.")])
        asked = kid.mark()
        await kid.generate(max_tokens=4)
        answered, told = kid.mark(), kid.messages
        await kid.extend([user("More.")])
        assert len(kid.messages) == 4
        await kid.rollback(answered)
        assert kid.messages == told
        await kid.rollback(len(kid) - 2)
        assert [m.role for m in kid.messages] == ["system", "user", "assistant"]
        assert kid.messages[-1].end == len(kid), "the turn is open again"
        await trunk.adopt(kid)
        assert trunk.messages == kid.messages
        await trunk.rollback(start)
        assert spoken(trunk) == [("system", "You are brief.")]
        await kid.rollback(asked)
        assert spoken(kid) == [("system", "You are brief."), ("user", "Hi.")]


async def test_a_message_cut_short_is_gone_and_its_rest_is_rewritten(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch([SYSTEM])
        await branch.extend([user("one two three four five")])
        await branch.rollback(len(branch) - 8)
        assert spoken(branch) == [("system", "You are brief.")]
        length = len(branch)
        done = await branch.extend([user("Hi.")])
        assert done.rewritten > 0
        assert done.kept + done.rewritten == length
        assert branch.tokens == ctx.tokenizer.apply_chat([SYSTEM, user("Hi.")])
        assert await same_logits(branch)


async def test_text_is_no_message_and_stays(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch("Once upon a time")
        assert branch.messages == []
        await branch.extend([user("Hi.")])
        assert spoken(branch) == [("user", "Hi.")]
        assert branch.text.startswith("Once upon a time<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n")
        check_spans(branch)
        turn = await ctx.branch([user("Hi.")])
        await turn.extend("Well, ")
        assert spoken(turn)[1:] == [("assistant", "Well,")], "text in an assistant's turn is the assistant's"
        trunk = await ctx.branch([SYSTEM])
        await trunk.extend("A text.")
        assert spoken(trunk) == [("system", "You are brief.")]
        length = len(trunk)
        await trunk.extend([user("Hi.")])
        assert spoken(trunk) == [("system", "You are brief."), ("user", "Hi.")]
        assert trunk.text.endswith(
            "brief.<|im_end|>\nA text.<|im_end|>\n<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n"
        )
        await trunk.rollback(length)
        await trunk.extend([user("Hi.")])
        assert spoken(trunk) == [("system", "You are brief."), ("user", "Hi.")]


async def test_a_template_that_drops_reasoning_rewrites_the_branch(with_template: WithTemplate) -> None:
    async with kv.Context.open(with_template(THINKING), capacity=1024, kv_dtype="fp32", threads=1) as ctx:
        branch = await ctx.branch([user("Hi.")])
        await branch.extend("<think>\nhm\n</think>\n\nYes.")
        thought = branch.mark()
        length = len(branch)
        done = await branch.extend([user("And?")])
        assert done.rewritten > 0
        assert done.kept + done.rewritten == length
        assert "hm" not in branch.text
        assert branch.text == ctx.tokenizer.render_chat(branch.messages)
        assert await same_logits(branch)
        with pytest.raises(kv.InvalidRollback):
            await branch.rollback(thought)


async def test_a_rewrite_that_is_cancelled_or_does_not_fit_changes_nothing(with_template: WithTemplate) -> None:
    async with kv.Context.open(with_template(THINKING), capacity=100, kv_dtype="fp32", threads=1) as ctx:
        branch = await ctx.branch([user("Hi.")])
        asked = branch.mark()
        answer = "<think>\nhm\n</think>\n\nYes."
        await branch.extend(answer)
        answered, tokens, messages = branch.mark(), branch.tokens, branch.messages
        rng = random.Random(5)
        for _ in range(20):
            with anyio.move_on_after(rng.random() * 0.002) as scope:
                await branch.extend([user("And?")])
            if scope.cancelled_caught:
                assert (branch.tokens, branch.messages) == (tokens, messages)
                await branch.rollback(answered)
            else:
                assert len(branch.messages) == 3
                await branch.rollback(asked)
                await branch.extend(answer)
                answered = branch.mark()
        with pytest.raises(kv.ContextFull):
            await branch.extend([user("xyz " * 18)])
        assert (branch.tokens, branch.messages) == (tokens, messages)
        assert ctx.stats.branches == 1


async def rewrite_and_fail(branch: kv.Branch) -> None:
    async with TurnLease(branch._handle) as leased:
        held = kv.Branch(leased)
        done = await held.extend([user("And?")])
        assert done.rewritten > 0
        assert "hm" not in held.text
        await held.generate(max_tokens=5)
        raise ZeroDivisionError


async def test_a_turn_that_rewrites_and_fails_leaves_no_trace(with_template: WithTemplate) -> None:
    folder = with_template(THINKING)
    warm = kv.Sampling(temperature=1.0, seed=3)
    drawn = []
    for tries in (False, True):
        async with kv.Context.open(folder, capacity=512, kv_dtype="fp32", threads=1) as ctx:
            branch = await ctx.branch([user("Hi.")])
            await branch.extend("<think>\nhm\n</think>\n\nYes.")
            tokens, messages, mark = branch.tokens, branch.messages, branch.mark()
            if tries:
                with pytest.raises(ZeroDivisionError):
                    await rewrite_and_fail(branch)
            assert (branch.tokens, branch.messages) == (tokens, messages)
            await branch.rollback(mark)  # it holds as if nothing had been tried
            assert (branch.tokens, branch.messages) == (tokens, messages)
            kid = await branch.fork()
            drawn.append([(await one.generate(max_tokens=8, sampling=warm)).tokens for one in (branch, kid)])
            drawn[-1].append((await branch.extend([user("And?")])).rewritten)
            drawn[-1].append((await branch.generate(max_tokens=8, sampling=warm)).tokens)
            assert ctx.stats.branches == 2
    assert drawn[0] == drawn[1]


async def test_a_fork_during_an_extend_has_the_messages_that_are_whole(open_context: OpenContext) -> None:
    given = [{"role": role, "content": f"{i} words"} for i, role in enumerate(["user", "tool"] * 20)]
    async with open_context(max_batch_tokens=16) as ctx:
        whole = (await ctx.branch([SYSTEM, *given])).messages
        caught: set[int] = set()
        while not caught:  # a busy machine may let none of them come in between
            branch = await ctx.branch([SYSTEM])
            kids: list[kv.Branch] = []
            async with anyio.create_task_group() as group:
                group.start_soon(branch.extend, given)
                while len(branch.messages) == 1:
                    kid = await branch.fork()
                    if len(kid.messages) in {1, *(len(other.messages) for other in kids)}:
                        await kid.close()  # one of a kind: many forks fit between two forwards
                    else:
                        kids.append(kid)
            middle = [kid for kid in kids if len(kid.messages) < len(whole)]
            for kid in middle[:3]:
                held = len(kid)
                assert kid.messages == [message for message in whole if message.end <= held]
                caught.add(len(kid.messages))
                done = await kid.extend([user("The end.")])
                assert done.kept + done.rewritten == held
                assert kid.tokens == ctx.tokenizer.apply_chat([*kid.messages[:-1], user("The end.")])
            await ctx.keep(branch)


async def test_variables_of_the_template_stay(with_template: WithTemplate) -> None:
    template = "{{ tone }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}{{ end }}"
    async with kv.Context.open(with_template(template), capacity=256, kv_dtype="fp32", threads=1) as ctx:
        branch = await ctx.branch([user("a")], template={"tone": "low"})
        await branch.extend([user("b")], template={"end": "!"})
        assert branch.text == "low<|im_start|>a<|im_end|><|im_start|>b<|im_end|>!"
        await branch.extend([user("c")])
        assert branch.text == "low<|im_start|>a<|im_end|><|im_start|>b<|im_end|><|im_start|>c<|im_end|>!"
        for bad in ({"messages": []}, {"tools": []}, 5, {1: 2}, {"x": object()}):
            with pytest.raises(kv.InvalidInput, match="template"):
                await branch.extend([user("d")], template=bad)
        with pytest.raises(kv.InvalidInput, match="template"):
            await branch.extend("d", template={"end": "!"})
        assert branch.text.endswith("c<|im_end|>!")


async def test_messages_that_were_read_are_a_prompt(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch([SYSTEM, user("Hi."), {"role": "assistant", "content": "Yes."}])
        again = await ctx.branch(branch.messages)
        assert again.tokens == branch.tokens
        assert again.messages == branch.messages


async def same_logits(branch: kv.Branch) -> bool:
    """Are a branch's logits those of its tokens?"""
    row = (await branch.logits()).tobytes()
    async with await branch.context.branch(branch.tokens) as fresh:
        return (await fresh.logits()).tobytes() == row


@pytest.mark.parametrize(
    ("role", "hint"),
    [
        ("human", "did you mean 'user'"),
        ("Human", "did you mean 'user'"),
        ("ai", "did you mean 'assistant'"),
        ("model", "did you mean 'assistant'"),
        ("function", "did you mean 'tool'"),
        ("assistent", "did you mean 'assistant'"),
        ("User", "did you mean 'user'"),
        ("narrator", "does not name; roles are 'system', 'developer', 'user', 'assistant', 'tool', and"),
    ],
)
async def test_a_role_that_no_template_names_is_refused(role: str, hint: str, open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch([SYSTEM])
        with pytest.raises(kv.InvalidInput, match=hint):
            await branch.extend([user("Hi."), {"role": role, "content": "Hello."}])
        with pytest.raises(kv.InvalidInput, match=hint):
            await ctx.branch([{"role": role, "content": "Hello."}])
        assert spoken(branch) == [("system", "You are brief.")]


async def test_a_role_that_the_template_names_is_taken(with_template: WithTemplate) -> None:
    named = "{% for m in messages %}{% if m.role == 'critic' %}?{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    async with kv.Context.open(with_template(named), capacity=256) as ctx:
        branch = await ctx.branch([user("Hi."), {"role": "critic", "content": "Oh."}])
        assert branch.text.startswith("user: Hi.\n?critic: Oh.")


async def test_a_message_that_is_no_list_says_so(open_context: OpenContext) -> None:
    async with open_context() as ctx:
        branch = await ctx.branch([{"role": "user", "content": "Hello"}])
        for message in ({"role": "user", "content": "Hello"}, branch.messages[0]):
            with pytest.raises(kv.InvalidInput, match=r"one message; give a list of messages: \[message\]"):
                await branch.extend(message)  # type: ignore[arg-type]

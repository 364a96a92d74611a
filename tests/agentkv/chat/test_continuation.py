"""Conversations that grow bit by bit, under templates of every style: the tokens are those of the whole.

No model is needed: what a branch holds is a log, and replies are texts of the tests' own.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.formats import find_format
from agentkv_runtime.text.tokenizer import Tokenizer

import agentkv as kv
from agentkv._chat.conversation import Conversation
from agentkv._chat.messages import checked_messages
from agentkv._chat.reply import ReplyReader
from agentkv._chat.rerender import ConversationRenderer, RenderBudget, asks_for_reply
from agentkv._chat.template import TemplateRenderer

from ...runtime.chat_features import FEATURES
from ...runtime.chat_styles import STYLES, Style, write_style
from ...runtime.test_chat_features import Chats
from ...runtime.test_chat_styles import conversation, hostile_text, plain_text

EVERY = {**STYLES, **FEATURES}
# How the well-known families spell their control tokens.
SPELLED = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<s>"),
    *("<|begin_of_text|>", "<|python_tag|>", "<|eom_id|>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]"),
    *("</s>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<|start|>", "<|channel|>", "<|message|>"),
    *("<|end|>", "<|return|>", "<|call|>", "<|user|>", "<|assistant|>", "<|system|>", "<|start_of_role|>"),
    *("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<\uff5ctool\u2581calls\u2581begin\uff5c>"),
    *("<|end_of_role|>", "<|end_of_text|>", "<tool_call>", "</tool_call>", "<tool_response>"),
)


def no_check(text: str) -> None:
    """Lets every text through."""


class Log:
    """What a branch would hold."""

    def __init__(self, tokenizer: Tokenizer, tools: Any = None) -> None:
        self.tokenizer = tokenizer
        self.reader = ReplyReader(tokenizer, lambda: find_format(tokenizer))
        self.chat = TemplateRenderer(tokenizer, lambda: find_format(tokenizer))
        self.tokens = array("i")
        self.conversation = Conversation(tools=tools)

    def extend(
        self, messages: Sequence[dict[str, Any]], template: Mapping[str, Any] | None = None, speaks: bool = False
    ) -> int:
        """Adds messages; returns how many tokens were rewritten."""
        state = ConversationRenderer(
            self.chat, self.tokenizer, self.reader, self.conversation, self.tokens[:], RenderBudget(10), no_check
        )
        made = state.extend(checked_messages(messages) if messages else [], template or {}, speaks=speaks)
        rewritten = len(self.tokens) - made.kept
        assert made.conversation is not None
        assert made.added
        self.tokens = self.tokens[: made.kept] + array("i", made.added)
        self.conversation = made.conversation
        return rewritten

    def reply(self, text: str) -> array[int]:
        """As if the model had generated it, control tokens included; returns its tokens."""
        tokens = array("i", self.tokenizer.encode(text))
        self.tokens += tokens
        return tokens

    @property
    def messages(self) -> list[kv.Message]:
        """As a branch would say."""
        return self.conversation.messages(self.tokens, self.reader)


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    """The tokenizer of a style, by its name."""
    made: dict[str, Tokenizer] = {}

    def tokenizer_of(name: str) -> Tokenizer:
        if name not in made:
            folder: Path = write_style(EVERY[name], tmp_path_factory.mktemp(name))
            made[name] = Tokenizer.from_folder(folder)
        return made[name]

    return tokenizer_of


def random_chat(rng: random.Random, name: str, hostile: bool) -> dict[str, Any]:
    style: Style = EVERY[name]
    if name in FEATURES and not hostile:
        chat = Chats(rng.randrange(1 << 30)).chat()
        return {"messages": chat["messages"], "tools": chat["tools"]}
    controls = [*style.controls, *SPELLED]
    return conversation(rng, style, lambda: hostile_text(rng, controls) if hostile else plain_text(rng), str)


def check_growing(tokenizer: Tokenizer, name: str, count: int, seed: int, hostile: bool) -> None:
    """Given messages in random parts make the tokens of all at once, or are refused as they are."""
    rng = random.Random(seed)
    for _ in range(count):
        chat = random_chat(rng, name, hostile)
        log, done = Log(tokenizer, chat["tools"]), 0
        try:
            messages = checked_messages(chat["messages"])
        except kv.InvalidInput:
            continue  # a call without a name
        while done < len(messages):
            part = messages[done : done + rng.randint(1, 3)]
            so_far = messages[: done + len(part)]
            opened = asks_for_reply(so_far)
            try:
                whole = log.chat.render(so_far, chat["tools"], opened, {}, 10, no_check)
            except kv.InvalidInput:
                with pytest.raises(kv.InvalidInput):
                    log.extend(part)
                break
            if log.tokens.tolist() == tokenizer.encode_rendered(whole):
                with pytest.raises(kv.InvalidInput, match="nothing"):
                    log.extend(part)
                break
            log.extend(part)
            assert log.tokens.tolist() == tokenizer.encode_rendered(whole), (so_far, part)
            check_spans(log)
            done += len(part)


def check_spans(log: Log) -> None:
    end = 0
    for entry in log.conversation.entries:
        assert 0 <= entry.start <= entry.end <= len(log.tokens)
        assert end <= entry.end
        end = entry.end


@pytest.mark.parametrize("name", EVERY)
def test_parts_make_the_whole(tokenizer_of: Callable[[str], Tokenizer], name: str) -> None:
    check_growing(tokenizer_of(name), name, 2, seed=1, hostile=False)


@pytest.mark.parametrize("name", EVERY)
def test_hostile_parts_make_the_whole(tokenizer_of: Callable[[str], Tokenizer], name: str) -> None:
    check_growing(tokenizer_of(name), name, 2, seed=2, hostile=True)


@pytest.mark.soak
@pytest.mark.parametrize("name", EVERY)
def test_many_parts_make_the_whole(tokenizer_of: Callable[[str], Tokenizer], name: str, soak_count: int) -> None:
    check_growing(tokenizer_of(name), name, soak_count // 20, seed=3, hostile=False)
    check_growing(tokenizer_of(name), name, soak_count // 20, seed=4, hostile=True)


ENDS = {
    "headers": "<|eot_id|>",
    "instructions": "</s>",
    "prefixed": "</s>",
    "turns": "<end_of_turn>",
    "alternating": "</s>",
    "folded": "</s>",
}


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("channels", "folded")])
@pytest.mark.parametrize("ended", [True, False])
def test_replies_stay_token_for_token(tokenizer_of: Callable[[str], Tokenizer], name: str, ended: bool) -> None:
    log, texts = Log(tokenizer_of(name)), ["Yes, 21 degrees.", "Sure.\n\nOne\ntwo", "def f():\n    pass"]
    end = ENDS.get(name, "<|im_end|>") if ended and name != "roles" else ""
    replies = []
    for text in texts:
        log.extend([{"role": "user", "content": "What?"}])
        reply = log.reply(text)
        replies.append(reply)
        log.reply(end)
    log.extend([{"role": "user", "content": "The end."}])
    answers = [message for message in log.messages if message.role == "assistant"]
    assert [message.content for message in answers] == texts
    for message, reply in zip(answers, replies, strict=True):
        assert log.tokens[message.start : message.end] == reply
    whole = log.chat.render(checked_messages(log.messages), None, True, {}, 10, no_check).text
    assert bare(text_of(log)) == bare(whole)


def text_of(log: Log) -> str:
    return log.tokenizer.decode(log.tokens, skip_special=False)


def bare(text: str) -> str:
    """Without white space, which tokenizers and templates add to replies."""
    return "".join(text.split())


def test_a_reply_stays_where_only_the_opening_of_its_turn_is_rewritten(
    tokenizer_of: Callable[[str], Tokenizer],
) -> None:
    log = Log(tokenizer_of("documents"))
    log.extend([{"role": "user", "content": "Yes."}], {"think": False})
    assert text_of(log).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    reply = [log.tokenizer.encode(letter)[0] for letter in "Yes."]  # as no tokenizer would cut it
    log.tokens.extend(reply)
    assert log.extend([{"role": "user", "content": "And?"}]) > 0
    assert text_of(log).count("<think>") == 1
    answer = log.messages[1]
    assert log.tokens[answer.start : answer.end].tolist() == reply
    assert log.extend([{"role": "user", "content": "Well?"}], {"think": True}) > 0
    answer = log.messages[1]
    assert log.tokens[answer.start : answer.end].tolist() == reply


@pytest.mark.parametrize("written", ["\nYes.", "\n\nYes.", "\n \nYes.\n", " \n"])
def test_white_space_that_a_reply_begins_with_is_not_that_of_its_header(
    tokenizer_of: Callable[[str], Tokenizer], written: str
) -> None:
    """The template trims what was said, so that the header's newline and the reply spell the reply as it was made."""
    log = Log(tokenizer_of("turns"))
    log.extend([{"role": "user", "content": "Yes?"}])
    opening = log.tokens[:]
    reply = log.reply(written)
    assert log.extend([{"role": "user", "content": "And?"}]) == 0
    assert log.tokens[: len(opening) + len(reply)] == opening + reply
    answer = log.messages[1]
    assert (answer.start, answer.end) == (len(opening), len(opening) + len(reply))
    log.reply("Well.")
    assert log.extend([{"role": "user", "content": "Well?"}]) == 0


@pytest.mark.parametrize(
    ("name", "written", "stays"),
    [
        *(("thinking", written, True) for written in ("Yes.", "<b>Yes.</b>", "\nYes.", "\n<b>Yes.")),
        *(("documents", written, True) for written in ("Yes.", "<b>Yes.</b>")),
        *(("documents", written, False) for written in ("\nYes.", "\n<b>Yes.", "\n")),
    ],
)
def test_a_header_that_is_rewritten_keeps_its_white_space(
    tokenizer_of: Callable[[str], Tokenizer], name: str, written: str, stays: bool
) -> None:
    log = Log(tokenizer_of(name))
    log.extend([{"role": "user", "content": "Yes?"}], {"enable_thinking": False, "think": False})
    assert text_of(log).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    reply = [log.tokenizer.encode(letter)[0] for letter in written]  # as no tokenizer would cut it
    log.tokens.extend(reply)
    assert log.extend([{"role": "user", "content": "And?"}]) > 0
    answer = log.messages[1]
    header = log.tokenizer.encode("<|im_start|>assistant\n")
    if stays:
        assert log.tokens[answer.start - len(header) : answer.end].tolist() == header + reply
    else:
        variables = {"enable_thinking": False, "think": False}
        whole = log.chat.render(checked_messages(log.messages), None, True, variables, 10, no_check)
        assert log.tokens.tolist() == log.tokenizer.encode_rendered(whole)


def test_thoughts_that_the_prompt_opens_and_the_template_drops(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    log = Log(tokenizer_of("folded"))
    log.extend([{"role": "user", "content": "What?"}])
    log.reply("hm\n</think>\n\nYes.</s>")
    assert (log.messages[-1].reasoning, log.messages[-1].content) == ("hm", "Yes.")
    assert log.extend([{"role": "user", "content": "And?"}]) > 0
    assert bare(text_of(log)) == "<s><User>What?<Assistant>Yes.</s><User>And?<Assistant><think>"
    log.reply("so\n</think>\n\nNo.")
    log.extend([{"role": "user", "content": "Oh."}])
    assert [message.reasoning for message in log.messages] == [None, "hm", None, "so", None]
    assert "hm" not in text_of(log)


def test_a_reply_that_the_template_writes_more_around_stays(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    log = Log(tokenizer_of("channels"))
    log.extend([{"role": "user", "content": "What?"}])
    reply = log.reply("[final]Yes.")
    log.extend([{"role": "user", "content": "And?"}])
    turns = "What?<|im_end|><|im_start|>assistant[final]Yes.<|im_end|><|im_start|>user[]And?<|im_end|>"
    assert text_of(log).endswith(turns + "<|im_start|>assistant")
    assert log.tokens[log.messages[1].start : log.messages[1].end] == reply


CALL = {"name": "search", "arguments": {"query": "weather", "limit": 3}}
SPELLINGS = {
    "chatml": '<tool_call>\n{"name": "search", "arguments": {"query":"weather",  "limit":3}}\n</tool_call>',
    "thinking": "<think>\nhm\n</think>\n\n<tool_call>\n"
    '{"name": "search", "arguments": {"limit": 3, "query": "weather"}}\n</tool_call>',
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_calls_spelled_otherwise_than_the_template_does_stay(
    tokenizer_of: Callable[[str], Tokenizer], name: str
) -> None:
    log = Log(tokenizer_of(name))
    log.extend([{"role": "user", "content": "Weather?"}])
    reply = log.reply(SPELLINGS[name])
    log.reply("<|im_end|>")
    assert [(call.name, call.arguments) for call in log.messages[-1].calls] == [("search", CALL["arguments"])]
    assert log.extend([{"role": "tool", "content": "sunny"}]) == 0
    call = log.messages[1]
    assert log.tokens[call.start : call.end] == reply
    answer = log.reply("Sunny.<|im_end|>")
    rewritten = log.extend([{"role": "user", "content": "And?"}])
    if name == "chatml":
        assert rewritten == 0
        assert log.tokens[call.start : call.end] == reply
    else:
        text = log.tokenizer.decode(log.tokens, skip_special=False)
        assert rewritten > 0
        assert "hm" not in text
        assert log.messages[1].reasoning == "hm", "the conversation keeps what the template leaves out"
    assert log.messages[3].content == "Sunny."
    answer_at = log.messages[3]
    assert log.tokens[answer_at.start : answer_at.end] == answer[:-1]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_message_of_the_assistant_s_own_is_gone_on_with(
    tokenizer_of: Callable[[str], Tokenizer], name: str, at_once: bool
) -> None:
    log = Log(tokenizer_of(name))
    question, begun = {"role": "user", "content": "Well?"}, {"role": "assistant", "content": "It rains \n"}
    log.extend([question, begun], speaks=at_once)
    if not at_once:
        assert log.conversation.needs_turn_at(len(log.tokens))
        log.extend([], speaks=True)
    assert log.tokenizer.decode(log.tokens, skip_special=False).endswith("It rains")
    assert [message.content for message in log.messages] == ["Well?", "It rains"]
    begun_tokens = log.tokenizer.encode("It rains")
    log.tokens += array("i", log.tokenizer.encode("It rains in Oslo.")[len(begun_tokens) :])  # no text begins here
    assert log.messages[-1].content == "It rains in Oslo."
    log.extend([question])
    history = [question, {"role": "assistant", "content": "It rains in Oslo."}, question]
    whole = log.chat.render(history, None, True, {}, 10, no_check)
    assert log.tokenizer.decode(log.tokens, skip_special=False) == log.tokenizer.decode(
        log.tokenizer.encode_rendered(whole), skip_special=False
    )


@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_turn_is_opened_behind_a_system_s_message(tokenizer_of: Callable[[str], Tokenizer], name: str) -> None:
    log = Log(tokenizer_of(name))
    messages = [{"role": "user", "content": "Well?"}, {"role": "system", "content": "Be brief."}]
    try:
        log.extend(messages)
    except kv.InvalidInput:
        return  # its template has no system message there
    if log.conversation.needs_turn_at(len(log.tokens)):
        log.extend([], speaks=True)
    whole = log.chat.render(messages, None, True, {}, 10, no_check)
    assert log.tokens.tolist() == log.tokenizer.encode_rendered(whole)
    assert log.conversation.awaits_reply_at(len(log.tokens))

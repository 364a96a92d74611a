"""Conversations under templates of many styles: as transformers makes them, and no control token out of content."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentkv_runtime.text.tokenizer import Tokenizer

from .chat_styles import STYLES, Style, write_style

WORDS = (
    *("weather", "Oslo", "the", "two  spaces", "  ", "\n", "\n\n\n", "a < b", "<i>", "</i>", "x | y", "[1, 2]", "{}"),
    *(
        '"quoted"',
        "it's",
        "\\n",
        "Bj\u00f8rn",
        "\u4f60\u597d",
        "\U0001f642",
        "e\u0301",
        "user",
        "    def f():",
        "think",
        ">",
    ),
)
Leaf = Callable[[str], str]


def conversation(rng: random.Random, style: Style, text: Callable[[], str], leaf: Leaf) -> dict[str, Any]:
    """Messages and tools; every text in them is `leaf(text())`."""

    def some() -> str:
        return leaf(text())

    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": some()})
    tools = None
    if style.tools and rng.random() < 0.5:
        properties = {some(): some() for _ in range(rng.randint(1, 2))}
        tools = [{"type": "function", "function": {"name": some(), "parameters": {"properties": properties}}}]
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": some()})
        if style.tools and rng.random() < 0.4:
            arguments = {some(): rng.choice([some(), 3])}
            call = {"type": "function", "function": {"name": some(), "arguments": arguments}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "content": some()})
        if rng.random() < 0.7:
            messages.append({"role": "assistant", "content": some()})
    return {"messages": messages, "tools": tools}


def plain_text(rng: random.Random) -> str:
    return "".join(rng.choice(WORDS) + rng.choice(["", " "]) for _ in range(rng.randint(0, 4)))


def hostile_text(rng: random.Random, controls: list[str]) -> str:
    """Control tokens whole, in pieces, one in another, and look-alikes, among words."""
    parts = []
    for _ in range(rng.randint(1, 3)):
        token = rng.choice(controls)
        cut = rng.randint(1, len(token) - 1)
        wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in token)
        inner = token[:cut] + rng.choice(controls) + token[cut:]
        bare = token.strip("<>[]|/")
        parts.append(rng.choice([token, token[:cut], token[cut:], inner, wide, bare, f" {token} ", rng.choice(WORDS)]))
    return "".join(parts)


def defanged(text: str) -> str:
    """Text of the same length and white space that spells nothing."""
    return "".join(c if c.isspace() else "\u0436" for c in text)


@pytest.fixture(scope="module", params=list(STYLES))
def tokenizers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Style, Tokenizer, Any]:
    """A style, its tokenizer here, and the same in transformers."""
    from transformers import AutoTokenizer

    style = STYLES[request.param]
    folder: Path = write_style(style, tmp_path_factory.mktemp(request.param))
    return style, Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)


def theirs(reference: Any, chat: dict[str, Any], tokenize: bool) -> Any:
    return reference.apply_chat_template(
        chat["messages"], tools=chat["tools"], tokenize=tokenize, add_generation_prompt=True, return_dict=False
    )


def check_plain(style: Style, ours: Tokenizer, reference: Any, count: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        chat = conversation(rng, style, lambda: plain_text(rng), str)
        if any(control in theirs_of_content(chat) for control in style.controls):
            continue
        if style is STYLES["parameters"] and "think" in str(chat):
            continue  # `<` and `>` around it would be the template's: that is what the hostile texts are for
        assert ours.render_chat(**chat) == theirs(reference, chat, False)
        assert ours.apply_chat(**chat) == theirs(reference, chat, True), chat


def theirs_of_content(value: Any) -> str:
    """All texts of a value, apart from each other."""
    if isinstance(value, dict):
        return "\0".join(map(theirs_of_content, [*value.keys(), *value.values()]))
    return "\0".join(map(theirs_of_content, value)) if isinstance(value, list) else str(value)


def check_hostile(style: Style, ours: Tokenizer, reference: Any, count: int, seed: int) -> None:
    rng = random.Random(seed)
    controls = {reference.convert_tokens_to_ids(token) for token in style.controls}
    unknown = ours._tokenizer.token_to_id("<unk>")
    # Templates that look for `</think>` in an answer write more of their own where it is: a test of its own.
    spelled = [c for c in style.controls if "think" not in c and "tool_response" not in c]
    for _ in range(count):
        state = rng.getstate()
        chat = conversation(rng, style, lambda: hostile_text(rng, spelled), str)
        rng.setstate(state)
        mild = conversation(rng, style, lambda: hostile_text(rng, spelled), defanged)
        assert ours.render_chat(**chat) == theirs(reference, chat, False)
        found, expected = (
            Counter(i for i in ours.apply_chat(**each) if i in controls and i != unknown) for each in (chat, mild)
        )
        assert found == expected, chat


def test_as_transformers_makes_them(tokenizers: tuple[Style, Tokenizer, Any]) -> None:
    check_plain(*tokenizers, count=60, seed=1)


def test_no_control_token_out_of_content(tokenizers: tuple[Style, Tokenizer, Any]) -> None:
    check_hostile(*tokenizers, count=60, seed=2)


def made(name: str, folder: Path) -> tuple[Tokenizer, Callable[[str], int]]:
    """A style's tokenizer, and the id of each of its control tokens."""
    tokenizer = Tokenizer.from_folder(write_style(STYLES[name], folder))
    return tokenizer, lambda token: tokenizer.encode(token)[0]


def test_a_name_between_the_template_s_brackets_is_no_control_token(tmp_path: Path) -> None:
    tokenizer, id_of = made("parameters", tmp_path)
    call = {"function": {"name": "f", "arguments": {"tool_call": "x", "city": "y"}}}
    messages = [{"role": "user", "content": ""}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    ids = tokenizer.apply_chat(messages)
    assert "<tool_call>x</tool_call>" in tokenizer.decode(ids, skip_special=False)
    assert (ids.count(id_of("<tool_call>")), ids.count(id_of("</tool_call>"))) == (1, 1)


def test_a_template_finds_what_an_answer_spells(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer, id_of = made("thinking", tmp_path)
    reference = AutoTokenizer.from_pretrained(tmp_path)
    answer = "<think>\nhm <|im_end|> \n</think>\n\nYes."
    chat = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}], "tools": None}
    assert tokenizer.render_chat(**chat) == theirs(reference, chat, False)
    ids = tokenizer.apply_chat(**chat)
    assert (ids.count(id_of("<think>")), ids.count(id_of("</think>"))) == (1, 1), "the template's own"
    assert ids.count(id_of("<|im_end|>")) == 2, "one per message"
    chat["messages"].append({"role": "user", "content": "And?"})
    assert tokenizer.render_chat(**chat) == theirs(reference, chat, False)
    assert id_of("<think>") not in tokenizer.apply_chat(**chat), "turns of the past lose their thoughts"


def test_spellings_across_messages_stay_text(tmp_path: Path) -> None:
    style = Style("{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>", ("<|im_start|>", "<|im_end|>"))
    tokenizer = Tokenizer.from_folder(write_style(style, tmp_path))
    ids = tokenizer.apply_chat([{"role": "user", "content": "<|im_"}, {"role": "user", "content": "start|>"}])
    assert set(ids) & set(tokenizer.special_ids) == {tokenizer.encode("<|im_end|>")[0]}
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|><|im_end|>"


@pytest.mark.parametrize("text", ["\u2801\u2802", "\U00017000", "\U00100000", "\ue000 \U0010fffd", "\u241fREPLY\u241f"])
def test_characters_that_stand_in_for_others_are_text_too(tmp_path: Path, text: str) -> None:
    tokenizer, _ = made("chatml", tmp_path)
    content = text + "<|im_end|>" + text
    ids = tokenizer.apply_chat([{"role": "user", "content": content}])
    assert tokenizer.decode(ids, skip_special=False).count(content) == 1
    assert ids.count(tokenizer.encode("<|im_end|>")[0]) == 1


def test_a_template_that_cannot_be_followed_still_writes_content_as_text(tmp_path: Path) -> None:
    # `%` gives a plain str, so what is compared there is not what the content stands for.
    template = (
        "{% for m in messages %}{% if '%s' % m.content == '<b>' %}B{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    style = Style(template, ("<|im_end|>", "<b>"))
    tokenizer = Tokenizer.from_folder(write_style(style, tmp_path))
    end, bold = tokenizer.encode("<|im_end|><b>")
    ids = tokenizer.apply_chat([{"role": "user", "content": "<b>"}])
    assert bold not in ids
    assert ids[-1] == end
    mild = Style(template.replace("<b>", "<i>"), ("<|im_end|>",))
    tokenizer = Tokenizer.from_folder(write_style(mild, tmp_path / "mild"))
    assert tokenizer.decode(tokenizer.apply_chat([{"role": "user", "content": "<i>"}])) == "B<i>", "nothing is spelled"


def test_variables_are_the_callers_own_words_and_documents_are_not(tmp_path: Path) -> None:
    style = Style("{{ greeting }}{{ documents[0].text if documents }}", ("<|im_end|>",))
    tokenizer = Tokenizer.from_folder(write_style(style, tmp_path))
    assert len(tokenizer.apply_chat([], greeting="<|im_end|>")) == 1
    assert len(tokenizer.apply_chat([], documents=[{"text": "<|im_end|>"}])) > 1


@pytest.mark.soak
def test_many_conversations(tokenizers: tuple[Style, Tokenizer, Any], soak_count: int) -> None:
    check_plain(*tokenizers, count=soak_count, seed=3)
    check_hostile(*tokenizers, count=soak_count, seed=4)

"""The nano model's data: pools that never meet, conversations that hold together, a tokenizer that loses nothing."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.nano import descriptions, extraction, pools, tools
from examples.nano.data import PLAIN, WIDER, Conversation, Mix, conversation, lesson
from examples.nano.desk import Desk
from examples.nano.tools import Call

COUNT = 300
MAKERS = (pools.name, pools.word, pools.integer, pools.number, pools.clock, pools.code)


def sample(pool: pools.Pool, seed: int = 0, mix: Mix = WIDER) -> list[Conversation]:
    rng = random.Random(seed)
    return [conversation(rng, pool, mix=mix) for _ in range(COUNT)]


@pytest.mark.parametrize("make", MAKERS)
def test_pools_are_disjoint(make) -> None:
    rng = random.Random(1)
    train = {str(make(rng, "train")) for _ in range(400)}
    held_out = {str(make(rng, "eval")) for _ in range(400)}
    assert not train & held_out


def test_held_out_arguments_never_occur_in_training() -> None:
    def arguments(pool: pools.Pool) -> set[str]:
        calls = [call for talk in sample(pool) for turn in talk.rounds for made in turn.turns for call in made]
        open_keys = ("city", "name", "product", "query", "origin", "word", "package", "expression", "item", "minutes")
        return {str(call.arguments[key]) for call in calls for key in open_keys if key in call.arguments}

    train, held_out = arguments("train"), arguments("eval")
    assert len(train) > 100
    assert len(held_out) > 100
    assert not train & held_out


def test_results_stay_in_the_pool_of_their_question() -> None:
    for pool in ("train", "eval"):
        for talk in sample(pool):
            for turn in talk.rounds:
                for result in (result for results in turn.results for result in results if isinstance(result, dict)):
                    for key in ("city", "train", "flight", "departs", "count"):
                        for part in str(result.get(key, "")).split():
                            assert pools.pool_of(part) == pool, (key, result)


def test_recorded_results_are_what_the_tools_return() -> None:
    ran = 0
    for talk in sample("train"):
        for turn in talk.rounds:
            for calls, results in zip(turn.turns, turn.results, strict=True):
                for call, result in zip(calls, results, strict=True):
                    if isinstance(result, dict) and "error" not in result:
                        assert talk.desk.execute(call) == result
                        ran += 1
    assert ran > COUNT


def test_messages_parse_back_into_their_calls() -> None:
    for talk in sample("eval"):
        for turn in talk.rounds:
            said = [m["content"] for m in turn.messages() if m["role"] == "assistant"]
            assert [tools.parse_calls(text) for text in said] == [*turn.turns, []]
            assert said[-1] == turn.answer


def test_every_number_of_calls_and_every_tool_occurs() -> None:
    talks = sample("train")
    assert {turn.calls for talk in talks for turn in talk.rounds} >= {0, 1, 2, 3}
    used = {
        name
        for talk in talks
        for turn in talk.rounds
        for calls in turn.turns
        for call in calls
        for name in talk.desk.tools
        if talk.desk.shown(name) == call.name
    }
    assert used == set(tools.TOOLS)
    assert len(used) >= 12


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
def test_the_last_round_needs_as_many_calls_as_asked(calls: int) -> None:
    rng = random.Random(2)
    for _ in range(50):
        assert conversation(rng, "eval", calls=calls, mix=PLAIN).rounds[-1].calls == calls


def test_a_failed_call_is_told_by_its_name() -> None:
    rng = random.Random(3)
    for _ in range(50):
        turn = conversation(rng, "train", calls=1, rounds=1, mix=replace(PLAIN, errors=1)).rounds[0]
        error = turn.results[0][0]["error"]
        assert turn.answer == f"Sorry, the {turn.turns[0][0].name} tool failed: {error}."


def test_a_call_that_is_to_be_made_again_is_made_with_what_the_tool_named() -> None:
    rng = random.Random(5)
    renamed = 0
    for _ in range(100):
        turn = conversation(rng, "train", calls=1, rounds=1, mix=replace(PLAIN, retries=1)).rounds[0]
        for (call,), (result,), (following,) in zip(turn.turns, turn.results, turn.turns[1:], strict=False):
            changed = {key: value for key, value in following.arguments.items() if value != call.arguments[key]}
            assert following.name == call.name
            assert all(str(value) in result["error"] for value in changed.values())
            assert changed or "try again" in result["error"]
            renamed += bool(changed)
        last = turn.results[-1][0]
        assert ("error" in last) == turn.answer.startswith("Sorry")
    assert renamed > 10


def test_typed_answers_hold_what_was_said() -> None:
    rng = random.Random(6)
    read = 0
    for _ in range(200):
        turn = conversation(rng, "eval", calls=0, rounds=1, mix=replace(PLAIN, typed=1)).rounds[0]
        if not turn.answer.startswith("{"):
            assert turn.answer in turn.question  # one of the words to choose from
            continue
        for key, value in json.loads(turn.answer).items():
            assert f'"{key}"' in turn.question
            for part in _leaves(value):
                assert part is None or isinstance(part, bool) or str(part).lower() in turn.question.lower()
                read += 1
    assert read > 200


def _leaves(value: object) -> list[object]:
    if isinstance(value, list | dict):
        return [leaf for part in (value.values() if isinstance(value, dict) else value) for leaf in _leaves(part)]
    return [value]


def test_a_series_asks_all_its_texts_for_the_same_fields() -> None:
    rng = random.Random(7)
    several = 0
    for _ in range(200):
        instructions, asked = extraction.series(rng, "train", 4)
        assert len({tuple(json.loads(answer)) for _, answer in asked}) == 1
        assert all(f'"{key}"' in instructions for key in json.loads(asked[0][1]))
        several += len(asked) > 1
    assert several > 50


def test_typed_results_come_from_the_call() -> None:
    rng = random.Random(8)
    shaped = 0
    while shaped < 100:
        turn = conversation(rng, "eval", calls=1, rounds=1, mix=replace(PLAIN, typed=1)).rounds[0]
        if turn.kind != "typed call":
            continue
        shaped += 1
        known = {**turn.turns[0][0].arguments, **turn.results[0][0]}
        answer = turn.answer if turn.answer in ("yes", "no") else json.loads(turn.answer)
        if isinstance(answer, dict):
            assert answer == {key: known[key] for key in answer}
        else:
            assert answer in ("yes", "no", known.get("result"))


def test_an_expert_is_asked_what_the_user_asked() -> None:
    asked = 0
    for talk in sample("train", mix=replace(PLAIN, expert=1)):
        for turn in talk.rounds:
            if turn.kind == "expert":
                ((call,),), ((result,),) = turn.turns, turn.results
                assert (call.arguments, result) == ({"task": turn.question}, turn.answer)
                assert call.name in [tool["function"]["name"] for tool in talk.tools()]
                asked += 1
    assert asked > 30


def test_free_words_describe_tools_and_their_names_stay_apart() -> None:
    talks = sample("train", mix=replace(PLAIN, describe=1, rename=1))
    words = {tool["function"]["description"] for talk in talks for tool in talk.tools()}
    assert words >= {words for free in descriptions.FREE.values() for words in free}
    assert set(descriptions.FREE) == set(tools.TOOLS)
    for talk in talks:
        names = [tool["function"]["name"] for tool in talk.tools()]
        assert len(set(names)) == len(names)


def test_same_seed_same_conversations() -> None:
    assert [t.messages() for t in sample("train", 7)] == [t.messages() for t in sample("train", 7)]
    assert [t.messages() for t in sample("train", 7)] != [t.messages() for t in sample("train", 8)]


def test_lessons_are_answered_from_what_was_said() -> None:
    rng = random.Random(4)
    for _ in range(50):
        for turn in lesson(rng).rounds:
            assert turn.answer
            assert not turn.turns


@pytest.mark.parametrize(
    ("expression", "result"),
    [("2 + 3", 5), ("(2 + 3) * 4", 20), ("7 / 2", 3.5), ("-2 * 3", -6), ("1.5 + 1.5", 3)],
)
def test_calculator(expression: str, result: float) -> None:
    assert tools.execute(tools.Call("calculator", {"expression": expression})) == {"result": result}


@pytest.mark.parametrize(
    "call",
    [
        tools.Call("calculator", {"expression": "__import__('os')"}),
        tools.Call("calculator", {"expression": "2 ** 9999"}),
        tools.Call("calculator", {"expression": "1 / 0"}),
        tools.Call("calculator", {"expression": "1 +"}),
        tools.Call("convert", {"value": 1, "unit": "kg", "to": "km"}),
        tools.Call("weather", {"town": "Oslo"}),
        tools.Call("nothing", {}),
    ],
)
def test_bad_calls_come_back_as_errors(call: tools.Call) -> None:
    assert "error" in tools.execute(call)


def test_a_truncated_call_is_never_parsed() -> None:
    whole = tools.Call("weather", {"city": "Oslo"}).text()
    assert len(tools.parse_calls(whole)) == 1
    assert all(not tools.parse_calls(whole[:end]) for end in range(len(whole)))


def test_a_desk_runs_only_its_own_tools() -> None:
    desk = Desk(("weather",), {"weather": "weather_x"})
    assert "temp" in desk.execute(tools.Call("weather_x", {"city": "Oslo"}))
    assert "error" in desk.execute(tools.Call("weather", {"city": "Oslo"}))
    assert "error" in desk.execute(tools.Call("clock", {"city": "Oslo"}))


@pytest.fixture(scope="module")
def bpe():
    pytest.importorskip("transformers")
    from examples.nano import tokenizer

    return tokenizer, tokenizer.build(size=300)


def test_tokenizer_round_trips(bpe) -> None:
    module, built = bpe
    texts = [module.render(talk) for talk in sample("eval")[:50]]
    texts += ["naïve café — 東京 🙂\n\ttabs  and   spaces", '{"a": [1, -2.5e3]}', "", " leading and trailing "]
    for text in texts:
        ids = built.encode(text, add_special_tokens=False)
        assert built.decode(ids, skip_special_tokens=False) == text


def test_marks_are_single_tokens_and_digits_stand_alone(bpe) -> None:
    module, built = bpe
    for mark in (*module.CONTROL, *module.TAGS):
        assert len(built.encode(mark, add_special_tokens=False)) == 1
    assert built.tokenize("4821") == ["4", "8", "2", "1"]
    assert len(built) == module.VOCAB_SIZE
    assert module.VOCAB_SIZE % 64 == 0
    shown = built.decode(built.encode("<|im_start|><tool_call>x</tool_call><|im_end|>"), skip_special_tokens=True)
    assert shown == "<tool_call>x</tool_call>"


def test_a_name_is_the_same_tokens_wherever_it_stands(bpe) -> None:
    _, built = bpe
    spelled = built.tokenize("Kolvarin")
    for text in ('{"city": "Kolvarin"}', "weather in Kolvarin?", "Kolvarin.", "Oslo, Kolvarin and Rome"):
        tokens = built.tokenize(text)
        assert any(tokens[i : i + len(spelled)] == spelled for i in range(len(tokens))), text


def test_template_renders_what_training_renders(bpe) -> None:
    module, built = bpe
    for talk in sample("train")[:30]:
        text = built.apply_chat_template(talk.messages(), tools=talk.tools(), tokenize=False)
        assert text == module.render(talk)
    calls = [
        {"type": "function", "function": {"name": "clock", "arguments": {"city": name}}} for name in ("Oslo", "Rome")
    ]
    spelled = "\n".join(Call("clock", call["function"]["arguments"]).text() for call in calls)
    for content in (None, "", "Well."):
        said = {"role": "assistant", "content": content, "tool_calls": calls}
        plain = {"role": "assistant", "content": f"{content}\n{spelled}" if content else spelled}
        one, other = (built.apply_chat_template([plain_or_not], tokenize=False) for plain_or_not in (said, plain))
        assert one == other
    asked = [{"role": "user", "content": "Hi"}]
    text = built.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    bare = [{"role": "user", "content": "Hi"}, {"role": "tool", "content": '{"ok": true}'}]
    assert '<tool_response>{"ok": true}</tool_response>' in built.apply_chat_template(bare, tokenize=False)


@pytest.mark.parametrize("trim", [False, True])
def test_template_needs_nothing_but_a_sandboxed_jinja(bpe, trim: bool) -> None:
    module, _ = bpe
    sandbox = pytest.importorskip("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=trim, lstrip_blocks=trim)
    template = environment.from_string(module.CHAT_TEMPLATE)
    for talk in sample("train")[:10]:
        assert template.render(messages=talk.messages(), tools=talk.tools()) == module.render(talk)
    assert template.render(messages=[{"role": "user", "content": "Hi"}]).count("<|im_start|>") == 2

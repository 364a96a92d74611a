"""Files of cases: what is read, and how the rest is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import agentkv as kv
from agentkv.evaluation.bfcl import read_bfcl
from agentkv.evaluation.cases import chosen, read_cases
from agentkv.evaluation.worlds import WorldData
from tests.docs.blocks import DOCS, blocks_of

from .conftest import WEATHER, document, in_world, made


def written(path: Path, *documents: Any) -> Path:
    file = path / "cases.jsonl"
    file.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in documents))
    return file


def test_a_file_has_a_case_on_each_line(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
    spoken = {name: part for name, part in document(id="c", messages=messages).items() if name != "question"}
    one, two, three = read_cases(written(tmp_path, document(), "", in_world(id="b"), spoken))
    assert (one.messages, one.instructions) == ([{"role": "user", "content": "Weather in Oslo?"}], "")
    assert two.world is not None
    assert (three.instructions, three.conversation) == ("Be brief.", messages[1:])


def without(case: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in case.items() if key != name}


HOSTILE = {
    "no JSON": ("{", "Invalid JSON"),
    "deep JSON": ("[" * 100_000, "Invalid JSON"),
    "no UTF-8": ("\udcff", "Invalid JSON"),
    "no object": ("[]", "Input should be an object"),
    "a typo": (document(expcted={}), "expcted: Extra inputs"),
    "a typo of the question": ({**without(document(), "question"), "qestion": "x"}, "line 2: qestion: Extra inputs"),
    "no question": (without(document(), "question"), "messages: Field required"),
    "no messages": (without(document(messages=[]), "question"), "messages: List should have at least 1"),
    "a question that is no text": (document(question=3), "content"),
    "an assistant's end": (
        without(document(messages=[{"role": "assistant", "content": "Hi"}]), "question"),
        "end with a user's",
    ),
    "a second system's": (
        without(
            document(messages=[{"role": "system", "content": "a"}, {"role": "system", "content": "b"}]), "question"
        ),
        "the first message alone may be the system's",
    ),
    "a message without role": (without(document(messages=[{"content": "Hi"}]), "question"), "role"),
    "no tools": (document(tools=[]), "either tools"),
    "tools and a world": (document(world={"calculator": True}), "either tools"),
    "two tools of one name": (document(tools=[WEATHER, WEATHER]), "two tools have one name"),
    "a name of a tool": (document(tools=[{**WEATHER, "name": "a b"}]), "tools.0.name"),
    "parameters that are no object's": (document(tools=[{**WEATHER, "parameters": {}}]), "type object"),
    "nothing expected": (document(expected={}), "expected: it says nothing"),
    "two names in one call": (document(expected={"calls": [{"a": {}, "b": {}}]}), "expected.calls.0"),
    "values that are no list": (document(expected={"calls": [{"a": {"b": 1}}]}), "expected.calls.0.a.b"),
    "a solution without a world": (document(expected={"solution": []}), "needs a world"),
    "an empty world": (in_world(world={}), "the world has no tools"),
    "a fault of no tool": (
        in_world(world={"calculator": True, "faults": [{"tool": "x", "says": "no"}]}),
        "a fault is of x; the tools of the world are calculate",
    ),
    "a solution that fails": (
        in_world(expected={"solution": [["get_weather", {"city": "Rome"}]]}),
        "the solution does not work: there is no station in Rome",
    ),
    "a solution of no tool": (in_world(expected={"solution": [["x", {}]]}), "unknown tool x"),
    "a solution of bad arguments": (in_world(expected={"solution": [["get_weather", {}]]}), "bad arguments"),
    "nothing to say": (in_world(expected={"says": [[]]}), "expected.says.0"),
}


@pytest.mark.parametrize(("line", "why"), HOSTILE.values(), ids=HOSTILE)
def test_a_line_that_is_no_case_is_named(tmp_path: Path, line: Any, why: str) -> None:
    file = tmp_path / "cases.jsonl"
    text = line if isinstance(line, str) else json.dumps(line)
    file.write_bytes(json.dumps(document(id="first")).encode() + b"\n" + text.encode(errors="surrogateescape"))
    with pytest.raises(kv.InvalidInput, match=r"cases\.jsonl, line 2: ") as caught:
        read_cases(file)
    assert why in str(caught.value)


ONE, OTHER = document(), document(id="b")
FORMS = {
    "a line each": (f"{json.dumps(ONE)}\n{json.dumps(OTHER)}", "ab"),
    "blank lines": (f"\n\n{json.dumps(ONE)}\r\n\n{json.dumps(OTHER)}\n\n", "ab"),
    "an array": (json.dumps([ONE, OTHER]), "ab"),
    "an array over lines": (json.dumps([ONE, OTHER], indent=2), "ab"),
    "one over lines": (json.dumps(OTHER, indent=2), "b"),
    "one": (json.dumps(OTHER), "b"),
}


@pytest.mark.parametrize(("text", "ids"), FORMS.values(), ids=FORMS)
def test_a_file_has_cases_in_any_usual_form(tmp_path: Path, text: str, ids: str) -> None:
    file = tmp_path / "cases.json"
    file.write_text(text)
    assert [case.id for case in read_cases(file)] == [*ids]


@pytest.mark.parametrize("more", [{}, {"strict": True}], ids=["bare", "strict"])
def test_tools_in_the_form_of_openai_are_tools(tmp_path: Path, more: dict[str, Any]) -> None:
    [case] = read_cases(written(tmp_path, document(tools=[{"type": "function", "function": {**WEATHER, **more}}])))
    assert case.tools == made(document()).tools


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (json.dumps([document(), document(id="b", tools=[])], indent=2), "case 2: .*either tools"),
        (json.dumps(document(), indent=2)[:-1], "line 1: Invalid JSON.*one case a line as JSON, or all"),
        (json.dumps([document(), document()]), "case 2: there is a case 'a' before"),
        ("[]", "has no cases; write one case a line"),
        ("3", "line 1: Input should be a"),
    ],
)
def test_other_files_say_which_form_is_read(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "cases.json"
    file.write_text(text)
    with pytest.raises(kv.InvalidInput, match=why):
        read_cases(file)


def test_ids_name_cases(tmp_path: Path) -> None:
    with pytest.raises(kv.InvalidInput, match="line 2: there is a case 'a' before"):
        read_cases(written(tmp_path, document(), document()))


def test_a_file_without_cases(tmp_path: Path) -> None:
    with pytest.raises(kv.InvalidInput, match="has no cases"):
        read_cases(written(tmp_path, ""))


@pytest.mark.parametrize(
    ("n", "places"), [(1, [0]), (2, [0, 3]), (3, [0, 2, 4]), (7, list(range(7))), (9, list(range(7)))]
)
def test_cases_are_chosen_at_even_distances(n: int, places: list[int]) -> None:
    cases = [made(document(id=str(at), category=category)) for at in range(7) for category in ("x", "y")]
    assert [(case.category, int(case.id)) for case in chosen(cases, ["y"], n)] == [("y", place) for place in places]
    assert len(chosen(cases, [], n)) == 2 * len(places)


def test_a_category_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(kv.InvalidInput, match="there is no category 'z' here; there are weather"):
        chosen([made(document())], ["z"], 1)


def test_bfcl(bfcl: Path) -> None:
    one, two, *others = read_bfcl(bfcl, ["simple_python", "irrelevance"], 2)
    assert [case.id for case in (one, two, *others)] == [
        *("simple_python_0", "simple_python_2"),
        *("irrelevance_0", "irrelevance_2"),
    ]
    assert two.expected.calls == [{"sky_weather": {"city": ["2"], "days": [1, ""]}}]
    assert others[0].expected.called is False
    [tool] = one.tools
    assert tool.name == "sky_weather"
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "number"},
            "hours": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["city"],
    }


def test_cases_of_bfcl_without_functions_are_left_out(bfcl: Path) -> None:
    [file] = bfcl.rglob("data/BFCL_v4_irrelevance.json")
    asked = [json.loads(line) for line in file.read_text().splitlines()]
    asked[1]["function"] = []
    file.with_name("BFCL_v4_live_irrelevance.json").write_text("\n".join(map(json.dumps, asked)))
    assert [case.id[-1] for case in read_bfcl(bfcl, ["live_irrelevance"], 9)] == ["0", "2", "3", "4"]


def test_folders_that_are_not_bfcl(bfcl: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(kv.InvalidInput, match="no cases of BFCL; `pip download"):
        read_bfcl(tmp_path_factory.mktemp("empty"), [], 1)
    with pytest.raises(kv.InvalidInput, match="no category 'simple' here; there are simple_python, multiple"):
        read_bfcl(bfcl, ["simple"], 1)
    with pytest.raises(kv.InvalidInput, match=r"BFCL_v4_multiple\.json is missing"):
        read_bfcl(bfcl, ["multiple"], 1)
    [file] = bfcl.rglob("data/BFCL_v4_simple_python.json")
    for damage in ('{"id": 1}', "{", '{"id": "simple_python_0", "question": [], "function": [{}]}', "[]"):
        file.write_text(damage)
        with pytest.raises(kv.InvalidInput, match="is not as BFCL's version 4 has it"):
            read_bfcl(bfcl, ["simple_python"], 1)


def test_the_cases_that_the_docs_show_are_cases() -> None:
    page = DOCS / "eval.md"
    shown = [json.loads(block.code) for block in blocks_of(page) if block.language == "json"]
    assert [made(case).world is None for case in shown] == [True, False]
    parts = {part for part in WorldData.model_fields if f'`"{part}": ' in page.read_text(encoding="utf-8")}
    assert parts == set(WorldData.model_fields)

"""`agentkv chat` as a person has it, at a pseudo-terminal."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote

import pytest

from tests.waiting import NEVER

from .chats import ANSWER, SitDown, tool_file
from .person import CTRL_C, CTRL_D


def test_it_answers_with_tools_and_leaves(sit_down: SitDown) -> None:
    person = sit_down()
    person.say("Who are you?")
    person.sees(ANSWER)
    person.prompted()
    person.say("What is 7 * 8?")
    person.sees("7 * 8 = 56.")
    assert "-> calculator(expression='7 * 8')" in person.text
    assert '<- calculator: {"result": 56}' in person.text
    person.until(lambda: any(line.startswith(" nano | main: ") for line in person.lines))
    person.type(CTRL_C)
    person.sees("Ctrl-D or /quit leaves")
    person.type(CTRL_D)
    assert person.ends() == 0


def test_branches_are_forked_switched_and_rolled_back(sit_down: SitDown) -> None:
    person = sit_down()
    person.say("Who are you?")
    person.sees(ANSWER)
    for line, said in (
        ("/fork idea", "on idea now, a fork of main"),
        ("Thank you!", "You are welcome."),
        ("/switch main", f"on main now: {ANSWER}"),
        ("/fork", "on fork-1 now"),
        ("/branches", "*   fork-1"),
        ("/switch idea", "on idea now: You are welcome."),
        ("/rollback 2", "took back all from 'Who are you?' on"),
        ("/rollback", "error: nothing was asked on this branch"),
        ("/fork idea", "error: there is a branch 'idea' already"),
        ("/switch nowhere", "error: there is no branch 'nowhere'"),
        ("/close fork-1", "closed fork-1"),
        ("/nonsense", "error: there is no /nonsense"),
        ("/save my talk.kv", "usage: /save FILE; a name with blanks needs quotes"),
        ("/fork 'a", "error: /fork 'a: No closing quotation"),
        ("/stats", "not read again"),
    ):
        person.asks(line, said)


def test_tools_of_a_file_are_turned_on_and_off(sit_down: SitDown, tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(
        "import agentkv as kv\n\n@kv.tool\ndef weather(city: str) -> str:\n    'weather in a city'\n    return 'hail'\n"
    )
    person = sit_down("--tools", str(file))
    for line, said in (
        ("/tools", "on   weather: weather in a city"),
        ("What is the weather in Tolvik?", "<- weather: hail"),
        ("/tools off weather", "weather is off"),
        ("/tools", "off  weather"),
        ("/tools off rain", "error: there is no tool 'rain'"),
        ("/system You are Nano.", "the system prompt is set"),
        ("/system", "You are Nano."),
    ):
        person.asks(line, said)


def test_branches_are_saved_and_gone_on_with(sit_down: SitDown, tmp_path: Path) -> None:
    file = tmp_path / "talk.kv"
    person = sit_down()
    person.say("Who are you?")
    person.sees(ANSWER)
    person.prompted()
    person.say("/fork kept")
    person.prompted()
    person.say(f"/save {quote(str(file))}")
    person.sees("saved 2 branches")
    person.type(CTRL_D)
    assert person.ends() == 0
    other = sit_down("--load", str(file))
    other.say("/branches")
    other.sees("*   kept")
    other.prompted()
    other.say("Thank you!")
    other.sees("You are welcome.")
    other.prompted()
    other.say(f"/load {quote(str(tmp_path / 'none.kv'))}")
    other.sees("error: ")
    other.prompted()
    other.say("/save /proc/none/talk.kv")
    other.until(lambda: other.text.count("error: ") == 2)


def test_a_tree_is_saved_with_the_tools_that_are_on(sit_down: SitDown, tmp_path: Path) -> None:
    file, tools = tmp_path / "talk.kv", tool_file(tmp_path, "return 'hail'")
    person = sit_down("--tools", tools)
    for line, said in (
        ("/fork kid", "on kid now"),
        ("/tools off calculator", "calculator is off"),
        ("/switch main", "on main now"),
        ("/tools", "on   calculator"),  # tools are a branch's own
        ("/switch kid", "on kid now: You are Nano"),
        (f"/save {quote(str(file))}", "saved 2 branches"),
    ):
        person.say(line)
        person.sees(said)
        person.prompted()
    person.type(CTRL_D)
    assert person.ends() == 0
    other = sit_down("--load", str(file))
    other.sees("loaded main, kid; on kid now")
    other.sees("tools that are not here: weather (--tools FILE.py)")
    for line, said in (
        ("/tools", "off  calculator"),
        ("/branches", "*   kid"),
        (f"/load {quote(str(file))}", "loaded main-1, kid-1; on kid-1 now"),
        ("/switch main-1", "on main-1 now"),
        ("/tools", "on   calculator"),
    ):
        other.say(line)
        other.sees(said)
        other.prompted()


def test_a_conversation_too_long_to_be_read_again_loses_its_oldest(sit_down: SitDown) -> None:
    person = sit_down("--capacity", "600")
    for n in range(10):
        person.say(f"What is {n} * 12?")
        person.sees(f"{n} * 12 = {12 * n}.")
        person.prompted()
    assert re.search(r"\(too long: its oldest [0-9]+ tokens are forgotten; --capacity\)", person.text)
    person.say("/tools off calculator")
    person.sees("calculator is off; its oldest ")
    person.sees("--capacity)")
    person.prompted()
    person.say("Who are you?")
    person.sees(ANSWER)


def test_a_cut_answer_names_the_option(sit_down: SitDown) -> None:
    person = sit_down("--max-tokens", "2")
    person.say("Who are you?")
    person.sees("(--max-tokens)")


def test_a_tool_that_never_returns_keeps_nobody_from_leaving(sit_down: SitDown, tmp_path: Path) -> None:
    person = sit_down("--tools", tool_file(tmp_path, f"time.sleep({NEVER})"))
    person.say("What is the weather in Tolvik?")
    person.sees("-> weather(city='Tolvik')")
    person.type(CTRL_C)
    person.sees("(stopped")
    person.prompted()
    person.type(CTRL_D)
    assert person.ends() == 0
    assert "Traceback" not in person.text


@pytest.mark.parametrize("body", ["sys.exit(3)", "raise KeyboardInterrupt"])
def test_a_tool_that_would_end_the_program_has_failed(sit_down: SitDown, tmp_path: Path, body: str) -> None:
    person = sit_down("--tools", tool_file(tmp_path, body))
    person.say("What is the weather in Tolvik?")
    person.sees('<- weather: {"error": "RuntimeError: it raised')
    person.prompted()
    person.say("Who are you?")
    person.sees(ANSWER)


def test_tools_that_ask_first_are_decided_on(sit_down: SitDown, tmp_path: Path) -> None:
    person = sit_down("--tools", tool_file(tmp_path, "return 'hail'", "(approve=True)"))
    person.say("What is the weather in Tolvik?")
    person.sees("weather(city='Tolvik') asks first: y runs it, any other key does not")
    person.type("y")
    person.sees("<- weather: hail")
    person.prompted()
    person.say("What is the weather in Brasno?")
    person.sees("weather(city='Brasno') asks first")
    person.type("n")
    person.sees('<- weather: {"error": "denied: it was not approved"}')
    person.prompted()
    person.say("What is the weather in Oslo?")
    person.sees("weather(city='Oslo') asks first")
    person.type(CTRL_C)
    person.sees("(stopped")
    person.prompted()


def test_what_cannot_be_done_is_one_line(sit_down: SitDown) -> None:
    person = sit_down("--capacity", "300")
    for line, said in (
        ("/save ~nosuchuser/x", "error: FILE is str '~nosuchuser/x'"),
        ("/load ~nosuchuser/x", "home directory"),
        (f"/rollback {'9' * 5000}", "9...' is no number of"),
        ("word " * 400, "--capacity)"),
        ("/system You're Nano.", "the system prompt is set"),
        ("/system", "You're Nano."),
        ("Who are you?", ANSWER),
    ):
        person.asks(line, said)
    assert "Traceback" not in person.text


def test_a_new_conversation_leaves_the_other_branches(sit_down: SitDown) -> None:
    person = sit_down()
    for line, said in (
        ("Who are you?", ANSWER),
        ("/fork a-long-name", "on a-long-name now"),
        ("/fork x", "on x now"),
        ("/switch main", "on main now"),
        ("/clear", "a new conversation on main"),
        ("/switch a-long-name", f"on a-long-name now: {ANSWER}"),
        ("/branches", "*   a-long-name"),
    ):
        person.asks(line, said)
    person.prompted()
    rows = [line for line in person.lines if re.fullmatch(r"[* ] +\S+ +[0-9]+ tokens.*", line)]
    assert len(rows) == 3
    assert len({line.index(" tokens") for line in rows}) == 1


def test_a_loaded_branch_shows_its_own_system_prompt(sit_down: SitDown, tmp_path: Path) -> None:
    file = tmp_path / "talk.kv"
    person = sit_down()
    for line, said in (
        ("/system You are Tolvik.", "is set"),
        (f"/save {quote(str(file))}", "saved 1 branch to"),
        ("/quit", ""),
    ):
        person.say(line)
        person.sees(said)
        person.look(0.1)
    assert person.ends() == 0
    other = sit_down("--load", str(file))
    other.say("/system")
    other.sees("You are Tolvik.")

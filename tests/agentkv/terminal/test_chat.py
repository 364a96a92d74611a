"""`agentkv chat` as a person has it, at a pseudo-terminal."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .person import ALT_ENTER, CTRL_C, CTRL_D, CTRL_Z, Person

ANSWER = "I am Nano, your desk agent."
BABBLE = ("--temperature", "50", "--max-tokens", "3000", "--seed", "8")  # words without end
TOOL = """
import agentkv as kv, sys, time

@kv.tool{asks}
def weather(city: str) -> str:
    "weather in a city"
    {body}
"""
SitDown = Callable[..., Person]


@pytest.fixture
def sit_down(tmp_path: Path) -> Iterator[SitDown]:
    people: list[Person] = []

    def sit_down(*options: str, ready: bool = True, disk_is_full: bool = False) -> Person:
        people.append(Person(tmp_path / "home", *options, disk_is_full=disk_is_full))
        if ready:
            people[-1].prompted()
        return people[-1]

    yield sit_down
    for person in people:
        person.dies()


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


def test_ctrl_c_stops_an_answer_and_keeps_what_was_read(sit_down: SitDown) -> None:
    person = sit_down(*BABBLE)
    for _ in range(20):  # a busy machine may show all of it before Ctrl-C comes
        shown = len(person.text)
        person.say("Hello")
        person.until(lambda shown=shown: len(person.text) > shown + 600)
        person.type(CTRL_C)
        person.prompted()
        if "(stopped; what is here stays)" in person.text:
            break
        person.say("/clear")
        person.sees("a new conversation on main")
        person.prompted()
    assert "(stopped; what is here stays)" in person.text
    person.say("/branches")
    person.sees("* main")
    tokens = int(re.findall(r"\* main  ([0-9]+) tokens", person.text)[-1])
    person.prompted()
    person.say("/rollback")
    person.sees("took back all from 'Hello' on")
    person.prompted()
    person.say("/stats")
    person.sees("tokens on main")
    assert int(re.findall(r"([0-9]+) tokens on main", person.text)[-1]) < tokens - 50
    person.prompted()
    person.say("/quit")
    assert person.ends() == 0


def test_ctrl_c_at_any_point_leaves_a_chat_that_goes_on(sit_down: SitDown) -> None:
    rng = random.Random(5)
    person = sit_down("--temperature", "1.5", "--max-tokens", "200")
    for _ in range(15):
        person.say(rng.choice(["Who are you?", "What is 7 * 8?", "/fork", "/stats", "/tools off calculator", "/clear"]))
        person.look(rng.choice([0, 0.001, 0.01, 0.05, 0.2]))
        for _ in range(rng.choice([1, 1, 3])):
            person.type(CTRL_C)
            person.look(rng.choice([0, 0.01]))
    person.look(1.0)
    person.type(CTRL_C)
    person.prompted()
    person.say("/clear")
    person.sees("a new conversation")
    person.prompted()
    person.type(CTRL_D)
    assert person.ends() == 0
    assert "Traceback" not in person.text


def test_ctrl_c_while_it_opens_leaves(sit_down: SitDown) -> None:
    person = sit_down(ready=False)
    person.sees("opening")
    person.type(CTRL_C)
    # Python 3.11 ends by the signal itself where it came while `eval` or `exec` of a string ran, caught or not.
    assert person.ends() in (130, -signal.SIGINT)
    assert "Traceback" not in person.text


def test_what_is_entered_while_it_opens_is_asked(sit_down: SitDown) -> None:
    person = sit_down(ready=False)
    person.sees("opening")
    person.say("Who are you?")
    person.sees(ANSWER)
    person.prompted()
    person.type(CTRL_D)
    assert person.ends() == 0


def test_ctrl_d_while_it_opens_leaves(sit_down: SitDown) -> None:
    person = sit_down(ready=False)
    person.sees("opening")
    person.type(CTRL_D)
    assert person.ends() == 0


def test_what_is_pasted_during_an_answer_comes_whole(sit_down: SitDown) -> None:
    person = sit_down(*BABBLE)
    person.say("Hello")
    person.until(lambda: len(person.text) > 900)
    person.type("x" + "é" * 3000)
    person.type(CTRL_C)
    person.until(lambda: person.text.count("é") > 2000)
    assert "\ufffd" not in person.text


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
        ("/fork 'a", "error: /fork 'a: No closing quotation"),
        ("/stats", "not read again"),
    ):
        person.prompted()
        person.say(line)
        person.sees(said)


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
        person.prompted()
        person.say(line)
        person.sees(said)


def test_branches_are_saved_and_gone_on_with(sit_down: SitDown, tmp_path: Path) -> None:
    file = tmp_path / "talk.kv"
    person = sit_down()
    person.say("Who are you?")
    person.sees(ANSWER)
    person.prompted()
    person.say("/fork kept")
    person.prompted()
    person.say(f"/save {file}")
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
    other.say(f"/load {tmp_path / 'none.kv'}")
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
        (f"/save {file}", "saved 2 branches"),
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
        (f"/load {file}", "loaded main-1, kid-1; on kid-1 now"),
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


def tool_file(folder: Path, body: str, asks: str = "") -> str:
    file = folder / "tools.py"
    file.write_text(TOOL.format(body=body, asks=asks))
    return str(file)


def test_sigterm_at_the_prompt_ends_it(sit_down: SitDown) -> None:
    person = sit_down()
    os.kill(person.process.pid, signal.SIGTERM)
    assert person.ends(20) == 143
    assert "Traceback" not in person.text


def test_sigterm_in_an_answer_ends_it(sit_down: SitDown) -> None:
    person = sit_down("--temperature", "50", "--max-tokens", "15000")
    person.say("Hello")
    person.until(lambda: len(person.lines) > 3 and any(person.lines[3:10]))
    os.kill(person.process.pid, signal.SIGTERM)
    assert person.ends(20) == 143
    assert "Traceback" not in person.text


def test_a_tool_that_never_returns_keeps_nobody_from_leaving(sit_down: SitDown, tmp_path: Path) -> None:
    person = sit_down("--tools", tool_file(tmp_path, "time.sleep(1000)"))
    person.say("What is the weather in Tolvik?")
    person.sees("-> weather(city='Tolvik')")
    person.type(CTRL_C)
    person.sees("(stopped")
    person.prompted()
    person.type(CTRL_D)
    assert person.ends(20) == 0
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


def test_what_is_typed_during_an_answer_is_sent_after_it(sit_down: SitDown) -> None:
    person = sit_down(*BABBLE)
    person.say("Hello")
    person.type("/fork later\r/nonsense\r")
    person.sees("on later now, a fork of main")
    person.sees("error: there is no /nonsense")


def test_ctrl_d_during_an_answer_leaves_after_it(sit_down: SitDown) -> None:
    person = sit_down("--temperature", "50", "--max-tokens", "500")
    person.say("Hello")
    person.type(CTRL_D)
    assert person.ends() == 0


def test_ctrl_z_is_no_part_of_a_message(sit_down: SitDown) -> None:
    person = sit_down()
    person.type(CTRL_Z)
    person.look(0.2)
    person.say("Who are you?")
    person.sees(ANSWER)
    assert "^Z" not in person.text


def test_a_history_that_cannot_be_kept_is_done_without(sit_down: SitDown, tmp_path: Path) -> None:
    (tmp_path / "home" / "chat-history").mkdir(parents=True)
    person = sit_down()
    person.say("Who are you?")
    person.sees(ANSWER)
    assert "Traceback" not in person.text
    assert "exception" not in person.text


def test_a_history_on_a_full_disk_is_done_without(sit_down: SitDown) -> None:
    person = sit_down(disk_is_full=True)
    person.say("Who are you?")
    person.sees(ANSWER)
    person.prompted()
    person.type("\x1b[A")
    person.until(lambda: person.lines.count("> Who are you?") == 2)
    assert "xception" not in person.text


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
        person.prompted()
        person.say(line)
        person.sees(said)
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
        person.prompted()
        person.say(line)
        person.sees(said)
    person.prompted()
    rows = [line for line in person.lines if re.fullmatch(r"[* ] +\S+ +[0-9]+ tokens.*", line)]
    assert len(rows) == 3
    assert len({line.index(" tokens") for line in rows}) == 1


def test_a_loaded_branch_shows_its_own_system_prompt(sit_down: SitDown, tmp_path: Path) -> None:
    file = tmp_path / "talk.kv"
    person = sit_down()
    for line, said in (("/system You are Tolvik.", "is set"), (f"/save {file}", "saved 1"), ("/quit", "")):
        person.say(line)
        person.sees(said)
        person.look(0.1)
    assert person.ends() == 0
    other = sit_down("--load", str(file))
    other.say("/system")
    other.sees("You are Tolvik.")


def test_the_last_questions_come_back_with_the_arrow(sit_down: SitDown) -> None:
    person = sit_down()
    person.say("Who are you?")
    person.sees(ANSWER)
    person.prompted()
    person.type(CTRL_D)
    assert person.ends() == 0
    other = sit_down()
    other.type("\x1b[A")
    other.sees("> Who are you?")
    other.type("\r")
    other.sees(ANSWER)


def test_tab_completes_commands_and_branches(sit_down: SitDown) -> None:
    person = sit_down()
    person.type("/fo\t")
    person.sees("> /fork")
    person.type("idea\r")
    person.sees("on idea now")
    person.prompted()
    person.type("/switch m\t")
    person.sees("> /switch main")
    person.type("\r")
    person.prompted()
    for keys, shown in (("/to\t", "/tools"), ("of\t", "/tools off"), ("cal\t", "/tools off calculator")):
        person.type(keys)
        person.sees(f"> {shown}")
    person.type("\r")
    person.sees("calculator is off")


def test_lines_are_begun_and_pasted(sit_down: SitDown) -> None:
    person = sit_down()
    person.type(f"Who are{ALT_ENTER}you?")
    person.sees("  you?")
    person.type(CTRL_C)
    person.prompted()
    person.paste("Who are you?\nThank you!")
    person.look(0.3)
    assert ANSWER not in person.text  # it is sent by Enter alone
    person.type("\r")
    person.sees("nano | main")
    person.prompted()


def test_ten_thousand_lines_are_pasted(sit_down: SitDown) -> None:
    person = sit_down("--capacity", "512")
    person.paste("\n".join(f"line {n}" for n in range(10_000)))
    person.sees("line 9999")
    person.type("\r")
    person.sees("error: ")
    person.prompted()
    person.say("Who are you?")
    person.sees(ANSWER)


def test_the_window_gets_another_size_meanwhile(sit_down: SitDown) -> None:
    person = sit_down(*BABBLE[:2], "--max-tokens", "400")
    person.say("Hello")
    for rows, columns in ((10, 40), (40, 140), (5, 20), (30, 100)):
        person.look(0.1)
        person.resize(rows, columns)
    person.prompted()
    person.say("/stats")
    person.sees("tokens on main")
    assert "Traceback" not in person.text


def run(*options: str, stdin: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentkv", "chat", "--threads", "1", *options]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)


def test_without_a_terminal_lines_are_answered() -> None:
    ended = run(stdin="Who are you?\n\n/fork a\nThank you!\n/quit\nWho are you?\n")
    assert (ended.stdout.splitlines(), ended.stderr, ended.returncode) == (
        [ANSWER, "on a now, a fork of main", "You are welcome."],
        "",
        0,
    )


def test_without_stdin_it_says_so() -> None:
    done = subprocess.run(["sh", "-c", f"{sys.executable} -m agentkv chat <&-"], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no stdin to read messages from" in done.stderr


def test_without_a_terminal_nobody_lets_tools_run_that_ask_first(tmp_path: Path) -> None:
    tools = tool_file(tmp_path, "return 'hail'", "(approve=True)")
    ended = run("--tools", tools, stdin="What is the weather in Tolvik?\n")
    assert ended.returncode == 0
    assert "weather(city='Tolvik') asks first, and nobody is there: it does not run" in ended.stdout
    assert "hail" not in ended.stdout


def test_a_tool_that_runs_out_of_time_does_not_hold_up_the_end(tmp_path: Path) -> None:
    ended = run(
        "--tools", tool_file(tmp_path, "time.sleep(1000)", "(timeout=0.1)"), stdin="What is the weather in Oslo?\n"
    )
    assert ended.returncode == 0
    assert "<- weather" in ended.stdout


def test_what_goes_wrong_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0")
    (tmp_path / "empty.py").write_text("")
    for options, stdin, said in (
        ([str(tmp_path)], "", "error: "),
        (["--tools", str(tmp_path / "bad.py")], "", "ZeroDivisionError"),
        (["--tools", str(tmp_path / "empty.py")], "", "@kv.tool"),
        (["--tools", str(tmp_path / "none.py")], "", "none.py"),
        (["--load", str(tmp_path / "none.kv")], "", "none.kv"),
        ([], "/nope\n", "there is no /nope"),
        (["--capacity", "50"], "Who are you?\n", "--capacity)"),
    ):
        ended = run(*options, stdin=stdin)
        assert ended.returncode == 1
        assert said in ended.stderr
        assert len(ended.stderr.splitlines()) == 1

"""The keys of `agentkv chat`, its signals, what is typed and pasted whenever, and its window."""

from __future__ import annotations

import os
import random
import re
import signal
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from prompt_toolkit.input.typeahead import get_typeahead
from prompt_toolkit.input.vt100 import Vt100Input

from agentkv.terminal.keys import keep_lines, key_by_key
from tests.rows import one_in
from tests.waiting import NEVER

from .chats import ANSWER, BABBLE, Held, SitDown, tool_file, until_there
from .person import ALT_ENTER, CTRL_C, CTRL_D, CTRL_Z, Person


def until_it_meets(person: Person, attempt: Callable[[], None], *said: str) -> None:
    """Attempts again until all of `said` comes of one attempt: an answer may end before what is typed comes."""
    for _ in range(20):
        before = [person.text.count(each) for each in said]
        attempt()
        person.prompted()
        if all(person.text.count(each) > count for each, count in zip(said, before, strict=True)):
            return
        person.asks("/clear", "a new conversation on main")
        person.prompted()
    raise AssertionError("it never came; the screen:\n" + person.text)


def test_ctrl_c_stops_an_answer_and_keeps_what_was_read(sit_down: SitDown, tmp_path: Path) -> None:
    held = Held(tmp_path)
    person = sit_down(*BABBLE, *held.tools)

    def stop() -> None:
        held.hears(person, "Hello", 600)
        person.type(CTRL_C)
        person.look()
        held.end()

    until_it_meets(person, stop, "(stopped; what is here stays)")
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
    while True:
        person = sit_down(ready=False)
        person.sees("opening")
        person.type(CTRL_C)
        person.until(lambda person=person: person.is_prompted or not person.process.isalive())
        if not person.is_prompted:
            break  # else it had opened before the keys came
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


def test_what_is_typed_during_an_answer_comes_whole(sit_down: SitDown, tmp_path: Path) -> None:
    typed = tmp_path / "typed"  # the answer lasts until it is there
    person = sit_down("--tools", tool_file(tmp_path, until_there(typed)))
    person.say("What is the weather in Tolvik?")
    person.sees("-> weather(city='Tolvik')")
    person.type("x" + "é" * 3000)
    typed.touch()
    person.until(lambda: person.text.count("é") > 2500)
    assert "\ufffd" not in person.text


def test_what_is_pasted_during_an_answer_waits_as_one_draft(sit_down: SitDown, tmp_path: Path) -> None:
    pasted = tmp_path / "pasted"  # the answer lasts until it is there
    person = sit_down("--tools", tool_file(tmp_path, until_there(pasted)))
    person.say("What is the weather in Tolvik?")
    person.sees("-> weather(city='Tolvik')")
    person.paste("/clear\n/fork pasted\n" + "\n".join(f"line {n}" for n in range(300)) + "\nthe end")
    pasted.touch()
    person.until(lambda: "  the end" in person.lines)  # at the next prompt, behind what continues a message
    person.type(CTRL_C)  # the draft goes, and nothing of it was sent
    person.prompted()
    assert "a new conversation on main" not in person.text
    assert "on pasted now" not in person.text
    person.say("/branches")
    person.sees("* main")
    assert "pasted  " not in person.text


def test_ctrl_c_drops_what_waits_with_the_answer(sit_down: SitDown, tmp_path: Path) -> None:
    person = sit_down("--tools", tool_file(tmp_path, f"time.sleep({NEVER})"))  # the answer lasts until it is stopped
    person.say("What is the weather in Tolvik?")
    person.sees("-> weather(city='Tolvik')")
    person.type("/fork typed\rWho are you?\r")
    person.paste("\n".join(f"line {n}" for n in range(300)))
    person.sees("line 299  (Ctrl-C stops, and dro")  # it can be seen while it waits
    person.type(CTRL_C)
    person.sees("(stopped; what is here stays)")
    person.prompted()
    person.say("/branches")
    person.sees("* main")
    person.prompted()
    assert "on typed now" not in person.text
    assert ANSWER not in person.text


def test_sigterm_at_the_prompt_ends_it(sit_down: SitDown) -> None:
    person = sit_down()
    os.kill(person.process.pid, signal.SIGTERM)
    assert person.ends() == 143
    assert "Traceback" not in person.text


def test_sigterm_in_an_answer_ends_it(sit_down: SitDown) -> None:
    person = sit_down("--temperature", "50", "--max-tokens", "15000")
    person.say("Hello")
    person.until(lambda: len(person.lines) > 3 and any(person.lines[3:10]))
    os.kill(person.process.pid, signal.SIGTERM)
    assert person.ends() == 143
    assert "Traceback" not in person.text


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


def test_keys_are_read_as_they_are_typed_from_the_first_prompt_to_the_last(sit_down: SitDown) -> None:
    """There is no moment between in which the terminal makes lines of them."""
    person = sit_down()
    modes = set[int]()
    for _ in range(10):
        person.say("/stats")
        for _ in range(2000):
            modes.add(termios.tcgetattr(person.process.child_fd)[3] & (termios.ICANON | termios.ECHO))
        person.sees("tokens on main")
        person.prompted()
    assert modes == {0}


def test_a_key_between_two_prompts_is_the_key_that_it_was() -> None:
    """A terminal that reads lines makes a Ctrl-D their end, and echoes what is typed."""
    person, program = os.openpty()
    before = termios.tcgetattr(program)
    with os.fdopen(program) as terminal:
        os.write(person, b"early\x04")
        source = Vt100Input(terminal)
        with key_by_key(source):
            keep_lines(source)
            os.write(person, b"\x04x")
            assert os.read(program, 100) == b"\x04x"
        assert termios.tcgetattr(program) == before
        assert [key.data for key in get_typeahead(source)] == [*"early", "\x04"]
    os.close(person)


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
    person.sees("Thank you!")
    assert ANSWER not in person.text  # it is sent by Enter alone
    person.type("\r")
    person.sees("nano | main")
    person.prompted()


@pytest.mark.parametrize("count", one_in(2, [1_000, 10_000]))
def test_thousands_of_lines_are_pasted(sit_down: SitDown, count: int) -> None:
    person = sit_down("--capacity", "512")
    person.paste("\n".join(f"line {n}" for n in range(count)))
    person.sees(f"line {count - 1}")
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


def test_a_line_typed_during_an_answer_enters_behind_its_message(sit_down: SitDown, tmp_path: Path) -> None:
    done = tmp_path / "done"
    person = sit_down("--tools", tool_file(tmp_path, f"while not os.path.exists({str(done)!r}): time.sleep(0.01)"))
    person.say("What is the weather in Tolvik?")
    person.sees("-> weather(city='Tolvik')")
    person.sees("a line enters behind this message")
    person.type("Who xx\x7f\x7fare you?\r")
    person.sees("1 to enter; Ctrl-C stops")
    done.touch()
    person.sees("> Who are you?")
    person.sees(ANSWER)
    person.prompted()
    person.say("/rollback")
    person.sees("took back all from 'Who are you?' on")


def test_a_line_with_a_mark_enters_at_once(sit_down: SitDown, tmp_path: Path) -> None:
    held = Held(tmp_path)
    person = sit_down(*BABBLE, *held.tools)

    def enter_and_stop() -> None:
        entered = person.text.count("\n> Who are you?")
        held.hears(person, "Hello", 100)
        person.type("!Who are you?\r")
        held.until(person, lambda: person.text.count("\n> Who are you?") > entered)
        person.type(CTRL_C)
        person.look()
        held.end()

    until_it_meets(person, enter_and_stop, "\n> Who are you?", "(stopped; what is here stays)")
    person.say("/rollback")
    person.sees("took back all from 'Who are you?' on")


def test_lines_that_a_turn_has_no_room_for_are_asked_after_it(sit_down: SitDown, tmp_path: Path) -> None:
    done = tmp_path / "done"
    person = sit_down("--tools", tool_file(tmp_path, f"while not os.path.exists({str(done)!r}): time.sleep(0.01)"))
    person.say("What is the weather in Tolvik?")
    person.sees("-> weather(city='Tolvik')")
    person.type("!\r")  # no words: the prompt gets it
    person.type("Who are you?\r")
    done.touch()
    person.sees("> !")
    person.sees(ANSWER)

"""`agentkv runs ...`: turns that a journal has recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from .._console.console import ago_text, fail, print_rows, print_table, reporting, stdout
from .options import CallFormatOption, QuantOption, SteerCallsOption, ThreadsOption

if TYPE_CHECKING:
    from .._types.run import CallRecord, CallRequest
    from ..journal.approvals import WaitingApproval
    from ..journal.runs import RecordedCall, RunInfo

BRANCH, QUESTION, RESULT = 30, 60, 200  # most characters that are shown
LEFT = ("running", "cancelled")  # states of turns that may go on

JournalArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="JOURNAL", help="File of a journal.")]
_IDENTIFIER = re.compile("[0-9a-f]{32}")

RunArgument: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help="Its id, or how that begins.")]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]

runs = typer.Typer(help="Turns of agents that a journal has recorded.", no_args_is_help=True)


@runs.command("list")
def list_runs(journal: JournalArgument, as_json: JsonOption = False) -> None:
    """List the turns in a journal, oldest first. Disturbs no process that uses it."""
    from ..journal.lock import is_locked
    from ..journal.reading import read_runs, short_ids

    with reporting():
        found, in_use = read_runs(journal), is_locked(journal)
    if as_json:
        _print_json([_facts(info, in_use) for info in found])
        return
    shorts = short_ids([info.id for info in found])
    rows = [
        (
            shorts[info.id],
            _status(info, in_use),
            _branch(info),
            ago_text(info.began),
            _line(_question(info), QUESTION),
            str(info.rounds),
            str(len(info.calls)),
        )
        for info in found
    ]
    if rows:
        columns = ("run", "status", "branch", "began", "question", "rounds", "calls")
        print_table("", columns, rows, words=columns[:5])
    else:
        stdout.print("There are no runs in it.")


@runs.command()
def show(journal: JournalArgument, run: RunArgument, as_json: JsonOption = False) -> None:
    """Show a turn: its question, each call and what became of it, its answer."""
    from ..journal.lock import is_locked
    from ..journal.reading import read_runs, run_called, waiting_approvals

    with reporting():
        infos, in_use = {info.id: info for info in read_runs(journal)}, is_locked(journal)
        info = infos[run_called(list(infos), run, journal)]
        waiting = [each for each in waiting_approvals(journal) if each.key.startswith(f"{info.id}-")]
    if as_json:
        calls = [{"key": f"{info.id}-{number}", **_call_facts(call)} for number, call in info.calls.items()]
        _print_json({**_facts(info, in_use), "calls": calls, "approvals": [each.key for each in waiting]})
        return
    rows = [
        ("status", _status(info, in_use)),
        ("branch", info.branch),
        ("began", ago_text(info.began)),
        ("question", _question(info)),
        *((f"call {number}", _call_text(call)) for number, call in info.calls.items()),
        *(("approval", f"{each.key} waits for an answer") for each in waiting),
    ]
    if info.answer is not None:
        rows.append(("answer" if info.status == "finished" else "why", info.answer))
    print_rows(f"run {info.id}", rows)


@runs.command()
def approvals(journal: JournalArgument, as_json: JsonOption = False) -> None:
    """List the calls in a journal that wait for an approval, oldest first. Disturbs no process that uses it."""
    from ..journal.reading import approval_keys, short_ids, waiting_approvals

    with reporting():
        waiting, keys = waiting_approvals(journal), approval_keys(journal)
    if as_json:
        _print_json([_approval_facts(approval) for approval in waiting])
        return
    shorts = short_ids(keys)
    rows = [
        (shorts[each.key], _branch(each), ago_text(each.since), _line(_call_of(each.call), RESULT)) for each in waiting
    ]
    if rows:
        columns = ("approval", "branch", "since", "call")
        print_table("", columns, rows, words=columns)
    else:
        stdout.print("Nothing waits for an approval in it.")


@runs.command()
def answer(
    journal: JournalArgument,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="The approval, as `approvals` shows it, or how that begins.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="The call may run.")] = False,
    no: Annotated[bool, typer.Option("--no", help="It may not.")] = False,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why not; the model reads it.")] = None,
) -> None:
    """Decide on a call that waits for an approval.

    A turn that waits in a process goes on at once; one that was left, once it is resumed.
    """
    from ..agents.events import checked_denial
    from ..journal.reading import answer_approval, approval_keys, run_called, waiting_approvals

    if yes == no:
        raise typer.BadParameter("give --yes or --no, and not both" if yes else "give --yes or --no")
    if yes and reason is not None:
        raise typer.BadParameter("--reason goes with --no")
    with reporting():
        whole = run_called(approval_keys(journal), key, journal, "approval")
        calls = {each.key: each.call for each in waiting_approvals(journal)}
        denial = None if reason is None else checked_denial(reason)
        answer_approval(journal, "normal", whole, yes, denial, calls.get(whole))
    said = "Approved" if yes else "Denied"
    call = _line(_call_of(calls[whole]), RESULT) if whole in calls else f"{whole}, as before"
    stdout.print(f"{said}: {call}", highlight=False, markup=False)


@runs.command()
def resume(
    journal: JournalArgument,
    run: RunArgument,
    model: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="The model of the run: a folder or GGUF file, or a name."),
    ],
    tools: Annotated[
        Path | None,
        typer.Option(metavar="FILE.py", help="Python file with its tools, under @kv.tool. It is run."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="As the run had it.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="As the run had it.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the turn.")] = 2048,
    thinking: Annotated[
        str | None, typer.Option(metavar="on|off|N", help="Whether the model reasons, or for N tokens at most.")
    ] = None,
    capacity: Annotated[int, typer.Option(min=1, help="Cells of the cache: tokens of all branches.")] = 16384,
    quant: QuantOption = None,
    threads: ThreadsOption = None,
    call_format: CallFormatOption = None,
    steer_calls: SteerCallsOption = False,
) -> None:
    """Go on with a turn that its process left, or that was stopped; show the answer as it is written.

    Calls that need approval are asked for at a terminal, and denied elsewhere. After Ctrl-C the same command goes on.
    """
    with reporting():
        import anyio

        from .._context.thinking import thinking_from_word
        from ..journal.reading import read_runs, run_called
        from ..models._resolve import folder_called
        from ..terminal.resuming import ResumeOptions, resuming

        infos = {info.id: info for info in read_runs(journal)}
        info = infos[run_called(list(infos), run, journal)]
        _check_can_go_on(info, infos)
        how = ResumeOptions(
            journal=journal,
            run=info,
            model=folder_called(model.expanduser(), quant=quant),
            tools=tools,
            temperature=temperature,
            seed=seed,
            max_tokens=max_tokens,
            thinking=thinking_from_word(thinking),
            capacity=capacity,
            quant=quant,
            threads=threads,
            call_format=call_format,
            rescue="steer" if steer_calls else True,
        )
        anyio.run(resuming, how)


@runs.command()
def drop(
    journal: JournalArgument,
    run: Annotated[list[str] | None, typer.Argument(metavar="RUN", help="Their ids, or how those begin.")] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="All that cannot go on: those that finished or failed.")
    ] = False,
) -> None:
    """Remove turns from a journal that no process uses, and what only they need; branches stay as they are."""
    from ..journal.reading import remove_runs, run_called, run_ids, run_ids_over

    if bool(run) == finished:
        raise typer.BadParameter("name the runs to drop, or give --finished")
    with reporting():
        if finished:
            gone = run_ids_over(journal)
        else:
            ids = run_ids(journal)
            gone = [run_called(ids, called, journal) for called in run or ()]
        remove_runs(journal, gone)
    stdout.print(f"Dropped {len(gone)} run{'s' * (len(gone) != 1)}.", highlight=False)


def _check_can_go_on(info: RunInfo, infos: Mapping[str, RunInfo]) -> None:
    """Fails for a turn that has ended, and for one that another turn goes on with."""
    if info.status not in LEFT:
        fail(f"run {info.id} has {info.status}; `agentkv runs show` says how")
    parent = infos.get(info.parent or "")
    if parent is not None and parent.status in LEFT:
        fail(f"run {info.id} was begun by a call of run {info.parent}; resume that, and it goes on")


def _status(info: RunInfo, in_use: bool) -> str:
    """A turn that has not ended runs where a process uses the journal; else a process left it."""
    return "unfinished" if info.status == "running" and not in_use else info.status


def _branch(info: RunInfo | WaitingApproval) -> str:
    """Name of its branch; the beginning of an identifier."""
    return info.branch[:8] if _IDENTIFIER.fullmatch(info.branch) else _line(info.branch, BRANCH)


def _question(info: RunInfo) -> str:
    match info.start.prompt:
        case None:
            return "(its branch held it)"
        case str() as text:
            return text
        case [*parts] if parts and isinstance(parts[-1], dict):
            return str(parts[-1].get("content"))
        case tokens:
            return f"({len(tokens)} tokens)"


def _state(call: RecordedCall) -> str:
    if call.record is not None:
        return call.record.status
    if call.started:
        return "started"
    if call.decided:
        return "approved" if call.denied is None else "denied"
    return "asked" if call.asked else "waits"


def _call_text(call: RecordedCall) -> str:
    made = call.record or call.request  # a record has them in the model's order
    result = "" if call.record is None else f": {_line(call.record.content, RESULT)}"
    return f"{_call_of(made)} {_state(call)}{result}"


def _call_of(call: CallRequest | CallRecord) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{call.name}({_line(arguments, RESULT)})"


def _line(text: str, most: int) -> str:
    words = " ".join(text.split())
    return words if len(words) <= most else f"{words[: most - 3]}..."


def _facts(info: RunInfo, in_use: bool) -> dict[str, Any]:
    return {
        "id": info.id,
        "status": _status(info, in_use),
        "branch": info.branch,
        "parent": info.parent,
        "began": info.began,
        "ended": info.ended,
        "question": info.start.prompt,
        "instructions": info.start.instructions,
        "tools": list(info.start.tools),
        "rounds": info.rounds,
        "calls": len(info.calls),
        "answer": info.answer,
    }


def _approval_facts(approval: WaitingApproval) -> dict[str, Any]:
    return {
        "key": approval.key,
        "run": approval.run,
        "branch": approval.branch,
        "name": approval.call.name,
        "arguments": dict(approval.call.arguments),
        "since": approval.since,
    }


def _call_facts(call: RecordedCall) -> dict[str, Any]:
    record = call.record
    return {
        "name": call.request.name,
        "arguments": dict(call.request.arguments),
        "state": _state(call),
        "denied": call.denied,
        "result": None if record is None else record.result,
        "error": None if record is None else record.error,
        "seconds": None if record is None else record.seconds,
        "attempts": None if record is None else record.attempts,
    }


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=1).replace("\x7f", "\\u007f"))  # the one control character that JSON has raw

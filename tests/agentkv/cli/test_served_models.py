"""Which models `agentkv serve` is given, and what it says of those that it cannot have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import agentkv as kv
from agentkv.cli import app
from agentkv.cli.options import byte_count

NANO = str(kv.models.nano())


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("6GiB", 6 << 30),
        ("1.5 gib", 3 << 29),
        ("500MB", 500_000_000),
        ("7b", 7),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "6 GiBs", "1e3", "six"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no size; give bytes, or as 6GiB"):
        byte_count(text)


ARGUMENTS = [
    ([], "no model: give a FOLDER, NAME=FOLDER for each of several, or --models FILE"),
    (["a=nano", "nano"], "nano has no name"),
    (["nano", "b=nano"], "nano has no name"),
    (["=nano", "b=nano"], "=nano has no name"),
    (["a=nano", "a=nano"], "two models called a"),
    (["a=nano", "b=/no/such/folder"], "model b: there is no /no/such/folder"),
    (["a=nano", "b=nanno"], "no short name"),
    (["a=nano", "b=" + "long" * 100], "model b: there is no long"),
    (["--models", "/dev/zero"], "/dev/zero: cannot be read: not a regular file"),
    (["--models", "/"], "/: cannot be read: Is a directory"),
    (["a=nano", "--name", "x"], "--name and --trace go with a single model"),
    (["a=nano", "--trace", "x"], "--name and --trace go with a single model"),
    ([NANO, "--idle", "5"], "--max-memory and --idle go with several models"),
    ([NANO, "--max-memory", "5"], "--max-memory and --idle go with several models"),
    (["a=nano", "--max-memory", "0"], "max_memory is 0"),
    (["a=nano", "--speculative", "draft"], "--draft FOLDER goes with"),
    (["a=nano", "--host", "0.0.0.0"], "AGENTKV_API_KEY"),
    ([NANO, "--adapter", "sql"], "--adapter sql has no name: give it as NAME=FOLDER"),
    ([NANO, "--adapter", "=x"], "--adapter =x has no name"),
    (["a=~nosuchuser/x", "b=nano"], "model a: there is no ~nosuchuser/x"),
    ([NANO, "--adapter", "sql=~nosuchuser/x"], "adapter sql: there is no ~nosuchuser/x"),
    ([NANO, "--adapter", f"sql={'long' * 100}"], "adapter sql: there is no longlong"),
    ([NANO, "--adapter", "sql=/no/such/folder"], "adapter sql: there is no /no/such/folder"),
    ([NANO, "--adapter", "a=/tmp", "--adapter", "a=/tmp"], "two adapters called a"),
    ([NANO, "--adapter", "a=/tmp", "--name", "a"], "--name a is also the name of an adapter"),
    (["a=nano", "--adapter", "sql=/tmp"], "--adapter goes with a single model"),
    (["--models", "/no/such/file"], "/no/such/file: cannot be read"),
]

FILES = [
    ("", "no model: give a FOLDER"),
    ("[a", "is no TOML"),
    ("a = " + "[" * 5000 + "]" * 5000, "is no TOML: maximum recursion depth"),
    ("# " + "x" * (1 << 20), "cannot be read: longer than"),
    ("\ufeff" + "[a]\ncapacity = 4", "[a] has no model"),
    ('[a]\nmodel = ""', "[a] has no model: its name is empty"),
    ("a = 5", "[a] is int 5, but it must be a table"),
    ("[a]\ncapacity = 4", "[a] has no model"),
    ('[a]\nmodel = "nano"\ncapasity = 4', "[a] has capasity, which no model has; did you mean capacity?"),
    ('[a]\nmodel = "nano"\nport = 4', "[a] has port, which no model has; leave it out"),
    ('[a]\nmodel = "nano"\ncapacity = "many"', "[a]: capacity is str 'many'"),
    ('[a]\nmodel = "nano"\ncapacity = 0', "[a]: capacity is int 0"),
    ('[a]\nmodel = "nano"\ncapacity = true', "[a]: capacity is bool True"),
    ('[a]\nmodel = "nano"\ncapacity = "7"', "[a]: capacity is str '7'"),
    ('[a]\nmodel = "nano"\nrescue = "yes"', "[a]: rescue is str 'yes'"),
    ('[a]\nmodel = "nano"\nspeculative = "hope"', "[a]: speculative is str 'hope'"),
    ('[a]\nmodel = "nano"\nadapters = {b = "/no/such"}', "adapter b: there is no /no/such"),
    ('[a]\nmodel = "nano"\nadapters = {a = "/tmp"}', "two models called a, one of them an adapter"),
    ('[a]\nmodel = "nano"\nadapters = 5', "[a]: adapters is int 5"),
    ('[a]\nmodel = "nano"\n[keys]\nNOT_SET = ["a"]', "[keys]: entry 1 is not called by an environment variable"),
    ('[a]\nmodel = "nano"\n[keys]\n"sk-secret" = ["a"]', "[keys]: entry 1 is not called by an environment variable"),
    ('[a]\nmodel = "nano"\n[keys]\nSET = "a"', "[keys]: entry 1 must be a list of models"),
    ('[a]\nmodel = "nano"\n[keys]\nSET = ["b"]', "[keys]: entry 1 names b, but there is a"),
    ('[a]\nmodel = "nano"\n[keys]\nSET = ["a"]\nSAME = ["a"]', "[keys]: entry 2 has the same key as another one"),
    ('[a]\nmodel = "nano"\n[keys]\nFOR_ALL = ["a"]', "the API key for all models is also one for some"),
]


def refused(options: list[str]) -> str:
    environment = {"COLUMNS": "300", "SET": "s", "SAME": "s", "FOR_ALL": "all", "AGENTKV_API_KEY": ""}
    if "--models" in options:
        environment["AGENTKV_API_KEY"] = "all"
    else:
        del environment["AGENTKV_API_KEY"]
    done = CliRunner().invoke(app, ["serve", "--port", "0", *options], env=environment)
    assert (done.exit_code, type(done.exception)) == (1, SystemExit), done.output
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize(("options", "said"), ARGUMENTS, ids=lambda value: None if isinstance(value, str) else "")
def test_what_cannot_be_served_is_said_in_one_line(options: list[str], said: str) -> None:
    assert said in refused(options)


@pytest.mark.parametrize(("text", "said"), FILES, ids=[said for _, said in FILES])
def test_what_is_wrong_in_a_file_is_said_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text(text)
    told = refused(["--models", str(file)])
    assert said in told
    assert "secret" not in told


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "cannot be read: not a regular file" in refused(["--models", str(tmp_path / "pipe")])


def test_a_folder_whose_name_has_an_equals_sign_is_a_single_model(tmp_path: Path) -> None:
    link = tmp_path / "a=b"
    link.symlink_to(NANO)
    assert "--max-memory and --idle go with several" in refused([str(link), "--idle", "5"])

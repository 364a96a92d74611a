"""Three forks try to mend a failing test at the same time, each in its own files; the first that passes is adopted.

python examples/three_ways.py [MODEL]

Without a model, and where all three of its attempts fail, the attempts are scripted, and the output says so.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

import agentkv as kv

BROKEN = '''def average(numbers):
    """The mean of the numbers; 0 for an empty list."""
    return sum(numbers) / len(numbers)
'''
TEST = """import unittest
from average import average

class AverageTest(unittest.TestCase):
    def test_some(self):
        self.assertEqual(average([1, 2, 3]), 2)

    def test_none(self):
        self.assertEqual(average([]), 0)
"""
TASK = """{program}
fails for an empty list: {said}. {how} Write the whole file average.py with the function that passes."""
WAYS = (
    "Add a line to the function.",
    "First check `if not numbers`, and return 0 there.",
    "Use the module statistics.",
)
SCRIPTED = (  # what a model might write, by way: two of the three are wrong
    BROKEN.replace("len(numbers)", "(len(numbers) or 0)"),
    BROKEN.replace("    return", "    if not numbers:\n        return 0\n    return"),
    "import statistics\n\n\ndef average(numbers):\n    return statistics.mean(numbers)\n",
)


async def fails(folder: Path) -> str:
    """What the tests say in a folder; nothing where they pass."""
    command = [sys.executable, "-B", "-m", "unittest", "-q"]
    ended = await anyio.run_process(command, cwd=folder, check=False)
    return "" if ended.returncode == 0 else ended.stderr.decode()


async def mend(agent: kv.Agent[None, str], branch: kv.Branch, number: int) -> str:
    """One attempt; what the tests say then."""
    assert branch.workspace is not None
    folder = await branch.workspace.ready()
    program, last_line = (folder / "average.py").read_text(), (await fails(folder)).split("\n\n")[1].splitlines()[-1]
    await agent.run(branch, TASK.format(program=program, said=last_line, how=WAYS[number]))
    said = await fails(folder)
    print(f"  way {number + 1}: {'passes' if not said else said.strip().splitlines()[-1]}")
    return said


async def three_ways(ctx: kv.Context, project: Path) -> kv.Branch:
    """The trunk with the files and the conversation of the first attempt that passes."""
    workspace = kv.Workspace(project)
    agent = kv.Agent(
        "You are a programmer. You mend Python programs.",
        tools=[tool for tool in kv.tools.files(workspace, commands=False) if tool.name == "write_file"],
        final_tool="write_file",
        tool_choice="required",
        max_message_tokens=400,
        sampling=kv.Sampling(temperature=0.7, seed=1),
    )
    trunk = await agent.trunk(ctx, workspace=workspace)
    ways = iter(range(len(WAYS)))
    won = await kv.patterns.race(
        trunk, len(WAYS), lambda branch: mend(agent, branch, next(ways)), good=lambda said: not said
    )
    await trunk.adopt(won.branch)
    return trunk


def scripted(text: str) -> kv.testing.Call:
    """The reply of a branch that was told to take one of the ways."""
    number = max(range(len(WAYS)), key=lambda way: text.rfind(WAYS[way]))
    return kv.testing.call("write_file", path="average.py", content=SCRIPTED[number])


@contextmanager
def broken_project() -> Iterator[Path]:
    """A folder with a program and its test, which fails."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        project.mkdir()
        (project / "average.py").write_text(BROKEN)
        (project / "test_average.py").write_text(TEST)
        yield project


async def attempt(ctx: kv.Context, who: str) -> bool:
    """Three attempts of a model, or of the script; returns whether one of them was adopted."""
    print(f"{who}:")
    with broken_project() as project:
        try:
            trunk = await three_ways(ctx, project)
        except ExceptionGroup as failed:
            print(f"  none of the {len(failed.exceptions)} ways passes")
            return False
        assert trunk.workspace is not None
        print((await trunk.workspace.diff()).text, end="")
        print(f"  applied to the project: {', '.join(await trunk.workspace.apply())}")
        print(f"  its tests {'fail' if await fails(project) else 'pass'} now")
        return True


async def main(model: str | None) -> None:
    """Have the model try, and the script where there is none, or it fails."""
    if model is not None:
        async with kv.Context.open(model, capacity=8192) as ctx:
            if await attempt(ctx, f"{Path(model).name} itself"):
                return
    async with kv.testing.replies(scripted, capacity=8192) as ctx:
        await attempt(ctx, "Scripted replies, no model's own")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)

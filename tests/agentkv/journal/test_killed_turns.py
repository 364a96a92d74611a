"""A process that is killed loses no turn, runs no tool twice that may not, and ends with the tokens of an undisturbed
one."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .killed_process import TURNS
from .talks import Talker

ONCE = ("pay", "boss")  # may not run twice
UNKNOWN = "whether it was carried out is not known"


@dataclass
class Seen:
    """What happened in many kills."""

    kills: int = 0
    unknown: int = 0
    repeated: int = 0
    points: int = 0
    runs: int = 0
    whole: int = field(default=0)  # that had the tokens of the undisturbed one


@pytest.fixture(scope="module")
def talker() -> Iterator[Talker]:
    talker = Talker("tests.agentkv.journal.killed_process")
    try:
        yield talker
    finally:
        talker.stop()


def told(folder: Path) -> tuple[list[Any], list[int], str]:
    messages, tokens, logits = json.loads((folder / "done").read_text())
    return messages, tokens, logits


def undisturbed(talker: Talker, folder: Path, seed: int) -> tuple[list[Any], list[int], str]:
    folder.mkdir()
    assert talker.run(folder, seed) == 0
    ran = Counter((folder / "ledger").read_text().splitlines() if (folder / "ledger").exists() else [])
    assert set(ran.values()) <= {1}
    return told(folder)


def check(folder: Path, wanted: tuple[list[Any], list[int], str], kills: int, seen: Seen) -> None:
    """What a conversation holds after `kills`, against one that nothing disturbed."""
    messages, tokens, logits = told(folder)
    ran = Counter((folder / "ledger").read_text().splitlines() if (folder / "ledger").exists() else [])
    asked = Counter((folder / "asked").read_text().split() if (folder / "asked").exists() else [])
    assert {line: count for line, count in ran.items() if line.startswith(ONCE) and count > 1} == {}
    assert max(asked.values(), default=0) <= 1 + kills
    unknown = [index for index, (_, content, _) in enumerate(messages) if UNKNOWN in content]
    assert len(messages) == len(wanted[0])
    for index, (got, want) in enumerate(zip(messages, wanted[0], strict=True)):
        if index in unknown:
            assert got[0] == want[0] == "tool"
            assert want[1].startswith(ONCE)
        else:
            assert got == want
            if got[0] == "tool" and got[1].endswith(" done"):
                assert ran[got[1].removesuffix(" done")] >= 1
    assert len(unknown) <= 3 * kills  # calls of one message run at the same time
    if not unknown:
        assert tokens == wanted[1]
        assert logits == wanted[2]
    seen.runs += 1
    seen.kills += kills
    seen.unknown += len(unknown)
    seen.repeated += sum(count - 1 for count in ran.values())
    seen.whole += not unknown


def check_points(talker: Talker, folder: Path, seed: int, points: list[int], seen: Seen) -> None:
    """Kills at these points, each in a conversation of its own."""
    wanted = undisturbed(talker, folder / f"whole{seed}", seed)
    for point in points:
        one = folder / f"{seed}-{point}"
        one.mkdir()
        status = talker.run(one, seed, point)
        assert status in (0, -signal.SIGKILL)
        if status:
            assert talker.run(one, seed) == 0
        check(one, wanted, int(status != 0), seen)
        seen.points += 1
        if not status:
            return


def test_killed_at_points_of_a_turn(talker: Talker, tmp_path: Path) -> None:
    seen = Seen()
    check_points(talker, tmp_path, 1, random.Random(0).sample(range(1, 90), 6), seen)
    assert seen.kills >= 5
    assert seen.whole >= 1


def test_killed_again_and_again(talker: Talker, tmp_path: Path) -> None:
    seen, draw, kills = Seen(), random.Random(5), 0
    wanted = undisturbed(talker, tmp_path / "whole", 2)
    one = tmp_path / "killed"
    one.mkdir()
    while talker.run(one, 2, 0 if kills == 6 else draw.randrange(4, 20)):
        kills += 1
    check(one, wanted, kills, seen)
    assert kills == 6


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak_of_kills(talker: Talker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At every point, and at random moments, in many conversations; AGENTKV_KILLS says how many."""
    wanted_kills, seed = int(os.environ.get("AGENTKV_KILLS", "10000")), int(os.environ.get("AGENTKV_SEED", "1"))
    seen, draw = Seen(), random.Random(seed)
    while seen.kills < wanted_kills:
        seed += 1
        folder = tmp_path / str(seed)
        folder.mkdir()
        check_points(talker, folder, seed, list(range(1, 1000, draw.randint(1, 5))), seen)
        check_moments(talker, folder, seed, draw, 40, seen)
        with capsys.disabled():
            print(f"seed {seed}: {seen}")


def check_moments(talker: Talker, folder: Path, seed: int, draw: random.Random, count: int, seen: Seen) -> None:
    """Kills conversations at random moments, several times each."""
    wanted = undisturbed(talker, folder / "whole", seed)
    for number in range(count):
        one, kills = folder / f"moment{number}", 0
        one.mkdir()
        while not (one / "done").exists():
            child = talker.begin(one, seed)
            if kills < TURNS:
                time.sleep(draw.random())
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            kills += talker.end() != 0
        check(one, wanted, kills, seen)

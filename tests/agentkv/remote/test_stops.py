"""Stop strings are found as the native engine finds them, wherever tokens cut them."""

from __future__ import annotations

import random

import pytest

from agentkv.remote.stop_strings import StopMatcher


def first_end(text: bytes, stops: list[bytes]) -> tuple[int, int] | None:
    """Where the first stop string to be complete ends, and how long the longest is that ends there."""
    for end in range(1, len(text) + 1):
        if ending := [len(stop) for stop in stops if text[:end].endswith(stop)]:
            return end, max(ending)
    return None


def test_against_a_search_of_the_whole_text() -> None:
    rng = random.Random(5)
    found = 0
    for _ in range(3000):
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(0, 3))]
        pieces = ["".join(rng.choices("abc", k=rng.randint(0, 4))).encode() for _ in range(6)]
        matcher, text, shown = StopMatcher(stops), b"", b""
        expected = None
        for piece in pieces:
            text += piece
            expected = first_end(text, [stop.encode() for stop in stops])
            assert matcher.push(piece) == (expected is not None)
            shown += matcher.take_shown()
            if expected is not None:
                break
            held = matcher.text[len(shown) :]
            assert matcher.text == text
            assert not held or any(stop.encode().startswith(held) and stop.encode() != held for stop in stops)
            longest = [k for stop in stops for k in range(1, len(stop)) if text.endswith(stop.encode()[:k])]
            assert len(held) == max(longest, default=0)
        if expected is not None:
            end, length = expected
            assert matcher.text == text[: end - length]
            found += 1
        matcher.finish()
        assert shown + matcher.take_shown() == matcher.text
    assert found > 500


SPECIAL = {0: b"<a>", 1: b"<a><b>", 2: b""}
CASES: list[tuple[list[str], list[str | int], str, bool]] = [
    # Stop strings, what comes (a number is a special token), the text that is shown, is it stopped?
    (["<a>"], ["x", 0], "x", True),
    (["<a>"], ["x<", "a", ">"], "x", True),
    (["<a>"], ["x", 1], "x", False),
    (["<a><b>"], ["x", 1], "x", True),
    (["a", ">"], ["x", 0], "x", False),
    (["\n<a>"], ["x\n", 0], "x", True),
    (["\n<a>"], ["x\n", 1, "y"], "x\ny", False),
    (["<a>end"], ["x", 0, "en", "d"], "x", True),
    (["<a>end"], ["x", 0, "en"], "x", False),
    (["<a>end"], ["x", 0, "en", "!"], "xen!", False),
    (["<a>x<a>"], ["x", 0, "x", 0], "x", True),
    (["ab"], ["xa", 0, "b"], "x", True),
    (["<a>b", "c"], [0, 2, "b"], "", True),
]


@pytest.mark.parametrize(("stops", "pieces", "text", "is_stopped"), CASES)
def test_special_tokens_are_matched_by_what_they_spell(
    stops: list[str], pieces: list[str | int], text: str, is_stopped: bool
) -> None:
    """The cases of `tests/engine/test_stop_matcher.cpp`."""
    matcher, shown, stopped = StopMatcher(stops, SPECIAL), b"", False
    for piece in pieces:
        assert not stopped
        stopped = matcher.push_special(piece) if isinstance(piece, int) else matcher.push(piece.encode())
        shown += matcher.take_shown()
    assert (stopped, shown.decode()) == (is_stopped, text)

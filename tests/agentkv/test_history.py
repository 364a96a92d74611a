"""Which marks hold after which rewrites, against a plain record of everything."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from agentkv._history import Histories, History

Verb = st.one_of(
    st.tuples(st.just("change"), st.tuples(st.integers(0, 12), st.lists(st.integers(0, 3), max_size=12))),
    st.tuples(st.just("mark"), st.none()),
)


@given(st.lists(Verb, max_size=60))
def test_a_mark_holds_while_its_history_was_never_rewritten(verbs: list) -> None:
    history = History()
    plain: list[int] = []
    marks: list[list] = []  # [time, length, still holds]
    for verb, value in verbs:
        if verb == "mark":
            marks.append([history.time, len(history), True])
        else:
            kept, appended = min(value[0], len(plain)), value[1]
            history.change(kept, array("i", appended).tobytes())
            for mark in marks:
                mark[2] = mark[2] and mark[1] <= kept
            plain = [*plain[:kept], *appended]
        assert history.log.tolist() == plain
        assert len(history) == len(plain)
        for time, length, holds in marks:
            kept = history.kept_since(time)
            assert (kept is None or kept >= length) == holds


def test_histories_follow_the_engine() -> None:
    histories = Histories()

    def change(branch: int, kept: int, *appended: int) -> SimpleNamespace:
        return SimpleNamespace(branch=branch, kept=kept, appended=array("i", appended).tobytes())

    histories.apply([change(0, 0, 1, 2, 3), change(1, 0)])
    trunk = histories[0]
    histories.apply([change(0, 1, 7), change(1, 0, 4)])
    assert histories[0] is trunk
    assert trunk.log.tolist() == [1, 7]
    assert histories[1].log.tolist() == [4]
    histories.drop(0)
    histories.drop(0)
    histories.apply([change(0, 0, 9)])
    assert histories[0].log.tolist() == [9]
    assert trunk.log.tolist() == [1, 7]

"""Which marks hold after which rewrites, against a plain record of everything."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from agentkv._history import History, common_prefix

Verb = st.one_of(
    st.tuples(st.just("extend"), st.lists(st.integers(0, 3), min_size=1, max_size=5)),
    st.tuples(st.just("truncate"), st.integers(0, 12)),
    st.tuples(st.just("replace"), st.lists(st.integers(0, 3), max_size=12)),
    st.tuples(st.just("mark"), st.none()),
)


@given(st.lists(Verb, max_size=60))
def test_a_mark_holds_while_its_history_was_never_rewritten(verbs: list) -> None:
    history = History()
    plain: list[int] = []
    marks: list[list] = []  # [time, length, still holds]
    for verb, value in verbs:
        if verb == "extend":
            history.extend(value)
            plain = plain + value
        elif verb == "mark":
            marks.append([history.time, len(history), True])
        else:
            if verb == "truncate":
                new = plain[:value]
                history.truncate(value)
            else:
                new = value
                history.replace(array("i", value).tobytes())
            kept = next((i for i, pair in enumerate(zip(plain, new, strict=False)) if len(set(pair)) > 1), None)
            kept = min(len(plain), len(new)) if kept is None else kept
            for mark in marks:
                mark[2] = mark[2] and mark[1] <= kept
            plain = list(new)
        assert history.log.tolist() == plain
        for time, length, holds in marks:
            kept = history.kept_since(time)
            assert (kept is None or kept >= length) == holds


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    n = common_prefix(array("i", a), array("i", b))
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]

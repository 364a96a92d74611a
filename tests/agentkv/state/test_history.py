"""The event loop's copies of the branches' tokens follow what the engine tells of them."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

from agentkv._state.branch_state import BranchStates
from agentkv._state.observers import Observers


def test_histories_follow_the_engine() -> None:
    histories = BranchStates(Observers())

    def change(branch: int, kept: int, *appended: int, epoch: int = 0) -> SimpleNamespace:
        added = array("i", appended).tobytes()
        return SimpleNamespace(branch=branch, kept=kept, appended=added, epoch=epoch, adapter=0)

    histories.apply([change(0, 0, 1, 2, 3, epoch=5), change(1, 0)])
    assert [histories[0].tip, histories[1].tip] == [(3, 5), (0, 0)]
    trunk = histories[0]
    histories.apply([change(0, 1, 7, epoch=6), change(1, 0, 4)])
    assert histories[0].tip == (2, 6)
    assert histories[0] is trunk
    assert trunk.tokens.tolist() == [1, 7]
    assert histories[1].tokens.tolist() == [4]
    histories.drop(0)
    histories.drop(0)
    histories.apply([change(0, 0, 9)])
    assert histories[0].tokens.tolist() == [9]
    assert trunk.tokens.tolist() == [1, 7]

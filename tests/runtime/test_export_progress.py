"""The share of an export that is over."""

from __future__ import annotations

from agentkv_runtime.export.progress import MEASURED, TRACED, Stage, reached, sharing


def test_stages_weigh_what_they_take_for_a_model_of_this_size() -> None:
    shares: dict[str, list[float]] = {"thin and deep": [], "flat and wide": []}
    for name, layers, nbytes in (("thin and deep", 100, 10_000_000), ("flat and wide", 2, 8_000_000_000)):
        with sharing(shares[name].append, layers, nbytes, MEASURED):
            for stage in MEASURED:
                reached(stage)
                reached(stage, 0.5)
            reached(Stage.WRITING, 1.0)
    for heard in shares.values():
        assert heard == sorted(heard)
        assert (heard[0], heard[-1]) == (0.0, 1.0)
    tried = 2 * list(Stage).index(Stage.TRACING)  # everything before it
    assert shares["thin and deep"][tried] < 0.1 < 0.25 < shares["flat and wide"][tried]


def test_an_export_that_measures_nothing_gives_it_no_time() -> None:
    heard: list[float] = []
    for stages in (MEASURED, TRACED):
        with sharing(heard.append, 10, 1_000_000_000, stages):
            reached(Stage.TRYING)
    assert heard[1] < 0.5 * heard[0]


def test_outside_of_an_export_nobody_hears() -> None:
    heard: list[float] = []
    with sharing(heard.append, 1, 1, TRACED):
        reached(Stage.TORCH)
    reached(Stage.WRITING)
    assert heard == [0.0]

"""Results of a benchmark: sums over samples."""

from __future__ import annotations

import pytest

from agentkv._bench.results import BenchResult, Sample


def sample(group: int, seconds: float, tokens: int, output: int = 7, drafts: tuple[int, ...] = ()) -> Sample:
    """One of `tokens` tokens, in half as many forwards."""
    return Sample(
        group=group,
        seconds=seconds,
        tokens=tokens,
        forwards=tokens // 2,
        rides=tokens // 2,
        drafted=tokens,
        accepted=tokens // 2,
        drafts=drafts,
        draft_seconds=seconds / 10,
        output=((output,),),
    )


def test_times_are_medians_of_each_group() -> None:
    plain = [sample(0, s, 10) for s in (0.4, 9.0, 0.2)] + [sample(1, 0.6, 30) for _ in range(3)]
    fast = [sample(0, s, 10) for s in (0.1, 0.2, 5.0)] + [sample(1, 0.3, 30) for _ in range(3)]
    result = BenchResult.of("edit", "fast", fast, plain)
    assert result.tokens == 40
    assert result.ms_per_token == pytest.approx(1000 * 0.5 / 40)
    assert result.speedup == pytest.approx(2)
    assert (result.tokens_per_forward, result.forwards_per_token, result.acceptance) == (2, 0.5, 0.5)
    assert result.same_output


def test_how_deep_drafts_came_true() -> None:
    made = [sample(0, 1, 10, drafts=(3, 0, 1)), sample(0, 1, 10, drafts=(2,))]
    result = BenchResult.of("edit", "fast", made, made)
    assert (result.drafts, result.accepted_by_depth) == (4, (3, 2, 1))
    assert [result.accepted_at(depth) for depth in (1, 3, 4)] == [0.75, 0.25, 0]


@pytest.mark.parametrize(
    ("output", "where"),
    [
        (((1, 2), (3,)), ""),
        (((1, 2), (4,)), "group 2, prompt 2, token 1: 4, not 3"),
        (((1,), (3,)), "group 2, prompt 1, token 2: None, not 2"),
        (((1, 2, 5), (3,)), "group 2, prompt 1, token 3: 5, not None"),
    ],
)
def test_the_first_token_that_differs(output: tuple[tuple[int, ...], ...], where: str) -> None:
    def made(output: tuple[tuple[int, ...], ...]) -> Sample:
        fields = {name: getattr(usual, name) for name in usual.__dataclass_fields__}
        return Sample(**{**fields, "group": 1, "output": output})

    usual = sample(0, 1, 10)
    result = BenchResult.of("edit", "fast", [usual, made(output)], [usual, made(((1, 2), (3,)))])
    assert (result.difference, result.same_output) == (where, not where)

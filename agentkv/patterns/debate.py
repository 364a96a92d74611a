"""A debate: several speakers answer, read each other's answers, and answer again, until a judge decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from .._aio.tasks import uncancelled
from .._context.branch import Branch
from ._shared import Score, T, Winner, attempt_each, check, checked, close, forks, scored


async def debate(
    trunk: Branch,
    n: int,
    speak: Callable[[Branch, list[T]], Awaitable[T]],
    *,
    score: Score[T],
    rounds: int = 2,
    timeout: float | None = None,
) -> Winner[T]:
    """Lets `n` speakers debate, and returns the best last answer; the trunk stays as it is.

    Du et al. 2023, "Improving Factuality and Reasoning in Language Models through Multiagent Debate".

    Args:
        trunk: the branch that every speaker begins with.
        n: number of speakers.
        speak: called in every round with the speaker's fork, which has its earlier answers, and with the others'
            answers of the round before (none in the first).
        score: judges a last answer, a plain or an async function; the highest wins, on a tie the earlier speaker.
        rounds: number of rounds.
        timeout: seconds after which a speaker who is not done with a round leaves; None for no limit.

    Raises:
        ExceptionGroup: nobody was left; a speaker who fails beside others leaves the debate.
    """
    check(trunk, timeout, counts={"n": n, "rounds": rounds}, speak=speak, score=score)
    async with forks(trunk, n) as speakers:
        said: dict[Branch, T] = {}
        for _ in range(rounds):
            heard, said = said, {}

            async def speak_up(branch: Branch, heard: dict[Branch, T] = heard) -> T:
                others = [words for other, words in heard.items() if other is not branch]
                return await uncancelled(speak(branch, others), "speak")

            async def arrived(
                index: int, words: T, speakers: list[Branch] = speakers, said: dict[Branch, T] = said
            ) -> bool:
                said[speakers[index]] = words
                return False

            errors = await attempt_each(speakers, speak_up, arrived, timeout)
            speakers = checked([branch for branch in speakers if branch in said] or None, errors)
        judged = [Winner(branch, said[branch], await scored(score, said[branch])) for branch in speakers]
        winner = max(judged, key=lambda candidate: candidate.score)
        close([branch for branch in speakers if branch is not winner.branch])
        return winner

"""Where in a message the reasoning is: the same however the message comes, and as the format itself reads it."""

from __future__ import annotations

import random

import pytest
from agentkv_runtime.formats import FAMILIES, Family
from agentkv_runtime.formats.thought import Markers, Place, Stage

REASONING = [family for family in FAMILIES.values() if family.fit({}).thought is not None]
THOUGHTS = ("Hm.", "a < b", "<", "no </thin is one", "Zwölf ◁", "\n\n")


def stage_after(markers: Markers, pieces: list[bytes], place: Place = Place()) -> Place:  # noqa: B008  # immutable
    for piece in pieces:
        place = markers.read(place, piece)
    return place


def cut(text: bytes, rng: random.Random) -> list[bytes]:
    places = sorted(rng.sample(range(len(text) + 1), min(len(text), rng.randrange(1, 8))))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


def test_nearly_every_family_reasons() -> None:
    assert {family.name for family in FAMILIES.values()} - {family.name for family in REASONING} <= {"plain"}


@pytest.mark.parametrize("family", REASONING, ids=lambda family: family.name)
@pytest.mark.parametrize("thought", THOUGHTS)
def test_a_thought_is_where_the_format_reads_it(family: Family, thought: str) -> None:
    form = family.fit({})
    markers = form.thought
    assert markers is not None
    whole = form.write("The answer.", reasoning=thought)
    assert form.parse(whole).reasoning == thought.strip()
    rng = random.Random(family.name + thought)
    end = whole.index(markers.closed) + len(markers.closed)
    for pieces in ([bytes([byte]) for byte in whole.encode()], *(cut(whole.encode(), rng) for _ in range(20))):
        assert stage_after(markers, pieces).stage is Stage.ANSWER
        size = markers.size(Place(), pieces)
        assert len(b"".join(pieces[:size])) >= len(whole[:end].encode()) > len(b"".join(pieces[: size - 1]))
    before = stage_after(markers, [whole[: end - 1].encode()])
    assert before.stage is Stage.INSIDE
    assert markers.rest_of_closed(before) == markers.closed[-1]


@pytest.mark.parametrize("family", REASONING, ids=lambda family: family.name)
def test_an_answer_has_none(family: Family) -> None:
    form = family.fit({})
    markers = form.thought
    assert markers is not None
    said = [form.write("The answer.").encode()]
    assert stage_after(markers, said).stage is Stage.ANSWER
    assert markers.size(Place(), said) == 0


@pytest.mark.parametrize(
    ("said", "stage"),
    [
        ("", Stage.BEFORE),
        (" \n", Stage.BEFORE),
        ("<thi", Stage.BEFORE),
        ("<think>", Stage.INSIDE),
        ("\n<think>\nHm <think> hm", Stage.INSIDE),
        ("<think></think>", Stage.BEHIND),
        ("<think>a</think>\n\n", Stage.BEHIND),
        ("<think>a</think><think>", Stage.INSIDE),
        ("<think>a</think>\n\nSo", Stage.ANSWER),
        ("So <think>", Stage.ANSWER),
        ("<thick", Stage.ANSWER),
    ],
)
def test_stages(said: str, stage: Stage) -> None:
    markers = Markers("<think>", "</think>")
    assert markers.begun(said).stage is stage
    assert stage_after(markers, [bytes([byte]) for byte in said.encode()]).stage is stage


def test_harmony_thinks_in_messages_of_their_own() -> None:
    markers = FAMILIES["harmony"].fit({}).thought
    assert markers is not None
    again = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>"
    assert markers.begun(again + "analysis<|message|>Hm").stage is Stage.INSIDE
    assert markers.begun(again + "final").stage is Stage.ANSWER
    assert markers.reopens(markers.begun(again), b"analysis")
    assert not markers.reopens(markers.begun(again), b"final")


def test_a_marker_that_begins_within_a_character_is_written_whole() -> None:
    markers = Markers("◁think▷", "◁/think▷")
    place = markers.read(markers.begun("◁think▷hm"), "◁".encode()[:1])
    assert markers.rest_of_closed(place) == "◁/think▷"

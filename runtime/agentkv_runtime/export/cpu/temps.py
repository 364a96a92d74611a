"""Placing of a region's temporaries: those that are never in use at once share a place."""

from __future__ import annotations

from collections.abc import Sequence

from agentkv_runtime.export.cpu.blob import Buffer, Instruction, Place

__all__ = ["place_temps"]


def _last_uses(instructions: Sequence[Instruction]) -> dict[int, int]:
    """Index of the last instruction that uses each temporary, by the buffer's id."""
    return {
        id(buffer): index
        for index, instruction in enumerate(instructions)
        for buffer in instruction.buffers()
        if buffer.place is Place.TEMP
    }


def place_temps(instructions: Sequence[Instruction]) -> list[int]:
    """Gives each temporary the index of a place; returns the size of each place, in floats per row."""
    last = _last_uses(instructions)
    sizes: list[int] = []
    free: list[int] = []
    placed: dict[int, Buffer] = {}
    for index, instruction in enumerate(instructions):
        touched = {id(buffer): buffer for buffer in instruction.buffers() if buffer.place is Place.TEMP}
        for key, buffer in touched.items():
            if key in placed:
                continue
            fitting = [place for place in free if sizes[place] == buffer.floats_per_token]
            if fitting:
                free.remove(fitting[0])
                buffer.index = fitting[0]
            else:
                buffer.index = len(sizes)
                sizes.append(buffer.floats_per_token)
            placed[key] = buffer
        free += [buffer.index for key, buffer in touched.items() if last[key] == index]
    return sizes

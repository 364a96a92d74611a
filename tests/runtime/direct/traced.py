"""The program of a GGUF file as torch traces it, beside the one that is written without it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv_runtime.export.lower import lower_model
from agentkv_runtime.gguf.architectures import describe
from agentkv_runtime.gguf.file import open_file
from agentkv_runtime.sources.gguf import load_gguf
from executorch.exir._serialize._program import deserialize_pte_binary

MAX_TOKENS, MAX_LOGITS = 32, 8


@dataclass
class Parts:
    """What two programs have alike where they compute the same."""

    blobs: list[bytes]
    named: dict[str, bytes]
    memory: list[int]
    constants: dict[str, list[Any]]

    @classmethod
    def of(cls, data: bytes) -> Parts:
        file = deserialize_pte_binary(data)
        forward, *others = file.program.execution_plan
        named = file.named_data
        return cls(
            [bytes(each.data) for each in file.program.backend_delegate_data],
            {name: bytes(named.buffers[entry.buffer_index]) for name, entry in named.pte_data.items()},
            forward.non_const_buffer_sizes,
            {plan.name: [value.val for value in plan.values] for plan in others},
        )


def traced_parts(path: Path, place: Path) -> Parts:
    """Of a GGUF file."""
    place.mkdir()
    config = describe(open_file(path)).config
    (place / "config.json").write_text(json.dumps(config))
    model = load_gguf(path, place)
    lowered = lower_model(model, quant="file", max_tokens=MAX_TOKENS, max_logits=MAX_LOGITS)
    return Parts.of(lowered.buffer)

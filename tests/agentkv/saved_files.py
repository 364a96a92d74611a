"""Files of saved branches, tensor by tensor: taken apart, and put together with other contents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from agentkv_runtime.tensor_file import TensorFile, TensorSpec, TensorWriter

Tensors = dict[str, tuple[TensorSpec, np.ndarray]]


def taken_apart(path: Path) -> tuple[Tensors, dict[str, str]]:
    with TensorFile(path) as file:
        metadata = {name: value for name, value in file.metadata.items() if not name.startswith("digest")}
        return {name: (spec, file.whole(name).copy()) for name, spec in file.tensors.items()}, metadata


def put_together(path: Path, tensors: Tensors, metadata: dict[str, str], align: int = 8) -> None:
    writer = TensorWriter(path, [spec for spec, _ in tensors.values()], metadata, align)
    for name, (_, data) in tensors.items():
        writer.append(name, data)
    writer.finish()

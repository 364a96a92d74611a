"""A delegated region, written instruction by instruction; `export.cpu.compiler` makes the same from a traced graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from agentkv_runtime.export.cpu.blob import (
    Add,
    BlockLinear,
    BlockLookup,
    Buffer,
    DType,
    Extent,
    Gated,
    Instruction,
    Numbers,
    Place,
    Program,
    RmsNorm,
    Rope,
    RopeTable,
    UpdateAndAttend,
    View,
)
from agentkv_runtime.export.cpu.blob_weights import Blocks
from agentkv_runtime.export.cpu.temps import place_temps
from agentkv_runtime.export.frequencies import Frequencies
from agentkv_runtime.export.gates import Gate
from agentkv_runtime.gguf.weights import RowBlocks

__all__ = ["Attention", "Layer", "Region", "columns", "heads"]

_NOTHING = Extent(0, 0)
_TOKENS = Extent(0, 1)


@dataclass(frozen=True)
class Layer:
    """A linear layer: its weight in blocks, and its bias or None."""

    blocks: RowBlocks
    bias: Numbers | None = None
    name: str = ""

    @property
    def outputs(self) -> int:
        """Number of outputs, the rows of the weight."""
        return self.blocks.shape[0]


@dataclass(frozen=True)
class Attention:
    """Constants of an attention instruction."""

    layer_id: int
    scale: float
    window: int = 0


class Region:
    """A region in the making. Each method appends instructions and returns the view of their result."""

    def __init__(self) -> None:
        self._program = Program()

    def integers(self) -> int:
        """Adds an int64 input `[T]` and returns its index."""
        self._program.inputs.append((DType.INT64, (_TOKENS,)))
        return len(self._program.inputs) - 1

    def floats(self, width: int) -> View:
        """Adds a float32 input `[1, T, width]`."""
        self._program.inputs.append((DType.FLOAT32, (Extent(1, 0), _TOKENS, Extent(width, 0))))
        return _row(Buffer(Place.INPUT, len(self._program.inputs) - 1), width)

    def lookup(self, ids: int, table: RowBlocks, width: int, factor: float) -> View:
        """Rows of `table` with the ids of input `ids`, times `factor`."""
        out = self._new(width)
        self._emit(BlockLookup(ids, out, Blocks(table.type, [table]), table.shape[0], factor))
        return out

    def rope_table(self, position: int, frequencies: Frequencies) -> View:
        """Cosines and sines for the positions of input `position`."""
        out = self._new(2 * frequencies.inv_freq.size)
        constant = self._constant(lambda: frequencies.inv_freq)
        self._emit(RopeTable(position, out, constant, frequencies.scaling))
        return out

    def norm(self, x: View, weight: Numbers, eps: float, *, in_place: bool = False) -> View:
        """RMS norm of each head's rows."""
        out = x if in_place else self._new(x.heads * x.dim, x.heads)
        self._emit(RmsNorm(x, out, self._constant(weight), eps))
        return out

    def rope(self, x: View, table: View, *, in_place: bool) -> View:
        """Each head's rows, rotated by `table`."""
        out = x if in_place else self._new(x.heads * x.dim, x.heads)
        self._emit(Rope(x, out, table, False))
        return out

    def attend(self, attention: Attention, position: int, q: View, k: View, v: View) -> View:
        """Stores k and v in the cache and attends with q; the result has its heads joined."""
        out = self._new(q.heads * v.dim, q.heads)
        self._emit(
            UpdateAndAttend(
                layer_id=attention.layer_id,
                position=position,
                scale=attention.scale,
                window=attention.window,
                chunk=0,
                cap=0.0,
                sink_scores=0,
                slopes=0,
                writes=True,
                q=q,
                k=k,
                v=v,
                dst=out,
            )
        )
        return heads(out, 1)

    def linear(self, x: View, layer: Layer) -> View:
        """The result of a linear layer."""
        return self.linears(x, [layer])[0]()

    def linears(self, x: View, layers: Sequence[Layer]) -> list[Callable[[], View]]:
        """Functions that return each layer's result over `x`. Layers of one block type share a product, made once."""
        products: dict[int, list[int]] = {}
        for index, layer in enumerate(layers):
            products.setdefault(layer.blocks.type, []).append(index)
        found: dict[int, View] = {}

        def result(index: int) -> View:
            if index not in found:
                together = products[layers[index].blocks.type]
                found.update(zip(together, self._product(x, [layers[each] for each in together]), strict=True))
            return found[index]

        return [lambda index=index: result(index) for index in range(len(layers))]  # type: ignore[misc]

    def add(self, a: View, b: View) -> View:
        """a + b."""
        out = self._new(a.dim)
        self._emit(Add(a, b, out))
        return out

    def gated(self, gate: View, up: View, kind: Gate) -> View:
        """kind(gate) * up, stored in the place of `gate`."""
        self._emit(Gated(gate, up, gate, int(kind)))
        return gate

    def finish(self, out: View, *sizes: int) -> Program:
        """Makes `out` the region's output `[*sizes, T, width]` and returns the program."""
        out.buffer.place, out.buffer.index = Place.OUTPUT, 0
        shape = (*(Extent(size, 0) for size in sizes), _TOKENS, Extent(out.heads * out.dim, 0))
        self._program.outputs.append((DType.FLOAT32, shape))
        self._program.temps = place_temps(self._program.instructions)
        return self._program

    def _product(self, x: View, layers: Sequence[Layer]) -> list[View]:
        widths = [layer.outputs for layer in layers]
        whole = self._new(sum(widths))
        titles = [(layer.name, layer.outputs) for layer in layers]
        blocks = Blocks(layers[0].blocks.type, [layer.blocks for layer in layers], layers=titles)
        self._emit(BlockLinear(heads(x, 1), whole, blocks, self._bias(layers, widths)))
        return [columns(whole, end - width, width) for end, width in zip(accumulate(widths), widths, strict=True)]

    def _bias(self, layers: Sequence[Layer], widths: Sequence[int]) -> int:
        if all(layer.bias is None for layer in layers):
            return 0
        return 1 + self._constant(*(layer.bias or _zeros(width) for layer, width in zip(layers, widths, strict=True)))

    def _constant(self, *parts: Numbers) -> int:
        self._program.constants.append(list(parts))
        return len(self._program.constants) - 1

    def _new(self, width: int, n_heads: int = 1) -> View:
        return heads(_row(Buffer(Place.TEMP, 0, width), width), n_heads)

    def _emit(self, instruction: Instruction) -> None:
        self._program.instructions.append(instruction)


def heads(x: View, n_heads: int) -> View:
    """The same rows, divided into `n_heads` heads; a single head has stride 0."""
    dim = x.heads * x.dim // n_heads
    return replace(x, heads=n_heads, dim=dim, head_stride=Extent(dim if n_heads > 1 else 0, 0))


def columns(x: View, start: int, width: int) -> View:
    """`width` columns of every row from `start` on, as one head."""
    return replace(x, dim=width, offset=Extent(x.offset.constant + start, 0))


def _row(buffer: Buffer, width: int) -> View:
    return View(buffer, 1, width, _NOTHING, _NOTHING, Extent(width, 0))


def _zeros(width: int) -> Numbers:
    zeros: npt.NDArray[np.float32] = np.zeros(width, np.float32)
    return lambda: zeros

"""The torch byte layer: K and V pools on any device, and attention with an explicit mask.

Every score is computed and the invisible ones are masked, so that each row sees exactly the plan's dense
mask. Tests compare the other byte layers with this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import index

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import scaled_dot_product_attention

from agentkv_runtime._core import CacheFull, Cells, InvalidRange, InvalidTensor, StepPlan
from agentkv_runtime.backends import BACKENDS, keys_and_values
from agentkv_runtime.hf.convolution import as_heads, sum_of_taps
from agentkv_runtime.hf.latent import is_start
from agentkv_runtime.hf.linear_attention import LinearInputs
from agentkv_runtime.hf.scoring import Scoring
from agentkv_runtime.hf.selective_scan import ScanInputs
from agentkv_runtime.torch_backend.pool import Pool
from agentkv_runtime.torch_backend.rows import CodeRows, FloatRows, Rows, rows_of

__all__ = ["TorchCache"]


class _Step:
    """A step's plan and its tensors on the device, shared by all layers."""

    def __init__(self, plan: StepPlan, device: torch.device) -> None:
        self.plan = plan
        self.read_len = int(plan.read_len)
        cells = [int(cell) for cell in plan.write_cells]
        self.cells_needed = max(self.read_len, max(cells) + 1)
        self.write_cells = torch.tensor(cells, dtype=torch.int64, device=device)
        self._device = device
        self._masks: dict[tuple[int, int, int], torch.Tensor] = {}
        self._seen: torch.Tensor | None = None

    def mask(self, window: int, sinks: int, chunk: int) -> torch.Tensor:
        """Mask of the cells that each row sees, bool `[n_tokens, read_len]` on the device."""
        key = (window, sinks, chunk)
        if key not in self._masks:
            dense = torch.as_tensor(self.plan.mask(window, sinks, chunk)).to(torch.bool)
            self._masks[key] = dense.to(self._device)
        return self._masks[key]

    def branch(self, row: int) -> torch.Tensor:
        """Cells that a row sees, its own included, in the order of their positions, int64."""
        cells = self.mask(0, 0, 0)[row].nonzero()[:, 0]
        return cells[self.seen[cells].argsort()]

    @property
    def seen(self) -> torch.Tensor:
        """Position of each cell's token, int64 `[read_len]` on the device; 0 for cells that no row sees."""
        if self._seen is None:
            self._seen = torch.as_tensor(self.plan.cell_positions).to(self._device)
        return self._seen


class TorchCache:
    """Pools `[1, n_kv_heads, cells, head_dim]` per layer, grown by doubling from `min_chunk` up to `capacity`."""

    def __init__(
        self,
        planner: Cells,
        *,
        n_layers: int,
        capacity: int,
        kv_dtype: str,
        min_chunk: int,
        window: int = 0,
        sinks: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        known = BACKENDS["torch"].kv_dtypes
        if kv_dtype not in known:
            raise InvalidTensor(f"kv_dtype {kv_dtype!r} is not one of {', '.join(known)} on the torch backend")
        self.planner = planner
        self.capacity = capacity
        keys, values = keys_and_values(kv_dtype)
        self.key_rows, self.value_rows = rows_of(keys), rows_of(values)
        self.sight = (window, sinks)
        self.min_chunk = max(1, min(min_chunk, capacity))
        self.device = torch.device(device)
        self._widens = self.device.type == "cpu"  # floats to float32, as halves are slow there
        self._pools: list[tuple[Pool, ...] | None] = [None] * n_layers  # keys, and values unless they are in keys
        self._step: _Step | None = None

    @property
    def bytes(self) -> int:
        """Bytes of K and V allocated now, all layers."""
        return sum(pool.bytes for pools in self._pools for pool in pools or ())

    @property
    def allocated_cells(self) -> int:
        """Cells that the largest pool has room for."""
        return max((pools[0].cells for pools in self._pools if pools is not None), default=0)

    @contextmanager
    def step(self, positions: Sequence[int]) -> Iterator[None]:
        """Plans once for all layers called inside the block; outside, each call plans and waits for the device."""
        self._step = _Step(self.planner.plan(positions), self.device)
        try:
            yield
        finally:
            self._step = None

    def attend(
        self,
        layer_id: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        position: torch.Tensor,
        scoring: Scoring,
        writes: bool = True,
        sinks: int = 0,
    ) -> torch.Tensor:
        """Writes k `[1, Hkv, T, D]` and v `[1, Hkv, T, Dv]`; attends with q `[1, Hq, T, D]`, giving `[1, Hq, T, Dv]`.

        A row sees the cells of its sequence at positions <= its own, as far back as `scoring` says, and the first
        `sinks` beyond its window; the cache's own window applies where it is narrower. All rows attend over the pool
        at once. On the CPU scores and sums are float32 for every kv_dtype; elsewhere torch's kernels take floats in the
        pool's dtype, without a copy. Raises InvalidTensor for shapes that do not fit.
        """
        step = self._step or _Step(self.planner.plan(position.tolist()), self.device)
        kv_heads, rows, dim = k.shape[1:]
        group = q.shape[1] // kv_heads
        if q.shape[1] != group * kv_heads or q.shape[2] != rows or q.shape[3] != dim:
            raise InvalidTensor(f"q {tuple(q.shape)} does not fit k {tuple(k.shape)}")
        if writes and v.shape[:3] != k.shape[:3]:
            raise InvalidTensor(f"v {tuple(v.shape)} does not fit k {tuple(k.shape)}")
        written = (k,) if is_start(v, k) else (k, v)
        pools = self._write(layer_id, written, step) if writes else self._pools[layer_id]
        if pools is None:
            raise InvalidTensor(f"layer {layer_id} attends to what no layer wrote")
        window = scoring.window
        if self.sight[0] > 0 and not 0 < window <= self.sight[0]:
            window, sinks = self.sight
        mask = step.mask(window, sinks, scoring.chunk)
        widens = self._widens or not scoring.is_plain
        queries = self.key_rows.turn(q[0].to(torch.float32 if widens else pools[0].dtype))
        keys, values = pools[0].read(step.read_len, queries.dtype), pools[-1].read(step.read_len, queries.dtype)
        values = values[..., : v.shape[3]]
        if scoring.is_plain:
            sums = scaled_dot_product_attention(
                queries[None], keys[None], values[None], attn_mask=mask, scale=scoring.scale, enable_gqa=True
            )[0]
        else:
            queries = queries.reshape(kv_heads, group * rows, dim)
            products = (queries @ keys.transpose(-1, -2)).reshape(q.shape[1], rows, -1)
            weights = scoring.weights(products, position.to(self.device), step.seen, mask)
            sums = weights.reshape(kv_heads, group * rows, -1) @ values
        return self.value_rows.turn_back(sums).reshape(1, q.shape[1], rows, -1).to(q.dtype)

    def convolve(
        self,
        layer_id: int,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        position: torch.Tensor,
    ) -> torch.Tensor:
        """Writes x `[1, T, C]`; convolves each row with the earlier rows of its sequence, float32 `[1, T, C]`.

        weight `[C, 1, W]`, bias `[C]`. Raises InvalidTensor for shapes that do not fit.
        """
        step = self._step or _Step(self.planner.plan(position.tolist()), self.device)
        (pool,) = self._write(layer_id, (as_heads(x),), step, FloatRows(torch.float32))
        rows = pool.read(step.read_len).transpose(0, 1).flatten(1)
        visible, position = step.mask(weight.shape[2], 0, 0), position.to(self.device)

        def tap(j: int) -> torch.Tensor:
            at = visible & (step.seen == (position - j).unsqueeze(1))
            return at.float() @ rows

        return sum_of_taps(tap, weight.float(), None if bias is None else bias.float())[None]

    def attend_linear(self, layer_id: int, inputs: LinearInputs, position: torch.Tensor) -> torch.Tensor:
        """Linear attention of T rows, `[1, T, H, V]`. Caches each position's key, decay and addition to the state in
        float32; a row sums those that it sees."""
        step = self._step or _Step(self.planner.plan(position.tolist()), self.device)
        q, k, decay = inputs.for_each_head()
        rows = (torch.cat((k, decay), -1)[None].transpose(1, 2), inputs.v.transpose(1, 2))
        pools = self._write(layer_id, rows, step, FloatRows(torch.float32))
        out = []
        for t in range(q.shape[0]):
            cells = step.branch(t)
            held, added = pools[0].read(step.read_len)[:, cells], pools[1].read(step.read_len)[:, cells]
            keys, decays = held[..., : k.shape[2]], held[..., k.shape[2] :]
            since = torch.nn.functional.pad(decays[:, 1:], (0, 0, 0, 1)).flip(1).cumsum(1).flip(1)
            faded = keys * since.exp()
            added[:, -1] = inputs.added(t, torch.einsum("hnk,hk,hnv->hv", faded[:, :-1], k[t], added[:, :-1]))
            pools[1].write(step.write_cells[t : t + 1], added[None, :, -1:])
            out.append(torch.einsum("hnk,hk,hnv->hv", faded, q[t], added))
        return inputs.skipped(torch.stack(out)[None])

    def scan(self, layer_id: int, inputs: ScanInputs, position: torch.Tensor) -> torch.Tensor:
        """Selective scan of T rows, `[1, T, C]`. Caches the state of each position in float32."""
        step = self._step or _Step(self.planner.plan(position.tolist()), self.device)
        states = inputs.rates.new_zeros(1, inputs.rates.shape[0], inputs.x.shape[1], inputs.rates.shape[1])
        (pool,) = self._write(layer_id, (states,), step, FloatRows(torch.float32))
        out = []
        for t in range(inputs.x.shape[1]):
            before = pool.read(step.read_len)[:, step.branch(t)[-2:-1]].sum(1)  # zeros where it is the first
            state = inputs.step(before, t)
            pool.write(step.write_cells[t : t + 1], state[None, :, None])
            out.append(inputs.c[0, t] @ state)
        return torch.stack(out)[None]

    @torch.inference_mode()
    def update_and_attend(
        self,
        layer: int,
        positions: npt.NDArray[np.int64],
        q: npt.NDArray[np.float32],
        k: npt.NDArray[np.float32],
        v: npt.NDArray[np.float32],
        scale: float,
        window: int = 0,
        sinks: int = 0,
    ) -> npt.NDArray[np.float32]:
        """`attend` over NumPy arrays without a batch dimension; see `ByteLayer`."""
        queries, keys, values = (torch.from_numpy(array).to(self.device)[None] for array in (q, k, v))
        scoring = Scoring(scale, window)
        out = self.attend(layer, queries, keys, values, torch.from_numpy(positions), scoring, True, sinks)
        heads: npt.NDArray[np.float32] = out[0].cpu().numpy()
        return heads

    @torch.inference_mode()
    def move_cells(self, src: Sequence[int], dst: Sequence[int]) -> None:
        """Copies cell src[i] to dst[i] in every layer, as if all were read first. Raises InvalidRange."""
        if len(src) != len(dst):
            raise InvalidRange(f"{len(src)} source cells for {len(dst)} destinations")
        cells = min((pools[0].cells for pools in self._pools if pools is not None), default=0)
        for cell in (*src, *dst):
            if cells and not 0 <= cell < cells:
                raise InvalidRange(f"cannot move cell {cell}; {cells} are allocated")
        for pools in self._pools:
            for pool in pools or ():
                pool.move(src, dst)

    @torch.inference_mode()
    def shrink(self, cells: int) -> None:
        """Frees memory above the first `cells` cells of each pool for which that is half or more, as pools double."""
        for pools in self._pools:
            for pool in pools or ():
                if 2 * cells <= pool.cells:
                    pool.shrink(cells)

    @property
    def cell_bytes(self) -> int:
        """Bytes that K and V of one cell take, all layers; 0 until a write of each layer has shown its shape."""
        return sum(pool.cell_bytes for pools in self._written() for pool in pools)

    @property
    def cell_arrays(self) -> list[tuple[str, str, list[int], None]]:
        """Arrays that a cell consists of, (name, dtype, shape, None), in order; empty until each layer was written."""
        return [
            (*array, None)
            for layer, pools in enumerate(self._written())
            for name, pool in zip("kv", pools, strict=False)
            for array in pool.describe(f"layers.{layer}.{name}")
        ]

    @torch.inference_mode()
    def read_cells(self, cells: Sequence[int]) -> npt.NDArray[np.uint8]:
        """K and V of these cells as stored, uint8 `[n, cell_bytes]`. Raises InvalidRange."""
        layers = self._written()
        self._check_cells(cells, min((pools[0].cells for pools in layers), default=0))
        if not cells:
            return np.zeros((0, self.cell_bytes), np.uint8)
        return np.concatenate([pool.read_bytes(cells) for pools in layers for pool in pools], axis=1)

    @torch.inference_mode()
    def write_cells(self, cells: Sequence[int], bytes: npt.NDArray[np.uint8]) -> None:
        """Writes `bytes` `[n, cell_bytes]` of `read_cells` into these distinct cells. Raises InvalidRange."""
        self._check_cells(cells, self.capacity)
        if not self.cell_bytes:
            raise InvalidRange("cells cannot be written before a forward has told the shape of every layer")
        if bytes.dtype != np.uint8 or bytes.shape != (len(cells), self.cell_bytes):
            raise InvalidRange(
                f"{bytes.dtype} bytes {bytes.shape} for {len(cells)} cells of {self.cell_bytes} bytes each"
            )
        if not cells:
            return
        at = 0
        for pools in self._written():
            for pool in pools:
                self._reserve(pool, max(cells) + 1)
                pool.restore(cells, bytes[:, at : at + pool.cell_bytes])
                at += pool.cell_bytes

    def _written(self) -> list[tuple[Pool, ...]]:
        pools = [pools for pools in self._pools if pools is not None]
        return pools if len(pools) == len(self._pools) else []

    @staticmethod
    def _check_cells(cells: Sequence[int], end: int) -> None:
        for cell in cells:
            if not 0 <= index(cell) < end:
                raise InvalidRange(f"cell {cell} is out of range [0, {end})")

    def _write(
        self, layer_id: int, written: tuple[torch.Tensor, ...], step: _Step, kept: Rows | None = None
    ) -> tuple[Pool, ...]:
        """Writes rows `[1, H, T, D]` of keys and values, or of keys alone, into a layer's pools, which it returns."""
        if not 0 <= layer_id < len(self._pools):
            raise InvalidTensor(f"layer {layer_id} is outside [0, {len(self._pools)})")
        if written[0].shape[2] != len(step.write_cells):
            raise InvalidTensor(f"k {tuple(written[0].shape)} does not fit a step of {len(step.write_cells)} rows")
        held = self._pools[layer_id]
        if len(written) == 1 and isinstance(kept or self.key_rows, CodeRows):
            raise InvalidTensor(f"layer {layer_id} has its values in its keys, which are not kept as codes")
        rows = [each.where(each.isfinite(), 0) for each in written]  # else rows that do not see them would be NaN
        formats = (self.key_rows, self.value_rows) if kept is None else (kept, kept)
        pools = held or tuple(
            Pool(as_kept, each.shape[1], each.shape[3], self.device)
            for as_kept, each in zip(formats, rows, strict=False)
        )
        for name, pool, new in zip("kv", pools, rows, strict=False):
            if (pool.heads, pool.dim) != (new.shape[1], new.shape[3]):
                raise InvalidTensor(
                    f"{name} {tuple(new.shape)} does not fit layer {layer_id} of {pool.heads} heads of {pool.dim}"
                )
        for pool in pools:
            self._reserve(pool, step.cells_needed)
        self._pools[layer_id] = pools
        for pool, new in zip(pools, rows, strict=True):
            pool.write(step.write_cells, new)
        return pools

    def _reserve(self, pool: Pool, cells: int) -> None:
        if cells <= pool.cells:
            return
        size = max(pool.cells, self.min_chunk)
        while size < cells:
            size *= 2
        size = min(size, self.capacity)
        if size < cells:
            raise CacheFull(f"the plan needs {cells} cells and the pools stop at {self.capacity}")
        pool.grow(size)

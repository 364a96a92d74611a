"""Options of `Context.open`, checked before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentkv_runtime.backends import BACKENDS, KV_DTYPES, QUANTIZED_KV_DTYPES

from .._chat.call_format import CallFormat
from .._types.checks import check_keeps_files, checked_count, checked_word
from .._types.errors import InvalidInput
from .._types.show import preview
from .drafters import Speculative, checked_strategy

MOST_POSITIONS = 2**31 - 1
LEAST_PREFIX_BYTES = 1 << 20
WINDOW_SPARE = 80
"""Cells of a branch beyond its window and sinks: cells that have left the window are freed in blocks."""
QUANTIZATIONS = tuple(dict.fromkeys(quant for backend in BACKENDS.values() for quant in backend.quantizations))


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `Context.open`. Raises InvalidInput for anything out of range."""

    path: Path
    capacity: int
    kv_dtype: str
    max_batch_tokens: int
    threads: int | None
    speculative: Speculative | None
    backend: str | None
    device: str | None
    call_format: CallFormat | None
    retain: int | None
    window: int | None
    sinks: int
    quantize_after: int | None
    quant: str | None
    prefix_cache: Path | None
    prefix_cache_bytes: int

    def __post_init__(self) -> None:
        if self.device is not None and (not isinstance(self.device, str) or not self.device):
            raise InvalidInput(
                f"device is {preview(self.device)}, but it must be None or a device name of torch, such as 'cuda'"
            )
        checked: dict[str, object] = {
            "kv_dtype": checked_word(self.kv_dtype, "kv_dtype", KV_DTYPES),
            "backend": None if self.backend is None else _checked_backend(self.backend),
            "quant": None if self.quant is None else checked_word(self.quant, "quant", QUANTIZATIONS),
            "capacity": checked_count(self.capacity, "capacity", 1, 2**31 - 1),
            "max_batch_tokens": checked_count(self.max_batch_tokens, "max_batch_tokens", 1, 2**31 - 1),
            "threads": None if self.threads is None else checked_count(self.threads, "threads", 1, 1024),
            "speculative": checked_strategy(self.speculative),
            "window": None if self.window is None else checked_count(self.window, "window", 1, MOST_POSITIONS),
            "sinks": checked_count(self.sinks, "sinks", 0, MOST_POSITIONS),
            "quantize_after": (
                None
                if self.quantize_after is None
                else checked_count(self.quantize_after, "quantize_after", 0, MOST_POSITIONS)
            ),
            "prefix_cache_bytes": checked_count(
                self.prefix_cache_bytes, "prefix_cache_bytes", LEAST_PREFIX_BYTES, 2**62
            ),
            "retain": None if self.retain is None else checked_count(self.retain, "retain", 0, 2**31 - 1),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.sinks and self.window is None:
            raise InvalidInput(f"sinks is {self.sinks}, but without a window nothing is let go; give a window as well")
        least = 0 if self.window is None else int(self.window) + int(self.sinks) + WINDOW_SPARE
        if least > int(self.capacity):
            raise InvalidInput(
                f"capacity is {self.capacity}, but a branch under window={self.window} and sinks={self.sinks} takes "
                f"up to {least} cells; give capacity={least} or more, or a smaller window"
            )
        if self.quantize_after is not None and self.kv_dtype in QUANTIZED_KV_DTYPES:
            raise InvalidInput(
                f"quantize_after is {self.quantize_after}, but kv_dtype {self.kv_dtype!r} quantises every position; "
                "give kv_dtype='fp16', 'bf16' or 'fp32', or leave quantize_after out"
            )
        if self.prefix_cache is None:
            return
        check_keeps_files("prefix_cache")
        if self.quantize_after is not None:
            raise InvalidInput(
                f"prefix_cache is {self.prefix_cache}, but with quantize_after cells depend on how long their branch "
                "was when it was computed, so that no other prompt may begin with them; leave one of the two out"
            )

    def check_rows(self, latent: bool) -> None:
        """Raises InvalidInput for cache options that latent attention does not support."""
        if not latent:
            return
        if self.kv_dtype in QUANTIZED_KV_DTYPES:
            raise InvalidInput(
                f"kv_dtype is {self.kv_dtype!r}, but this model has latent attention, "
                "whose rows are kept as floats; give kv_dtype='fp16', 'bf16' or 'fp32'"
            )
        if self.quantize_after is not None:
            raise InvalidInput(
                f"quantize_after is {self.quantize_after}, but latents, which this model keeps, are not quantised; "
                "leave it out"
            )

    def check_states(self, linear: bool) -> None:
        """Raises InvalidInput for cache options that layers with recurrent states do not support."""
        if not linear:
            return
        if self.window is not None:
            raise InvalidInput(
                f"window is {self.window}, but this model has layers that keep states, which hold all that "
                "came before; leave window out"
            )
        if self.quantize_after is not None:
            raise InvalidInput(
                f"quantize_after is {self.quantize_after}, but this model has layers that keep states, which are not "
                "quantised; leave it out"
            )

    def check_device(self, is_gguf: bool) -> None:
        """Raises InvalidInput for a device where the torch backend, which alone takes one, does not run the model."""
        if self.device is None or self.backend == "torch":
            return
        if self.backend is not None:
            raise InvalidInput(
                f"device is {self.device!r}, but backend {self.backend!r} takes none; leave device out, or give "
                "backend='torch' for a Hugging Face folder"
            )
        if is_gguf:
            raise InvalidInput(
                f"device is {self.device!r}, but GGUF files run on backend 'cpu' or 'mlx', which take none; leave it "
                "out, or give a Hugging Face folder"
            )

    def check_backend(self, backend: str) -> None:
        """Raises InvalidInput for options that a backend does not support."""
        if self.quantize_after is not None and backend != "cpu":
            raise InvalidInput(
                f"quantize_after is {self.quantize_after}, but the cells of backend {backend!r} cannot be quantised "
                "where they are; leave it out, give kv_dtype='int8', or export the model with --backend cpu"
            )


def _checked_backend(backend: object) -> str:
    """One of BACKENDS. Raises InvalidInput, which says how a GPU is asked for."""
    try:
        return checked_word(backend, "backend", tuple(BACKENDS))
    except InvalidInput as error:
        raise InvalidInput(f"{error}; on a GPU: backend='mlx', or backend='torch' with device='cuda'") from None

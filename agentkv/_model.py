"""Opening a model: a model folder on its own backend, or a Hugging Face folder as it is, on torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkv_runtime.backends import BACKENDS, KV_DTYPES, QUANTIZED_KV_DTYPES
from agentkv_runtime.metadata import Kept

from ._call_format import CallFormat
from ._errors import AgentKVError, InvalidInput, ModelError, opening_error
from ._inputs import checked_count, checked_word
from ._model_info import ModelInfo
from ._shown import shown
from ._speculation import Speculation, Speculative, checked_strategy
from ._stats import Snapshot
from ._window import Window, window_of
from .spec._built_in import DraftTarget

if TYPE_CHECKING:
    from agentkv_runtime.engine import Engine
    from agentkv_runtime.folder import ModelFolder
    from agentkv_runtime.tokenizer import Tokenizer

MOST_POSITIONS = 2**31 - 1
WINDOW_SPARE = 80
"""Cells of a branch beyond its window and sinks: what has left the window is let go in blocks."""
QUANTIZATIONS = tuple(dict.fromkeys(quant for backend in BACKENDS.values() for quant in backend.quantizations))
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(/[\w.-]+\.gguf)?(@[\w./-]+)?")
MOST_BRANCHES = 256
SPARE_SEQUENCES = 16  # for what is saved, loaded or set aside at one time, beside all branches


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `Context.open` was asked for. Raises InvalidInput for anything out of range."""

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

    def __post_init__(self) -> None:
        if self.device is not None and not isinstance(self.device, str):
            raise InvalidInput(
                f"device is {shown(self.device)}, but it must be None or a device name of torch, such as 'cuda'"
            )
        checked: dict[str, object] = {
            "kv_dtype": checked_word(self.kv_dtype, "kv_dtype", KV_DTYPES),
            "backend": None if self.backend is None else checked_word(self.backend, "backend", tuple(BACKENDS)),
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

    def check_rows(self, latent: bool) -> None:
        """Raises InvalidInput for rows that the model's layers cannot be kept as."""
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
        """Raises InvalidInput for what a model with layers of linear attention cannot do."""
        if not linear:
            return
        if self.window is not None:
            raise InvalidInput(
                f"window is {self.window}, but this model has layers of linear attention, whose states hold all that "
                "came before; leave window out"
            )
        if self.quantize_after is not None:
            raise InvalidInput(
                f"quantize_after is {self.quantize_after}, but the layers of linear attention of this model are not "
                "quantised; leave it out, or give kv_dtype='int8' for its other layers"
            )

    def check_backend(self, backend: str) -> None:
        """Raises InvalidInput for what a backend cannot do."""
        if self.quantize_after is not None and backend != "cpu":
            raise InvalidInput(
                f"quantize_after is {self.quantize_after}, but the cells of backend {backend!r} cannot be quantised "
                "where they are; leave it out, give kv_dtype='int8', or export the model with --backend cpu"
            )


@dataclass(frozen=True, slots=True)
class OpenModel:
    """What the event loop keeps of an open model."""

    info: ModelInfo
    tokenizer: Tokenizer
    speculation: Speculation
    fingerprint: Callable[[], str]
    """Of a model without a program, which has none in its info; reads all weights."""
    window: str
    """And sinks, where the model was given some that it has not by itself: cells are of one such choice."""
    call_format: CallFormat | None
    """That was asked for, or else the one that the folder names; None where neither does."""
    options: Options


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """What stays with the thread that opened the model."""

    engine: Engine
    session: Any
    speculation: Speculation

    def snapshot(self) -> Snapshot:
        """Counters of the engine and its cache."""
        session = self.session
        return Snapshot(
            self.engine.stats(), session.allocated_cells, session.kv_bytes, session.mapped_bytes, session.states
        )

    def close(self) -> None:
        """Lets go of what others may still refer to."""
        self.speculation.close()


def open_model(options: Options) -> tuple[OpenEngine, OpenModel]:
    """Loads the model and makes the engine over it, on the calling thread. Raises ModelError."""
    from agentkv_runtime import folder
    from agentkv_runtime.engine import Engine

    try:
        options = _found(options)
        if options.backend == "torch" or folder.is_hf_folder(options.path):
            session, info, tokenizer, window = _open_torch(options)
            source, fingerprint = None, session.model.fingerprint
        else:
            source = folder.read_model_folder(options.path)
            session, info, tokenizer, window = _open_exported(options, source)
            fingerprint = partial(str, info.fingerprint)
            source.check_current()
        token_bytes = tokenizer.token_bytes(info.vocab_size)
        tokenizer.eos_ids  # noqa: B018 - a folder may name ends that are no ids
    except AgentKVError:
        raise
    except Exception as error:
        raise opening_error(error, options.path) from error
    engine = Engine(
        session,
        session.cache,
        token_bytes=token_bytes,
        eos_ids=tokenizer.eos_ids,
        special_ids=tokenizer.special_ids,
        max_batch_tokens=options.max_batch_tokens,
        max_branches=MOST_BRANCHES,
        max_positions=min(info.max_positions or 0, MOST_POSITIONS),
        retain=options.capacity if options.retain is None else options.retain,
        window=window.length,
        sinks=window.sinks,
        reach=window.reach,
        quantize_after=-1 if options.quantize_after is None else options.quantize_after,
        # Other cells are whole, but for states.
        layer_windows=window.groups if info.backend == "cpu" or window.states else (),
        states=window.states,
    )
    target = DraftTarget(
        path=info.path,
        folder=source,
        vocab_size=info.vocab_size,
        capacity=options.capacity,
        kv_dtype=options.kv_dtype,
    )
    speculation = Speculation(options.speculative, target)
    drafter = speculation.open_default()
    if drafter is not None:
        engine.attach(drafter)  # it hears of every branch from the first token on
    imposed = "" if options.window is None else f"{options.window}+{options.sinks}"
    named = options.call_format
    if named is None and source and tokenizer.response_template is None:
        named = source.manifest.call_format
    return OpenEngine(engine, session, speculation), OpenModel(
        info, tokenizer, speculation, fingerprint, imposed, named, options
    )


def _found(options: Options) -> Options:
    """The same with the path of a kept model, where they name one. Raises StoreError."""
    from agentkv_runtime.store.entries import find

    if options.backend == "torch" or options.path.exists():
        return options
    name = str(options.path)
    entry = find(name, backend=options.backend, quant=options.quant)
    if entry is not None:
        entry.touch()
        return replace(options, path=entry.path)
    if HUB_NAME.fullmatch(name):
        raise ModelError(
            f"{name}: no such folder, and no model that was pulled. If it is one on the Hugging Face hub: "
            f"agentkv pull {name}"
        )
    if len(options.path.parts) == 1:
        raise ModelError(
            f"{name}: no such folder, and no model that was pulled. `agentkv list` shows those that were; give one of "
            "them, or the folder that `agentkv export` wrote"
        )
    return options


def _open_torch(options: Options) -> tuple[Any, ModelInfo, Tokenizer, Window]:
    from agentkv_runtime.folder import is_hf_folder
    from agentkv_runtime.tokenizer import Tokenizer
    from agentkv_runtime.torch_backend.session import open_torch_session

    if not is_hf_folder(options.path):
        raise ModelError(
            f"{options.path} is not a Hugging Face folder (it has no config.json), which is what backend 'torch' runs; "
            "give that folder, or leave backend out to run an exported model"
        )
    options.check_backend("torch")
    tokenizer = Tokenizer.from_folder(options.path)
    session = open_torch_session(
        options.path,
        capacity=options.capacity,
        kv_dtype=options.kv_dtype,
        device=options.device,
        threads=options.threads,
        max_sequences=MOST_BRANCHES + SPARE_SEQUENCES,
        window=options.window or 0,
        sinks=options.sinks,
    )
    window = window_of((0,) * session.model.cached.n_layers, options.window, options.sinks)
    info = ModelInfo(
        path=options.path,
        backend="torch",
        vocab_size=session.vocab_size,
        max_tokens=session.max_tokens,
        max_positions=session.max_positions,
        trained_positions=session.model.trained_positions,
        state_bytes=0,
        n_layers=session.model.cached.n_layers,
        n_kv_heads=session.model.cached.n_kv_heads,
        head_dim=session.model.cached.head_dim,
        quantization="none",
        kv_dtype=options.kv_dtype,
        quantize_after=options.quantize_after,
        window=window.length or None,
        sinks=window.sinks,
        bit_exact=False,
        fingerprint="",
    )
    return session, info, tokenizer, window


def _open_exported(options: Options, folder: ModelFolder) -> tuple[Any, ModelInfo, Tokenizer, Window]:
    from agentkv_runtime.programs import open_session, set_threads

    if options.device is not None:
        raise InvalidInput(f"device is {options.device!r}, but only the torch backend takes one; leave it out")
    manifest = folder.manifest
    if options.backend not in (None, manifest.backend):
        raise ModelError(
            f"{options.path} was exported for backend {manifest.backend!r}, not {options.backend!r}; leave backend "
            f"out, or export the model again with --backend {options.backend}"
        )
    options.check_backend(manifest.backend)
    options.check_rows(any(shape.kept == Kept.LATENT for shape in manifest.shapes))
    linear = [shape.kept.has_states for shape in manifest.shapes]
    options.check_states(any(linear))
    if options.quant not in (None, manifest.quantization):
        raise ModelError(
            f"{options.path} was exported with quantisation {manifest.quantization!r}, not {options.quant!r}; leave "
            "quant out, or give the Hugging Face folder that it came from"
        )
    if options.threads is not None:
        set_threads(options.threads)
    session = open_session(
        folder,
        capacity=options.capacity,
        kv_dtype=options.kv_dtype,
        max_sequences=MOST_BRANCHES + SPARE_SEQUENCES,
        window=options.window or 0,
        sinks=options.sinks,
    )
    window = window_of(manifest.windows or (0,) * manifest.n_layers, options.window, options.sinks, linear)
    info = ModelInfo(
        path=options.path,
        backend=manifest.backend,
        vocab_size=manifest.vocab_size,
        max_tokens=manifest.max_tokens,
        max_positions=manifest.max_positions,
        trained_positions=manifest.trained_positions,
        n_layers=manifest.n_layers,
        n_kv_heads=manifest.n_kv_heads,
        head_dim=manifest.head_dim,
        quantization=manifest.quantization,
        kv_dtype=options.kv_dtype,
        quantize_after=options.quantize_after,
        window=window.length or None,
        sinks=window.sinks,
        state_bytes=sum(shape.state_bytes for shape in manifest.shapes),
        bit_exact=manifest.backend == "cpu" and options.quantize_after is None,
        fingerprint=manifest.fingerprint,
    )
    return session, info, folder.tokenizer, window

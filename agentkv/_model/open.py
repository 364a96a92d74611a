"""Opens a model: a model folder on its own backend, or a Hugging Face folder on torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from agentkv_runtime.folder.metadata import Kept

from .._chat.call_format import CallFormat
from .._engine.interface import MOST_BRANCHES, SPARE_SEQUENCES
from .._types.errors import AgentKVError, InvalidInput, ModelError, opening_error
from .._types.info import EngineCounters, ModelInfo
from .._types.sampling import native_options
from ..models._resolve import folder_called
from ..output._compiler import ConstraintCompiler
from ..spec._built_in import DraftTarget
from .drafters import Speculation
from .options import MOST_POSITIONS, Options

if TYPE_CHECKING:
    from agentkv_runtime.engine import Engine
    from agentkv_runtime.folder.manifest import LinearLayers
    from agentkv_runtime.folder.model_folder import ModelFolder
    from agentkv_runtime.text.tokenizer import Tokenizer

    from .._types.info import ServerState


class Window(NamedTuple):
    """Attention window common to all layers: no layer sees more than the newest `length` positions and the first
    `sinks`.

    `reach` is the number of earlier positions, over all layers, that determine a position's keys and values. All are 0
    if a layer sees everything; `groups` are then the windows of the layers that have one, shortest first.
    """

    length: int = 0
    sinks: int = 0
    reach: int = 0
    groups: tuple[int, ...] = ()
    states: bool = False
    """Whether some layers have recurrent states, which contain all that came before."""


def window_of(own: Sequence[int], window: int | None, sinks: int, linear: Sequence[bool] = ()) -> Window:
    """Window of layers with windows of their own (0 for none), in a cache with a window, or None.

    `linear` marks layers of linear attention: their states depend on all positions before, even with a window.
    """
    seen = [min(size or window, window) if window else size for size in own]
    if not all(seen) or any(linear):
        groups = tuple(sorted({size for size in seen if size}))
        return Window(groups=groups, states=any(linear))
    return Window(max(seen), sinks if window else 0, sum(size - 1 for size in seen))


@dataclass(frozen=True, slots=True)
class OpenModel:
    """The event loop's part of an open model."""

    info: ModelInfo
    tokenizer: Tokenizer
    speculation: Speculation
    fingerprint: Callable[[], str]
    """Fingerprint of a model, also of one without a program, which has none in its info; that reads all weights."""
    window: str
    """The window and sinks imposed by options ("length+sinks"), which cells depend on; empty for none."""
    call_format: CallFormat | None
    """The requested format, or the folder's own; None if neither is set."""
    options: Options | None
    """Options that it was opened with; None over a server."""
    linears: Mapping[str, LinearLayers] = field(default_factory=dict)
    """Linear layers that LoRA adapters run beside, as `Manifest.linears`; empty where none do."""
    generate_options: Callable[..., Any] = native_options
    """Builds the argument of `StepEngine.generate` from the fields of the native options and a public Sampling."""
    compiler: Callable[[Tokenizer, int], ConstraintCompiler] = ConstraintCompiler
    servers: Callable[[], list[ServerState]] = list
    """Present state of the servers, from any thread; empty for a model in this process."""
    publishes: bool = False
    """Whether the server stores branches under names; the engine is then a PublishingEngine."""


@dataclass(frozen=True, slots=True)
class NativeHost:
    """The native engine over a model of this process."""

    engine: Engine
    session: Any
    speculation: Speculation

    def snapshot(self) -> EngineCounters:
        """Counters of the engine and its cache."""
        session = self.session
        return EngineCounters(
            self.engine.stats(), session.allocated_cells, session.kv_bytes, session.mapped_bytes, session.states
        )

    def close(self) -> None:
        """Frees drafters, which others may still refer to."""
        self.speculation.close()


def is_here(options: Options) -> bool:
    """Returns whether `path` exists; if not, it is a name, to be looked up in stores (other programs' too)."""
    return os.path.lexists(options.path)


def located(options: Options) -> Options:
    """Options with the path that their name resolves to. Raises ModelError."""
    if options.backend == "torch":
        return options
    try:
        path = folder_called(options.path, backend=options.backend, quant=options.quant)
    except Exception as error:
        raise opening_error(error, options.path) from error
    return replace(options, path=path)


def open_model(options: Options) -> tuple[NativeHost, OpenModel]:
    """Loads the model and makes the engine over it, on the calling thread. Raises ModelError."""
    from agentkv_runtime.engine import Engine
    from agentkv_runtime.folder import model_folder

    try:
        if options.backend == "torch" or model_folder.is_hf_folder(options.path):
            session, info, tokenizer, window = _open_torch(options)
            source, fingerprint = None, session.model.fingerprint
        else:
            source = model_folder.read_model_folder(options.path)
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
        # Other cells have all layers, except for states.
        layer_windows=window.groups if info.backend == "cpu" or window.states else (),
        states=window.states,
    )
    target = DraftTarget(
        path=info.path,
        folder=source,
        vocab_size=info.vocab_size,
        token_bytes=token_bytes,
        fingerprint=fingerprint,
        capacity=options.capacity,
        kv_dtype=options.kv_dtype,
    )
    speculation = Speculation(options.speculative, target)
    drafter = speculation.open_default()
    if drafter is not None:
        engine.attach(drafter)  # it observes every branch from the first token on
    imposed = "" if options.window is None else f"{options.window}+{options.sinks}"
    linears = source.manifest.linears if source and info.backend == "cpu" else {}
    call_format = options.call_format
    if call_format is None and source and tokenizer.response_template is None:
        named = source.manifest.call_format
        call_format = None if named == "plain" else named  # older exports knew no format for those
    return NativeHost(engine, session, speculation), OpenModel(
        info, tokenizer, speculation, fingerprint, imposed, call_format, options, linears
    )


def _open_torch(options: Options) -> tuple[Any, ModelInfo, Tokenizer, Window]:
    from agentkv_runtime.folder.model_folder import is_hf_folder
    from agentkv_runtime.text.tokenizer import Tokenizer
    from agentkv_runtime.torch_backend.session import open_torch_session

    if not is_hf_folder(options.path):
        what = "is not a Hugging Face folder (it has no config.json)" if options.path.is_dir() else "is no folder"
        raise ModelError(
            f"{options.path} {what}, and backend 'torch' runs the folders that Hugging Face's files are in alone; give "
            "one, or leave backend and device out: GGUF files, names and exported models run without"
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
    shapes = session.model.cached.shapes
    options.check_rows(any(shape.kept == Kept.LATENT for shape in shapes))
    linear = [shape.kept.has_states for shape in shapes]
    options.check_states(any(linear))
    window = window_of((0,) * session.model.cached.n_layers, options.window, options.sinks, linear)
    info = ModelInfo(
        path=options.path,
        backend="torch",
        vocab_size=session.vocab_size,
        max_tokens=session.max_tokens,
        max_positions=session.max_positions,
        trained_positions=session.model.trained_positions,
        state_bytes=0,
        forgets=not any(linear),
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

    manifest = folder.manifest
    if options.device is not None:
        raise InvalidInput(
            f"device is {options.device!r}, but {options.path} was exported for backend {manifest.backend!r}, which "
            "takes none; leave device out, or give backend='torch' for a Hugging Face folder"
        )
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
        forgets=not any(linear),
        bit_exact=manifest.backend == "cpu" and options.quantize_after is None,
        fingerprint=manifest.fingerprint,
    )
    return session, info, folder.tokenizer, window

"""Opening of a remote Context: the server's model, its tokenizer, and the engine over both.

Constraints go to the server as JSON, never as objects of this process; the server drafts by itself.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx

from .._model.drafters import INHERIT, Speculation
from .._model.open import OpenModel
from .._model.options import MOST_POSITIONS
from .._types.checks import A_FOLDER, checked_count, checked_name, checked_path, checked_word
from .._types.errors import AgentKVError, InvalidInput, ModelError, opening_error
from .._types.info import EngineCounters, ModelInfo
from .._types.show import preview
from ..models._resolve import folder_called
from ..output._compiler import ConstraintCompiler
from ..output._thought import Thought
from ..output.grammar import GrammarSource
from .discovery import check_tokenizer, probe_servers
from .engine import RemoteEngine
from .http import ServerConnection
from .network import NetworkThread, OpenHandshake
from .no_cells import NullCellStore
from .options import RemoteOptions
from .protocol_agentkv import AgentKV
from .protocol_vllm import VLLM
from .replicas import Replicas
from .server_info import ServerInfo

if TYPE_CHECKING:
    from agentkv_runtime.text.tokenizer import Tokenizer

    from .._chat.call_format import CallFormat
    from .._engine.interface import StepEngine
    from ..output._compiler import Description
    from .protocol import ServerProtocol


class RemoteGrammars(ConstraintCompiler):
    """Compiler that also compiles grammars locally, so that an invalid one is refused before it is sent."""

    def for_generation(self, engine: StepEngine, branch: int, description: Description | None) -> Any:
        if description is not None and not isinstance(description, GrammarSource):
            raise InvalidInput(
                f"output is {preview(description)}, an object of this process, which a server cannot ask; give a type, "
                "kv.Regex, kv.JsonSchema or kv.Grammar"
            )
        return self.continued_thought(engine, branch, description) if isinstance(description, Thought) else description

    def is_continued(self, engine: StepEngine, branch: int, description: Description) -> bool:
        return engine.goes_on(branch, description)


class NoLocalDrafters(Speculation):
    """Speculation of a Context that drafts nothing in this process."""

    def __init__(self) -> None:
        pass

    def resolve(self, speculative: object) -> None:
        """Raises InvalidInput for a strategy."""
        if speculative is not None and speculative is not INHERIT:
            raise InvalidInput(
                "speculative was given, but a server draws the tokens, and drafts as it was started to; leave it out"
            )

    def drafter(self, strategy: object) -> None:
        """Returns None: there is no local drafter."""


WIRES: dict[str, Callable[[str | None], ServerProtocol]] = {"agentkv": AgentKV, "vllm": VLLM}
CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class RemoteHost:
    """Objects of a remote Context that the step loop's thread owns."""

    engine: RemoteEngine
    session: NullCellStore
    resources: ExitStack

    def snapshot(self) -> EngineCounters:
        """Counters of the engine; those of cells are 0, as the server has them."""
        return EngineCounters(cast(Any, replace(self.engine.stats())), 0, 0, 0, 0)

    def close(self) -> None:
        """Cancels all requests and ends the network thread."""
        self.resources.close()


class ConnectOptions:
    """Checked arguments of `Context.connect`. Raises InvalidInput for values out of range."""

    def __init__(
        self,
        url: str | Sequence[str],
        model: str | None,
        api_key: str | None,
        tokenizer: str | Path | None,
        backend: str,
        call_format: CallFormat | None,
        timeout: float,
        retries: int,
        most_running: int,
        verify: bool | str | Path | ssl.SSLContext,
    ) -> None:
        self._urls = _checked_urls(url)
        self._model = None if model is None else checked_name(model, "model")
        self._api_key = checked_key(api_key)
        self._tokenizer = None if tokenizer is None else checked_path(tokenizer, "tokenizer", A_FOLDER)
        self._backend = checked_word(backend, "backend", tuple(WIRES))
        self._call_format = call_format
        if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout < 1e9:
            raise InvalidInput(f"timeout is {preview(timeout)}, but it must be a number of seconds above 0")
        self._timeout = timeout
        self._retries = checked_count(retries, "retries", 0, 1000)
        self._most_running = checked_count(most_running, "most_running", 1, 1 << 20)
        self._opening = OpenHandshake()
        self._verify = verify if isinstance(verify, bool | ssl.SSLContext) else _trusting(verify)

    def give_up(self) -> None:
        """Ends `open`, from another thread: it raises CancelledError."""
        self._opening.give_up()

    def open(self, wake: Callable[[], None]) -> tuple[RemoteHost, OpenModel]:
        """Probes the servers and opens the engine; blocks the calling thread. Raises RemoteError, ModelError."""
        wire = WIRES[self._backend](self._model)
        with ExitStack() as held:
            exchange = NetworkThread(wire, self._replicas, self._retries, wake, self._opening)
            held.callback(exchange.close)
            facts = exchange.wait(probe_servers)
            tokenizer = self._open_tokenizer(facts, held)
            exchange.wait(lambda _, replicas: check_tokenizer(replicas, tokenizer, facts.model))
            info = self._info(facts, tokenizer)
            wire.knows(facts, info.vocab_size)
            engine = RemoteEngine(
                exchange,
                token_bytes=tokenizer.token_bytes(info.vocab_size),
                eos_ids=tokenizer.eos_ids,
                special_ids=tokenizer.special_ids,
                vocab_size=info.vocab_size,
                max_positions=facts.max_positions,
                capacity=facts.capacity or MOST_POSITIONS,
            )
            exchange.on_event = engine.on_event
            model = self._model_of(facts, info, tokenizer, exchange)
            return RemoteHost(engine, NullCellStore(), held.pop_all()), model

    def _replicas(self) -> Replicas:
        """Makes the replicas, on the network thread."""
        return Replicas([ServerConnection(self._client(url)) for url in self._urls], self._most_running)

    def _client(self, url: str) -> httpx.AsyncClient:
        try:
            return httpx.AsyncClient(
                base_url=url,
                headers={} if self._api_key is None else {"authorization": f"Bearer {self._api_key}"},
                timeout=httpx.Timeout(self._timeout, connect=min(self._timeout, CONNECT_S), pool=None),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=self._most_running),
                verify=self._verify if url.startswith("https:") else False,  # certificates take a moment to read
                http2=find_spec("h2") is not None,
            )
        except Exception as error:  # in any case a fault of the environment
            raise InvalidInput(
                f"no connection to {url} can be set up: {error}; look at HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY "
                "and SSL_CERT_FILE in the environment"
            ) from error

    def _open_tokenizer(self, facts: ServerInfo, held: ExitStack) -> Tokenizer:
        if self._tokenizer is None and facts.tokenizer_files:
            return _handed_out(facts, held)
        folder = facts.folder if self._tokenizer is None else folder_called(self._tokenizer)
        if folder is None:
            raise ModelError(
                f"the server does not hand out the tokenizer of {facts.model}; pass tokenizer: a folder with its "
                "tokenizer.json, such as that of the model"
            )
        return _tokenizer_in(folder)

    def _info(self, facts: ServerInfo, tokenizer: Tokenizer) -> ModelInfo:
        return ModelInfo(
            path=Path(facts.model),
            backend=self._backend,
            vocab_size=facts.vocab_size or tokenizer.vocab_size,
            max_tokens=facts.max_positions,
            max_positions=facts.max_positions,
            trained_positions=None,
            n_layers=facts.n_layers,
            n_kv_heads=facts.n_kv_heads,
            head_dim=facts.head_dim,
            quantization=facts.quantization,
            kv_dtype=facts.kv_dtype,
            quantize_after=facts.quantize_after,
            window=facts.window,
            sinks=facts.sinks,
            state_bytes=0,
            forgets=False,
            bit_exact=facts.bit_exact,
            fingerprint=facts.fingerprint,
            top_logits=facts.likely,
            speculates=False,
            holds_cells=False,
        )

    def _model_of(self, facts: ServerInfo, info: ModelInfo, tokenizer: Tokenizer, exchange: NetworkThread) -> OpenModel:
        named = self._call_format
        if named is None and tokenizer.response_template is None:
            named = facts.call_format
        return OpenModel(
            info,
            tokenizer,
            NoLocalDrafters(),
            fingerprint=lambda: facts.fingerprint or facts.model,
            window="",
            call_format=named,
            options=None,
            generate_options=RemoteOptions,
            compiler=RemoteGrammars,
            servers=exchange.servers,
            publishes=self._backend == "agentkv",
        )


def _tokenizer_in(folder: Path) -> Tokenizer:
    from agentkv_runtime.text.tokenizer import Tokenizer

    try:
        return Tokenizer.from_folder(folder)
    except Exception as error:
        raise opening_error(error, folder) from error


def _handed_out(facts: ServerInfo, held: ExitStack) -> Tokenizer:
    """Opens the tokenizer whose files the server sent. Raises ModelError."""
    from agentkv_runtime.text.tokenizer import TOKENIZER_FILES

    folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="agentkv-", ignore_cleanup_errors=True)))
    for name in facts.tokenizer_files.keys() & set(TOKENIZER_FILES):  # and no others, wherever they would lead
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(facts.tokenizer_files[name].encode("utf-8", "replace"))
    try:
        return _tokenizer_in(folder)
    except AgentKVError as error:
        why = str(error).replace(f"{folder}/", "")
        raise ModelError(f"the server's tokenizer of {facts.model} is of no use: {why}") from error


def _checked_urls(url: object) -> list[str]:
    given = [url] if isinstance(url, str) else url
    if not isinstance(given, Sequence) or not given or not all(isinstance(each, str) for each in given):
        raise InvalidInput(f"url is {preview(url)}, but it must be a URL or some, such as 'http://127.0.0.1:8000/v1'")
    urls = [checked_url(each) for each in given]
    if len(set(urls)) < len(urls):
        raise InvalidInput("url names a server twice; name each once")
    return urls


def checked_url(url: str) -> str:
    """The URL with its path, `/v1/` by default, as requests need it. Raises InvalidInput."""
    try:
        parsed = httpx.URL(url.strip())
        path = parsed.path.rstrip("/") or "/v1"
        whole = str(parsed.copy_with(path=f"{path}/"))
        known = parsed.scheme in ("http", "https") and parsed.host and not parsed.query and not parsed.fragment
    except (httpx.InvalidURL, ValueError) as error:  # of its host, too: what has no form in IDNA
        raise InvalidInput(f"url is {preview(url)}, which is no URL: {error}") from error
    if parsed.userinfo:
        raise InvalidInput("url holds a name or a password, which logs would show; pass api_key instead")
    if not known or not 0 < (parsed.port or 80) < 1 << 16:
        raise InvalidInput(f"url is {preview(url)}, but it must be like 'http://127.0.0.1:8000/v1'")
    return whole


def checked_key(key: object) -> str | None:
    """The key unchanged. Raises InvalidInput unless it is None or printable ASCII without outer spaces."""
    if key is not None and (not isinstance(key, str) or not key or not key.isascii() or not key.isprintable()):
        raise InvalidInput("api_key must be None or a string of printable ASCII characters")
    if key is not None and key != key.strip():
        raise InvalidInput("api_key begins or ends with a space, which no key does; leave it out")
    return key


def _trusting(file: str | Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(file))
    except (OSError, ssl.SSLError, ValueError) as error:
        raise InvalidInput(f"verify names {preview(str(file))}, which holds no certificates: {error}") from error

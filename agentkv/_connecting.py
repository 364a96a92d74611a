"""Context.connect, and the servers behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from ._call_format import CallFormat, checked_format
from ._errors import ModelError, loading
from ._inputs import checked_bool
from ._opening import opening
from ._overflow import Overflow, checked_overflow
from ._overflow_policies import Stop

if TYPE_CHECKING:
    from ssl import SSLContext

    from ._branch import Branch
    from ._context import Context
    from ._home import Home
    from ._loop import StepLoop
    from ._model import EngineHost, OpenModel
    from ._servers import ServerState


class Connecting:
    """What a Context is as far as its model is a server's."""

    _home: Home
    _loop: StepLoop
    _servers: Callable[[], list[ServerState]]

    @classmethod
    @opening
    async def connect(
        cls,
        url: str | Sequence[str],
        model: str | None = None,
        api_key: str | None = None,
        tokenizer: str | Path | None = None,
        backend: str = "vllm",
        *,
        call_format: CallFormat | None = None,
        overflow: Overflow | None = None,
        rescue: bool = True,
        timeout: float = 300.0,  # noqa: ASYNC109 - of each request, not of the block
        retries: int = 8,
        most_running: int = 256,
        verify: bool | str | Path | SSLContext = True,
    ) -> AsyncIterator[Context]:
        """Connects to a server for an `async with` block: the same branches, whose cells are the server's.

        A branch is a log of tokens here. Requests carry token ids, so nothing is tokenised twice, and what a fork
        shares is in the server's prefix cache. `ctx.model_info` says what the server promises: `bit_exact`,
        `top_logits`, `speculates`, `holds_cells`. A generation whose connection breaks goes on behind the tokens that
        came. Connecting itself is tried once.

        Args:
            url: such as "http://host:8000/v1"; or those of several servers of the same model: a tree of branches stays
                on one of them, as long as that answers and has room. One that does not answer now may come later.
            model: its name there; None for the first that the server names.
            api_key: what the server asks for; no log and no error shows it.
            tokenizer: the folder of the model, or of its tokenizer; None where the server hands it out ("agentkv"), or
                names a folder that is on this machine, too.
            backend: what the servers are: "vllm", or "agentkv" for `agentkv serve`.
            call_format: as of `open`.
            overflow: as of `open`.
            rescue: as of `open`.
            timeout: seconds without a byte after which a request counts as lost; above 0.
            retries: how often what got no further is asked for again: where a server does not answer, breaks off, or
                says that it has too much to do. Pauses double from 0.25 to 8 seconds: 8 retries take some 22 seconds,
                and each further one up to 8 more.
            most_running: requests that one server has at a time; more go to another one, or wait.
            verify: of TLS: certificates of known authorities, a file of your own, a context, or False for none.

        Raises:
            InvalidInput: an argument out of range.
            ModelError: the server has no such model, or its tokenizer is not to be had.
            RemoteError: no server answers, or one lets nobody in or is not what `backend` names.
        """
        try:
            with loading("what connects to servers"):
                from .remote.connecting import Remote
        except ImportError as error:
            raise ModelError(f"{error}; pip install 'agentkv-sdk[remote]'") from error
        given = (checked_format(call_format), timeout, retries, most_running, verify)
        remote = Remote(url, model, api_key, tokenizer, backend, *given)
        policy = Stop() if overflow is None else checked_overflow(overflow)
        checked_bool(rescue, "rescue")
        async with cls._running(remote.open, policy, rescue, remote.give_up) as context:
            yield context

    async def attach(self, name: str, *, overflow: Overflow | None = None) -> Branch:
        """A branch like the one that `Branch.publish`, or a client of `/v1/branches`, keeps on the server under this
        name: it says what that one would say, and what of it is in the server's cache is not computed again. The one on
        the server stays as it is; `publish` under the same name puts this one in its place.

        Args:
            name: of the branch.
            overflow: as of `branch`.

        Raises:
            BranchNotFound: there is none; the message says which there are.
            InvalidInput: no name, or no server of `agentkv serve`.
            RemoteError: no server answers, or it keeps what is no branch of this model.
        """
        self._loop.check_open()
        self._home.check_publishes()
        policy = None if overflow is None else checked_overflow(overflow)
        from ._published import checked_publication
        from ._publishing import attach

        return await attach(self._home, checked_publication(name), policy)

    @property
    def servers(self) -> list[ServerState]:
        """The servers as they are now, in the order of `url`; none where the model is in this process."""
        return self._servers()

    @classmethod
    def _running(
        cls,
        open_host: Callable[[Callable[[], None]], tuple[EngineHost, OpenModel]],
        policy: Overflow,
        rescue: bool,
        give_up: Callable[[], None] | None = None,
    ) -> AbstractAsyncContextManager[Context]:
        raise NotImplementedError

"""What a server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Names, keys and limits of a server; frozen.

    Attributes:
        names: what clients may call the model; the first one is its own.
        any_name: may they call it anything else as well?
        api_key: what clients must send; None lets everybody in.
        most_running: requests that the model works on at one time.
        most_waiting: requests that wait for their turn; further ones are refused with 429.
        most_seconds: longest time of a request, waiting included; a client may ask for less by `X-Request-Timeout`.
        most_bytes: of a request's body.
        most_choices: `n` of a request.
        most_kept: finished conversations that wait to be gone on with; the one used longest ago gives way.
        most_branches: that clients hold by `/v1/branches`.
        branch_seconds: one of these that is idle for longer may be closed.
        lease_seconds: so may those of a lease that no connection holds, once all of them are idle for longer.
        offload: folder for cells of these where the cache lacks room; None keeps them in memory.
        origins: web pages whose scripts may call the server (CORS); "*" for any.
        hosts: names that requests may have in their Host header; none for any. What keeps pages from calling a server
            of this machine by a name of their own (DNS rebinding).
        call_threshold: as of `kv.Agent`, for each message that may call; None asks not.
        strict: are requests refused for what asks for nothing, or changes no answer here? Else it is left out.
    """

    names: tuple[str, ...]
    api_key: str | None = None
    most_running: int = 64
    most_waiting: int = 256
    most_seconds: float = 600.0
    most_bytes: int = 8 << 20
    most_choices: int = 16
    most_kept: int = 128
    most_branches: int = 64
    branch_seconds: float = 600.0
    lease_seconds: float = 30.0
    offload: Path | None = None
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    any_name: bool = False
    call_threshold: float | None = None
    strict: bool = False

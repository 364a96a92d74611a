"""Configuration of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Names, keys and limits of a server; frozen.

    Attributes:
        names: what clients may call the model; the first one is its own. Of several models the name of each.
        any_name: whether any other name is accepted as well.
        api_key: key that clients must send; None admits all of them, unless there are `keys`.
        keys: further keys, each with the models that it is for; other models are unknown to who sends it.
        most_running: requests that the model works on at one time.
        most_waiting: requests that wait for their turn; further ones are refused with 429.
        most_seconds: longest time of a request in seconds, waiting included; clients may lower it by
            `X-Request-Timeout`.
        most_bytes: maximum size of a request's body, in bytes.
        most_choices: maximum `n` of a request.
        most_kept: maximum number of cached conversations; beyond it the least recently used is closed.
        most_branches: maximum number of branches that clients hold through `/v1/branches`.
        branch_seconds: idle time in seconds after which such a branch may be closed.
        lease_seconds: the same for all branches of a lease without a connection, once each is idle for longer.
        origins: web pages whose scripts may call the server (CORS); "*" for any.
        hosts: names that requests may have in their Host header; empty for any. They keep web pages from calling a
            local server under a name of their own (DNS rebinding).
        call_threshold: as in `kv.Agent`, for each message that may call tools; None disables the check.
        strict: whether fields that change no answer are refused; else they are left out.
    """

    names: tuple[str, ...]
    api_key: str | None = None
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    most_running: int = 64
    most_waiting: int = 256
    most_seconds: float = 600.0
    most_bytes: int = 8 << 20
    most_choices: int = 16
    most_kept: int = 128
    most_branches: int = 64
    branch_seconds: float = 600.0
    lease_seconds: float = 30.0
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    any_name: bool = False
    call_threshold: float | None = None
    strict: bool = False

    @property
    def all_keys(self) -> dict[str, Sequence[str] | None]:
        """Keys that clients may send, each with its models; None for all of them. Empty where none is needed."""
        whole: dict[str, Sequence[str] | None] = {} if self.api_key is None else {self.api_key: None}
        return {**self.keys, **whole}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """One model of a server.

    Attributes:
        how: arguments of `Context.open`, the model among them.
        warm: files of saved branches with messages; conversations with the same beginning fork them.
        call_threshold: as of `Settings`.
        adapters: LoRA adapters of the model that are offered as models, by name.
    """

    how: Mapping[str, Any]
    warm: Sequence[Path] = ()
    call_threshold: float | None = None
    adapters: Mapping[str, Path] = field(default_factory=dict)

"""Numbers of the random streams of branches, as the native engine derives them.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011).
"""

from __future__ import annotations

from hashlib import blake2b

_M = 0xFFFFFFFF
_FORK = (0x61676E74, 0x666F726B)


def _philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (p1 >> 32) ^ b ^ k0, p1 & _M, (p0 >> 32) ^ d ^ k1, p0 & _M
        k0, k1 = (k0 + 0x9E3779B9) & _M, (k1 + 0xBB67AE85) & _M
    return a, b, c, d


def child_stream(parent: int, n: int) -> int:
    """Stream number of a branch's n-th fork."""
    high, low, _, _ = _philox((parent & _M, parent >> 32, n, 1), _FORK)
    return high << 32 | low


def seed_at(seed: int, stream: int, position: int) -> int:
    """Seed in [0, 2**63) for a server without streams; a function of these three numbers."""
    named = b"".join(number.to_bytes(8, "little") for number in (seed, stream, position))
    return int.from_bytes(blake2b(named, digest_size=8).digest(), "little") >> 1

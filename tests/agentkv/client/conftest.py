"""The client talks to the servers of the server's own tests."""

from ..serve.conftest import anyio_backend, serve, served

__all__ = ["anyio_backend", "serve", "served"]

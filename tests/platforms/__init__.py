"""Compiles the C++ for macOS and Windows with `zig c++`, and runs some of it under wine (`make check-platforms`)."""

"""What is compiled, and with which options: the lists of CMake, read for another machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What needs no headers but those of the standard library.
ROOMS = ("platform", "core", "cpu", "engine", "spec")
# ExecuTorch's and MLX's headers are those of wheels, which there are none of here for these machines.
LEFT_OUT = ("executorch", "mlx", "bindings")
OPTIONS = ("-std=c++20", "-ffp-contract=off", "-Wall", "-Wextra", "-I", str(ROOT / "cpp"))
LEVELS = {
    "x86_64": {"": "v2 v3 v4", "dot_": "v2 v3 v4 v3vnni v4vnni", "matrix_": "v2 v3 v4 v3vnni v4vnni v4amx"},
    "aarch64": {"": "base", "dot_": "base dotprod", "matrix_": "base dotprod"},
}


@dataclass(frozen=True)
class Unit:
    """A source that is compiled, under a name of its own."""

    source: Path
    name: str
    options: tuple[str, ...] = ()

    @property
    def room(self) -> str:
        """The folder of cpp that it is of."""
        return self.source.relative_to(ROOT / "cpp").parts[0]


def units(target: str) -> list[Unit]:
    """All sources of ROOMS, the kernels once per instruction set."""
    kernels = {kernel.source: kernel for kernel in _kernels(target)}
    other = "posix.cpp" if "windows" in target else "windows.cpp"
    plain = [
        Unit(source, "-".join(source.relative_to(ROOT / "cpp").with_suffix("").parts))
        for room in ROOMS
        for source in sorted((ROOT / "cpp" / room).rglob("*.cpp"))
        if source not in kernels and source.name != other
    ]
    return plain + list(_kernels(target))


def _kernels(target: str) -> Iterator[Unit]:
    machine = target.partition("-")[0]
    flags = isa_flags()
    for room in ROOMS:
        lists = (ROOT / "cpp" / room / "CMakeLists.txt").read_text()
        for kind, source, table in re.findall(r"agentkv_add_(dot_|matrix_|)kernels\(\w+ (\S+) (\w+)", lists):
            for isa in LEVELS[machine][kind].split():
                name = f"{table}_{isa}"
                options = (f"-DAGENTKV_TABLE={name}", "-Wno-psabi", *flags.get(isa, ()))
                yield Unit(ROOT / "cpp" / room / source, name, options)


def isa_flags() -> dict[str, tuple[str, ...]]:
    """Options by instruction set, in zig's words: what follows a hyphen is a feature to it."""
    text = (ROOT / "cmake/KernelsPerIsa.cmake").read_text()
    found: dict[str, str] = {}
    for isa, flags in re.findall(r"set\(AGENTKV_ISA_FLAGS_(\w+) (.+)\)", text):
        found[isa] = re.sub(r"\$\{AGENTKV_ISA_FLAGS_(\w+)\}", lambda other: found[other[1]], flags)
    words = {"x86-64-": "x86_64_", "-march=armv8.2-a+": "-mcpu=baseline+"}
    for theirs, zigs in words.items():
        found = {isa: flags.replace(theirs, zigs) for isa, flags in found.items()}
    return {isa: tuple(flags.split()) for isa, flags in found.items()}

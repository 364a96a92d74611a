"""Instructions and cycles of the kernels' inner loops on processors that are not here, as llvm-mca counts them.

    python -m tests.benchmarks.loops

Needs g++ and llvm-mca (Debian: llvm; LLVM_MCA names another one), and g++-aarch64-linux-gnu for Arm. Cycles are of a
loop whose data is in the nearest cache: what memory takes is not in them.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCE = Path(__file__).with_name("loops.cpp")
ARM = "aarch64-linux-gnu-g++"
X86 = "g++" if platform.machine() == "x86_64" else "x86_64-linux-gnu-g++"


@dataclass(frozen=True)
class Machine:
    """A compiler's instruction set, and the processor that its loops are counted for."""

    title: str
    compiler: str
    flags: tuple[str, ...]
    triple: str
    cpu: str
    width: int  # floats of a vector
    pack: int  # codes of K that a lane holds


_X86, _AARCH64 = "x86_64-linux-gnu", "aarch64-linux-gnu"
MACHINES = (
    Machine("AVX2, Skylake", X86, ("-march=x86-64-v3",), _X86, "skylake", 8, 2),
    Machine("AVX2, Zen 3", X86, ("-march=x86-64-v3",), _X86, "znver3", 8, 2),
    Machine(
        "AVX-512 VNNI, Ice Lake",
        X86,
        ("-march=x86-64-v4", "-mprefer-vector-width=512", "-mavx512vnni"),
        _X86,
        "icelake-server",
        16,
        4,
    ),
    Machine("NEON, Cortex-A72", ARM, (), _AARCH64, "cortex-a72", 4, 2),
    Machine("dotprod, Neoverse N1", ARM, ("-march=armv8.2-a+dotprod",), _AARCH64, "neoverse-n1", 4, 4),
    Machine("dotprod, Neoverse V2", ARM, ("-march=armv8.2-a+dotprod",), _AARCH64, "neoverse-v2", 4, 4),
    Machine("dotprod, Apple M1", ARM, ("-march=armv8.2-a+dotprod",), _AARCH64, "apple-m1", 4, 4),
)


def numbers(loop: str, machine: Machine) -> int:
    """Weights, or numbers of K or V, that one turn of a loop of loops.cpp takes."""
    width = machine.width
    return {
        "q4_k_1": 32 * width,
        "q4_k_4": 32 * width,
        "q6_k_1": 32 * width,
        "q8_0_1": 32 * width,
        "codes_4_1": 64 * width,
        "keys_int8_1": machine.pack * width,
        "values_int8_1": 32,
        "keys_fp16_1": width * width,
        "values_fp16_1": 4 * width,
    }[loop]


TITLES = {
    "q4_k_1": "weights of Q4_K, 1 row",
    "q4_k_4": "weights of Q4_K, 4 rows",
    "q6_k_1": "weights of Q6_K, 1 row",
    "q8_0_1": "weights of Q8_0, 1 row",
    "codes_4_1": "weights of 4 bits, 1 row",
    "keys_int8_1": "K of int8, 1 row",
    "values_int8_1": "V of int8, 1 row",
    "keys_fp16_1": "K of fp16, 1 row",
    "values_fp16_1": "V of fp16, 1 row",
}


def counted(machine: Machine, mca: str) -> dict[str, tuple[float, float]]:
    """Instructions and cycles for 32 numbers, by loop."""
    with tempfile.TemporaryDirectory() as folder:
        assembly = Path(folder) / "loops.s"
        flags = ["-std=c++20", "-O3", "-ffp-contract=off", "-w", f"-I{ROOT / 'cpp'}", *machine.flags]
        subprocess.run([machine.compiler, *flags, "-S", SOURCE, "-o", assembly], check=True)
        # Of GCC's assembly LLVM does not read which processor it is for, nor negative bytes as integers of 64 bits.
        text = re.sub("0xffffffffffffff([0-9a-f]{2})\\b", r"0x\1", assembly.read_text())
        assembly.write_text(re.sub(r"\t\.arch .*", "", text))
        how = [f"-mtriple={machine.triple}", f"-mcpu={machine.cpu}", "-iterations=200", "--json"]
        ran = subprocess.run([mca, *how, assembly], check=True, capture_output=True, text=True)
    counts: dict[str, tuple[float, float]] = {}
    for region in json.loads(ran.stdout)["CodeRegions"]:
        summary, loop = region["SummaryView"], region["Name"]
        share = 32 / summary["Iterations"] / numbers(loop, machine)
        counts.setdefault(loop, (summary["Instructions"] * share, summary["TotalCycles"] * share))
    return counts


def main() -> None:
    """Prints a table in Markdown."""
    mca = os.environ.get("LLVM_MCA", "llvm-mca")
    if missing := [tool for tool in (mca, X86, ARM) if shutil.which(tool) is None]:
        sys.exit(f"{', '.join(missing)} missing; Debian has llvm, g++ and g++-aarch64-linux-gnu")
    tables = [counted(machine, mca) for machine in MACHINES]
    print("| 32 numbers |", " | ".join(machine.title for machine in MACHINES), "|")
    print("| --- |", " | ".join("---:" for _ in MACHINES), "|")
    for loop, title in TITLES.items():
        cells = (f"{table[loop][0]:.1f} / {table[loop][1]:.1f}" for table in tables)
        print(f"| {title} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()

"""llama.cpp, built out of the source package of llama-cpp-python, which holds the whole of it."""

from __future__ import annotations

import platform
import subprocess
import sys
import tarfile
from pathlib import Path

from rich.console import Console

VERSION = "0.3.36"  # of llama-cpp-python; options and output of its tools change between versions
TOOLS = ("llama-bench", "llama-batched-bench", "llama-quantize")

# What a processor has (/proc/cpuinfo) to what is compiled for it. GGML_NATIVE takes AMX as well, and dies of an illegal
# instruction where the system does not grant it.
INSTRUCTION_SETS = {
    "avx2": "GGML_AVX2",
    "fma": "GGML_FMA",
    "f16c": "GGML_F16C",
    "bmi2": "GGML_BMI2",
    "avx_vnni": "GGML_AVX_VNNI",
    "avx512f": "GGML_AVX512",
    "avx512vbmi": "GGML_AVX512_VBMI",
    "avx512_vnni": "GGML_AVX512_VNNI",
    "avx512_bf16": "GGML_AVX512_BF16",
}


def llama_tools(folder: Path, console: Console) -> Path:
    """The folder with TOOLS: below `folder`, where they are built unless they are there (10 minutes on 2 cores)."""
    source = folder / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
    tools = source / "build" / "bin"
    if all((tools / name).is_file() for name in TOOLS):
        return tools
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"llama_cpp_python-{VERSION}.tar.gz"
    if not archive.is_file():
        console.print(f"downloading the source of llama-cpp-python {VERSION}")
        package = [f"llama-cpp-python=={VERSION}", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", *package, "-d", folder], check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    console.print(f"building {', '.join(TOOLS)}")
    unneeded = [f"-DLLAMA_{part}=OFF" for part in ("CURL", "BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_UI")]
    configure = ["cmake", "-B", "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "--log-level=WARNING"]
    subprocess.run([*configure, *_instruction_sets(), *unneeded], cwd=source, check=True)
    subprocess.run(["cmake", "--build", "build", "--target", *TOOLS], cwd=source, check=True)
    return tools


def _instruction_sets() -> list[str]:
    if platform.machine() != "x86_64" or not Path("/proc/cpuinfo").is_file():
        return ["-DGGML_NATIVE=ON"]
    has = set(Path("/proc/cpuinfo").read_text().split("\nflags")[1].splitlines()[0].split())
    flags = [f"-D{option}={'ON' if flag in has else 'OFF'}" for flag, option in INSTRUCTION_SETS.items()]
    return ["-DGGML_NATIVE=OFF", *flags]

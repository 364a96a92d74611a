"""Builds for Arm, runs the C++ tests under qemu-user on several processors, and generates beside this machine.

python -m tests.arm
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from agentkv import models

from . import machine
from .machine import BUILD, ROOT

NATIVE = BUILD / "native"
# Processors of qemu, and the instruction sets of ours that they have, best first. `max` has SVE, of the length given.
PROCESSORS = {
    "cortex-a72": ["base"],
    "cortex-a76": ["dotprod", "base"],
    "max,sve-default-vector-length=64": ["dotprod", "base"],
}
GENERATE_ON = ("cortex-a72", "cortex-a76")
# Tests of what runs the kernels; all of them run on the first processor.
KERNEL_TESTS = "^(cpu|engine.test_softmax|engine.test_digests|executorch)"
CPU_ISAS = "from agentkv_runtime import _core; print(*_core.cpu_isas())"


def build() -> None:
    """The C++ tests and the native modules, which go where Python for Arm finds them."""
    here = Path(sys.executable).parent
    settings = {
        "CMAKE_TOOLCHAIN_FILE": ROOT / "cmake/aarch64.cmake",
        "CMAKE_MAKE_PROGRAM": here / "ninja",
        "AGENTKV_TESTS": "ON",
        "AGENTKV_WHEELS": machine.WHEELS,
        "AGENTKV_ARM_ROOT": machine.DEBIAN,
        "Python_EXECUTABLE": sys.executable,
    }
    defines = [f"-D{name}={value}" for name, value in settings.items()]
    cmake = [here / "cmake", "-S", ROOT, "-B", NATIVE, "-G", "Ninja", "--log-level=WARNING", *defines]
    subprocess.run(cmake, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([here / "cmake", "--build", NATIVE], check=True)
    install = [here / "cmake", "--install", NATIVE, "--prefix", machine.SITE]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    for package in ("agentkv", "agentkv_command", "runtime/agentkv_runtime"):
        shutil.copytree(ROOT / package, machine.SITE / Path(package).name, dirs_exist_ok=True)


def run_ctest(cpu: str, chosen: str) -> bool:
    """Whether those tests pass on that processor."""
    print(f"==> Running the C++ tests on {cpu}", flush=True)
    ctest = [Path(sys.executable).parent / "ctest", "--test-dir", NATIVE, "--tests-regex", chosen]
    how = ["--output-on-failure", "--progress", "--no-tests=error"]
    return subprocess.run([*ctest, *how], env={**os.environ, "QEMU_CPU": cpu}).returncode == 0


def generated(command: list[str | Path], kv_dtype: str, env: dict[str, str] | None = None) -> dict[str, object]:
    """What tests/arm/generate.py prints of nano."""
    script = [*command, ROOT / "tests/arm/generate.py", models.nano(), kv_dtype]
    ran = subprocess.run(script, env=env, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, object] = json.loads(ran.stdout)
    return result


def has_isas(cpu: str, isas: list[str]) -> bool:
    """Whether the native module finds these on that processor."""
    command = [*machine.python(), "-c", CPU_ISAS]
    ran = subprocess.run(command, env=machine.environment(cpu), check=True, stdout=subprocess.PIPE, text=True)
    print(f"==> {cpu} has {ran.stdout.strip()}", flush=True)
    return ran.stdout.split() == isas


def same_generations(cpu: str) -> bool:
    """Whether nano says the same there as here, with the same logits."""
    same = True
    for kv_dtype in ("fp16", "int8"):
        here = generated([sys.executable], kv_dtype)
        there = generated(machine.python(), kv_dtype, machine.environment(cpu))
        print(f"==> nano on {cpu}, {kv_dtype}: {'the same bits' if here == there else 'DIFFERENT'}", flush=True)
        if here != there:
            print(f"    here  {here}\n    there {there}", flush=True)
            same = False
    return same


def main() -> None:
    """Exits with 1 where anything differs."""
    if missing := machine.missing_tools():
        sys.exit(f"make test-arm needs packages of Debian that are not here: apt-get install {' '.join(missing)}")
    print("==> Unpacking Python and wheels for Arm into build/arm (once)", flush=True)
    machine.unpack_wheels()
    machine.unpack_debian()
    print("==> Building for Arm", flush=True)
    build()
    first, *others = PROCESSORS
    passed = [run_ctest(first, ".")] + [run_ctest(cpu, KERNEL_TESTS) for cpu in others]
    passed += [has_isas(cpu, isas) for cpu, isas in PROCESSORS.items()]
    passed += [same_generations(cpu) for cpu in GENERATE_ON]
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()

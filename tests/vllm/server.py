"""A real vLLM server of nano on two cores, as a process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

WEIGHTS = Path(__file__).parents[2] / "examples" / "nano" / "weights"
MODULE = "vllm.entrypoints.openai.api_server"
STARTS_S = 300.0
BLOCK = 32  # tokens of a block of its prefix cache: the smallest that it takes on a CPU
QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


class VLLMServer:
    """It listens once it is made. `python` is that of an environment that has vLLM."""

    def __init__(self, python: str, log: Path, model: Path = WEIGHTS, *, threads: int = 1) -> None:
        with socket.create_server(("127.0.0.1", 0)) as bound:
            self.port = bound.getsockname()[1]
        self.root = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.root}/v1"
        self._log = log
        self._environment = {**os.environ, **QUIET, "OMP_NUM_THREADS": str(threads)}
        self._command = [python, "-m", MODULE, "--model", str(model), "--served-model-name", "nano"]
        self._command += ["--port", str(self.port), "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager"]
        self._command += ["--max-num-seqs", "64", "--block-size", str(BLOCK)]
        self._command += ["--enable-prompt-tokens-details", "--structured-outputs-config", '{"backend": "guidance"}']
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Returns once it answers."""
        with self._log.open("ab") as log:
            # Of this session still: two busy cores would let another session wait for seconds (autogroups of Linux).
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, process_group=0
            )
        until = time.monotonic() + STARTS_S
        while True:
            try:
                urllib.request.urlopen(f"{self.root}/health", timeout=5).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"vLLM did not start; its log is {self._log}") from None
                time.sleep(0.5)

    def kill(self) -> None:
        """As a machine that loses its power."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def metric(self, name: str) -> float:
        """The sum of a counter or gauge over its labels."""
        text = urllib.request.urlopen(f"{self.root}/metrics", timeout=30).read().decode()
        found = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        assert found, f"no metric {name}"
        return sum(map(float, found))

    @property
    def computed(self) -> float:
        """Prompt tokens that it computed so far, and did not find in its cache."""
        return self.metric("vllm:prefix_cache_queries_total") - self.metric("vllm:prefix_cache_hits_total")

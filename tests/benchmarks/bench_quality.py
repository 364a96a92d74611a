"""Perplexity of GGUF files as agentkv exports them, and as llama.cpp runs them: one text, the same windows.

Run by hand: `python tests/benchmarks/bench_quality.py FOLDER_OF_GGUF_FILES LLAMA_CPP_BUILD_BIN`. llama.cpp's other
types are made anew with `llama-quantize`, from a float32 file of the same weights, Q4_K_M also by `llama-imatrix` over
the text that ours are calibrated on. What a model's shapes do not allow is named and left out. What is made goes to
--work, where it is found again; it is large.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from agentkv_runtime.errors import ExportError
from agentkv_runtime.export.blocks.importance import calibration_text
from agentkv_runtime.export.folder import export_folder
from agentkv_runtime.export.quiet import quiet_libraries
from agentkv_runtime.folder.model_folder import is_model_folder, read_model_folder
from agentkv_runtime.programs import set_threads
from agentkv_runtime.quality import WINDOW, SessionModel, default_text, measure_quality, text_windows
from agentkv_runtime.sessions import make_decode_session

OURS = ("none", "8da8w", "8da4w", "file", "q4", "q5", "q6", "q8")
THEIRS = ("Q4_0", "Q4_K_M", "Q8_0")
FINAL = re.compile(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str
    what: str
    size: int
    perplexity: float
    standard_error: float

    def __str__(self) -> str:
        return f"| {self.model} | {self.what} | {self.size:,} | {self.perplexity:.3f} | {self.standard_error:.3f} |"


@dataclass(frozen=True)
class Bench:
    """What all rows share."""

    tools: Path
    work: Path
    windows: int
    threads: int

    def rows(self, gguf: Path) -> Iterator[Row]:
        """Of one model: ours, then llama.cpp's."""
        for quant in OURS:
            try:
                yield self._ours(gguf, quant)
            except ExportError as error:
                print(f"{gguf.stem}: left out {quant}: {error}", flush=True)
        yield self._theirs(gguf, "the file itself", gguf)
        for kind in THEIRS:
            yield self._theirs(gguf, f"{kind}, made anew", self._made(gguf, kind))
        yield self._theirs(
            gguf, "Q4_K_M, made anew with importance", self._made(gguf, "Q4_K_M", self._importance(gguf))
        )

    def _ours(self, gguf: Path, quant: str) -> Row:
        out = self.work / f"{gguf.stem}-{quant}"
        if not is_model_folder(out):
            with quiet_libraries():
                export_folder(gguf, out, quant=quant)  # type: ignore[arg-type]
        folder = read_model_folder(out)
        windows = text_windows(folder.tokenizer, default_text(), most=self.windows)
        found = measure_quality(SessionModel(make_decode_session(folder, capacity=WINDOW)), windows)
        name = "float32" if quant == "none" else quant
        size = folder.manifest.model_bytes
        return Row(gguf.stem, f"agentkv {name}", size, found.perplexity, found.standard_error)

    def _theirs(self, gguf: Path, what: str, file: Path) -> Row:
        text = self.work / "text.txt"
        text.write_text(default_text(), encoding="utf-8")
        options = ["-m", file, "-f", text, "-c", WINDOW, "--chunks", self.windows, "-t", self.threads]
        said = FINAL.search(self._run("llama-perplexity", *options))
        if said is None:
            raise RuntimeError(f"llama-perplexity printed no estimate for {file}")
        return Row(gguf.stem, f"llama.cpp {what}", file.stat().st_size, float(said[1]), float(said[2]))

    def _wide(self, gguf: Path) -> Path:
        """The file in float32."""
        wide = self.work / f"{gguf.stem}-F32.gguf"
        if not wide.exists():
            self._run("llama-quantize", "--allow-requantize", gguf, wide, "F32", self.threads)
        return wide

    def _importance(self, gguf: Path) -> Path:
        """What its weights meet in the text that our own quantisations are calibrated on."""
        out, text = self.work / f"{gguf.stem}.imatrix", self.work / "calibration.txt"
        if not out.exists():
            text.write_text(calibration_text(), encoding="utf-8")
            options = ["-m", self._wide(gguf), "-f", text, "-o", out, "-c", WINDOW, "--chunks", 100, "-t", self.threads]
            self._run("llama-imatrix", *options)
        return out

    def _made(self, gguf: Path, kind: str, importance: Path | None = None) -> Path:
        """The file in another type, by way of float32."""
        out = self.work / f"{gguf.stem}-{kind}{'-importance' if importance else ''}.gguf"
        if not out.exists():
            more = ["--imatrix", importance] if importance else []
            self._run("llama-quantize", *more, self._wide(gguf), out, kind, self.threads)
        return out

    def _run(self, tool: str, *arguments: object) -> str:
        command = [str(self.tools / tool), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        return done.stdout + done.stderr


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of GGUF files.")],
    tools: Annotated[Path, typer.Argument(help="llama.cpp's build/bin.")],
    work: Annotated[Path | None, typer.Option(help="Where exports and files are kept; without it they go.")] = None,
    windows: Annotated[int, typer.Option(min=1, help="Windows of 512 tokens.")] = 10,
    threads: Annotated[int, typer.Option(min=1, help="Of both.")] = 2,
    only: Annotated[str, typer.Option(help="Part of the name of the files to take.")] = "",
) -> None:
    """Print the table, a row as soon as it is measured."""
    set_threads(threads)
    with tempfile.TemporaryDirectory() as scratch:
        place = work or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        bench = Bench(tools, place, windows, threads)
        print("| model | weights | bytes | perplexity | standard error |\n| --- | --- | ---: | ---: | ---: |")
        for gguf in sorted(each for each in folder.glob("*.gguf") if only in each.name):
            for row in bench.rows(gguf):
                print(row, flush=True)


if __name__ == "__main__":
    typer.run(main)

"""Export of models on opening, in a separate process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import anyio
from anyio.streams.text import TextReceiveStream

from .._types.errors import InvalidInput, ModelError
from .._types.log import log

if TYPE_CHECKING:
    from .options import Options

GRACE_S = 5.0  # time for a terminated export to clean up


def needs_export(options: Options) -> bool:
    """Returns whether the model has to be exported first: a GGUF file, or a Hugging Face folder unless for torch.

    Naming a device implies torch. Raises InvalidInput if options contradict each other, before a futile export.
    """
    from agentkv_runtime.folder.model_folder import is_hf_folder
    from agentkv_runtime.sources.source import is_gguf

    try:
        is_file, is_folder = is_gguf(options.path), is_hf_folder(options.path)
    except OSError:  # from looking at the path; opening it reports that
        return False
    options.check_device(is_file)
    if options.backend == "torch" or options.device is not None:
        if options.quant is not None:
            raise InvalidInput(
                f"quant is {options.quant!r}, but backend 'torch' runs weights as they are; leave one of them out"
            )
        return False
    if is_file or is_folder:
        options.check_backend(options.backend or "cpu")
    return is_file or is_folder


async def exported(options: Options) -> Path:
    """The model folder for `options`, exported unless an earlier export is in the store. Raises ModelError.

    Cancellation stops the export, which then cleans up.
    """
    from agentkv_runtime.errors import ExportError, StoreError
    from agentkv_runtime.sources.source import is_gguf
    from agentkv_runtime.store.making import check_store, find_export, options_for

    try:
        own_bits = is_gguf(options.path)
        wanted = options_for(options.backend or "cpu", options.quant, own_bits=own_bits)  # type: ignore[arg-type]
        made = await anyio.to_thread.run_sync(find_export, options.path, wanted)
        if made is None:
            check_store()
    except (ExportError, StoreError) as error:
        raise ModelError(str(error)) from error
    if made is not None:
        made.touch()
        return made.path
    request = json.dumps({"source": str(options.path.absolute()), "options": wanted.model_dump()})
    try:
        return await _exported_apart(options.path, request)
    except OSError as error:  # no room for its files, or for another process
        raise ModelError(f"{options.path}: cannot be exported: {error}") from error


async def _exported_apart(model: Path, request: str) -> Path:
    command = [sys.executable, "-P", "-m", "agentkv_runtime.store.process", request]
    with tempfile.TemporaryFile() as errors:
        process = await anyio.open_process(command, stdin=subprocess.DEVNULL, stderr=errors)
        try:
            outcome = await _followed(process, str(model))
            status = await process.wait()
        except BaseException:
            await _stop(process)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await process.aclose()
        if "path" in outcome:
            return Path(outcome["path"])
        raise ModelError(outcome.get("error") or f"{model}: its export {_end(status, errors)}")


async def _followed(process: anyio.abc.Process, model: str) -> dict[str, Any]:
    """Shows and logs the progress messages of the process. Returns its last message."""
    from .._console.progress import Display

    display = Display()
    rest = ""
    said: dict[str, Any] = {}
    assert process.stdout is not None
    try:
        async for text in TextReceiveStream(process.stdout):
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                try:
                    said = json.loads(line)
                except ValueError:  # output of other code, before the process sends messages
                    continue
                if not isinstance(said, dict):
                    said = {}
                if "progress" in said:
                    log.debug("exporting", model=model, step=said["progress"])
                    display.tell(f"exporting {Path(model).name}: {said['progress']}")
                elif "done" in said:
                    display.done(said["done"])
                elif "note" in said:
                    log.info("of an export", model=model, note=said["note"])
                    display.note(said["note"])
    finally:
        display.stop()
    return said


async def _stop(process: anyio.abc.Process) -> None:
    with anyio.CancelScope(shield=True):
        try:
            process.terminate()
            with anyio.move_on_after(GRACE_S):
                await process.wait()
                return
            process.kill()
        except ProcessLookupError:
            return


def _end(status: int, errors: IO[bytes]) -> str:
    if status == -signal.SIGBUS:  # a mapped file ends before the page that is read
        return "read what is not there: the file was cut meanwhile, or its disk fails. Open it again when it is whole"
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return how + (f": {lines[-1]}" if lines else ", perhaps because memory ran out")
